"""CPU seconds of a conversion, compared with the static path of onnxruntime.quantization.

    python -m benchmarks.conversion SET [--packages FOLDER] [--realdata FOLDER] [--samples 128]
        [--only magika,resnet] [--sides static,qtool] [--profile FOLDER]

SET is one of benchmarks/networks. Every figure is from a process of its own with one thread, on the
same samples in the same batches: 32, or one where the file's first size is fixed. It covers the
call and the modules that it imports; not the import of torch, onnxruntime and the tool, nor loading
network and data. qtool's sources are compiled beforehand. `static`: quant_pre_process and
quantize_static, QDQ with minimum and maximum and a scale per channel, of a module after
torch.onnx.export. `qtool`: quantize with defaults and export, with everything verified.
"""

from __future__ import annotations

import argparse
import compileall
import cProfile
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.fresh_process import run_fresh
from benchmarks.networks.make import Workplace, write_float
from benchmarks.networks.measure import workplace
from benchmarks.networks.sets import SETS
from benchmarks.networks.subject import Arrays, Places
from benchmarks.networks.tools import Job, prepare

BATCH = 32


def _batches(work: Workplace) -> list[Arrays]:
    if work.subject.whole:
        count = len(next(iter(work.arrays.values())))
        return [{k: np.asarray(a[i]) for k, a in work.arrays.items()} for i in range(count)]
    size = BATCH if work.subject.build or _is_open(work.places.packages / work.subject.needs) else 1
    count = len(next(iter(work.arrays.values())))
    starts = range(0, count, size)
    return [{k: a[i : i + size] for k, a in work.arrays.items()} for i in starts]


def _is_open(file: Path) -> bool:
    import onnxruntime

    shapes = [i.shape for i in onnxruntime.InferenceSession(file).get_inputs()]
    return all(shape and not isinstance(shape[0], int) for shape in shapes)


def _static(work: Workplace, file: Path) -> Callable[[], None]:
    from onnxruntime import quantization as q

    rows = iter(_batches(work))

    class Samples(q.CalibrationDataReader):
        def get_next(self) -> Arrays | None:
            return next(rows, None)

    def run() -> None:
        ready = prepare(Job(write_float(work), file, "", work.subject.whole))
        q.quantize_static(ready, file, Samples(), per_channel=True)

    return run


def _qtool(work: Workplace, file: Path) -> Callable[[], None]:
    import qtool

    build, needs = work.subject.build, work.places.packages / work.subject.needs
    model = build(work.places) if build else qtool.load_model(needs)
    data = [{k: torch.from_numpy(a) for k, a in batch.items()} for batch in _batches(work)]
    if build and work.subject.older:
        data = [tuple(batch.values()) for batch in data]
    dims = {k: {0: "batch", **d} for k, d in work.subject.dynamic.items()}
    return lambda: qtool.quantize(model, data, dynamic=dims or None).export(file)


def _alone(options: argparse.Namespace, name: str, side: str) -> None:
    import onnxruntime  # noqa: F401  # not part of what is timed

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    places = Places(options.packages.resolve(), options.realdata.resolve())
    with tempfile.TemporaryDirectory() as folder:
        work, _ = workplace(
            *(options.set, SETS[options.set]()[name], options.samples, places),
            *(sys.executable, Path(folder)),
        )
        file = Path(folder) / "made.onnx"
        run = {"static": _static, "qtool": _qtool}[side](work, file)
        profile = cProfile.Profile(time.process_time) if options.profile else None
        start = time.process_time()
        profile.runcall(run) if profile else run()
        seconds = time.process_time() - start
        if profile:
            profile.dump_stats(options.profile / f"{name}.{side}.prof")
        print(json.dumps({"s": seconds}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set", choices=list(SETS))
    parser.add_argument("--packages", type=Path, default=Path("packages"))
    parser.add_argument("--realdata", type=Path, default=Path("realdata"))
    parser.add_argument("--only", default="", help="names that contain one of these")
    parser.add_argument("--samples", type=int, default=128, help="calibrated with")
    parser.add_argument("--sides", default="static,qtool")
    parser.add_argument("--profile", type=Path, help="folder for profiles by cProfile")
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        _alone(options, *options.alone)
        return
    compileall.compile_dir(Path(__file__).parents[1] / "qtool", quiet=1)
    ratios, words = [], ("-m", "benchmarks.conversion", *sys.argv[1:])
    for name in (n for n in SETS[options.set]() if any(w in n for w in options.only.split(","))):
        found = {}
        for side in options.sides.split(","):
            found[side] = run_fresh(*words, "--alone", name, side)["s"]
        if len(found) == 2:
            ratios.append(found["qtool"] / found["static"])
        times = f"{ratios[-1]:.2f}, median {median(ratios):.2f}" if len(found) == 2 else ""
        print(f"{name:>20}", *(f"{s:8.2f}" for s in found.values()), times, flush=True)


if __name__ == "__main__":
    main()
