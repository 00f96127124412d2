"""qtool beside other tools: the same networks, the same data, one run. Writes a page of results.

    pip install --target PEERS nncf torchao aimet-onnx     # those that install
    python benchmarks/peers.py FOLDER --peers PEERS --page PAGE [--networks kws]

Each tool makes its file in a process of its own, whose CPU seconds and peak memory are those of the
table; the float export that ONNX tools need is not counted. All files run in ONNX Runtime on
the evaluation data of networks.py, which no tool has seen. A tool that is not installed, or that
fails, has a row that says so.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import networks
import numpy as np
import torch

import qtool
from qtool.backends.onnxruntime.audit import audit
from qtool.core.sqnr import decibels
from qtool.evaluation.feeder import Feeder
from qtool.evaluation.latency.interleaved_timing import time_files

HOME = Path(__file__).resolve().parent
SECONDS = 1.0  # of latency, for each file
LONGEST = 3600  # seconds of one conversion
PERCENTILE = 99.999

Maker = Callable[[networks.Network, Path, Path], None]


@dataclass(frozen=True)
class Row:
    """What one tool made of one network.

    drop, error: in points of the metric, and its standard error (NaN without labels). agree: in
    percent. speed: float time over int8 time, for a batch of 1. seconds: of CPU. note: why there is
    nothing.
    """

    network: str
    tool: str
    drop: float = float("nan")
    error: float = float("nan")
    agree: float = float("nan")
    sqnr: float = float("nan")
    integer: float = float("nan")
    speed: float = float("nan")
    seconds: float = float("nan")
    mib: float = float("nan")
    note: str = ""


# --- the tools -----------------------------------------------------------------------------------


def _qtool(accuracy: str) -> Maker:
    def make(network: networks.Network, plain: Path, out: Path) -> None:
        model = qtool.quantize(
            network.model, network.calibration, accuracy=accuracy, dynamic=network.dynamic
        )
        model.export(out)

    return make


def _inputs(network: networks.Network, plain: Path) -> list[dict[str, np.ndarray]]:
    """Single samples: some peers want all batches of one size."""
    import onnx

    names = [i.name for i in onnx.load(plain, load_external_data=False).graph.input]
    feeder = Feeder(plain)
    rows = (feeder.arrays(batch, i) for i, batch in enumerate(network.calibration))
    found = [dict(zip(names, arrays, strict=True)) for arrays in rows]
    return [
        {name: array[i : i + 1] for name, array in arrays.items()}
        for arrays in found
        for i in range(len(arrays[names[0]]))
    ]


def _onnxruntime(best: bool) -> Maker:
    def make(network: networks.Network, plain: Path, out: Path) -> None:
        from onnxruntime import quantization as q
        from onnxruntime.quantization.shape_inference import quant_pre_process

        given = iter(_inputs(network, plain))

        class Reader(q.CalibrationDataReader):
            def get_next(self) -> Any:
                return next(given, None)

        ready = out.with_suffix(".ready.onnx")
        quant_pre_process(plain, ready)
        if not best:
            q.quantize_static(ready, out, Reader())
            return
        q.quantize_static(
            ready,
            out,
            Reader(),
            per_channel=True,
            activation_type=q.QuantType.QUInt8,
            weight_type=q.QuantType.QInt8,
            calibrate_method=q.CalibrationMethod.Percentile,
            extra_options={"CalibPercentile": PERCENTILE},
        )

    return make


def _nncf(network: networks.Network, plain: Path, out: Path) -> None:
    import nncf
    import onnx

    data = _inputs(network, plain)
    onnx.save(nncf.quantize(onnx.load(plain), nncf.Dataset(data), subset_size=len(data)), out)


def _torchao(network: networks.Network, plain: Path, out: Path) -> None:
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    batch = network.calibration[0]
    args, kwargs = ((), batch) if isinstance(batch, dict) else ((batch,), {})
    many = torch.export.Dim.AUTO
    shapes = {n: dict.fromkeys(range(t.dim()), many) for n, t in kwargs.items()} or ({0: many},)
    exported = torch.export.export(network.model, args, kwargs, dynamic_shapes=shapes).module()
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(exported, quantizer)
    with torch.no_grad():
        for batch in network.calibration:
            prepared(**batch) if isinstance(batch, dict) else prepared(batch)
    found = convert_pt2e(prepared)
    torch.onnx.export(found, args, out, kwargs=kwargs, dynamic_shapes=shapes, dynamo=True)


def _aimet(network: networks.Network, plain: Path, out: Path) -> None:
    import onnx
    from aimet_onnx.cross_layer_equalization import equalize_model
    from aimet_onnx.quantsim import QuantizationSimModel

    model = onnx.load(plain)
    equalize_model(model)
    sim = QuantizationSimModel(model)
    sim.compute_encodings(_inputs(network, plain))
    onnx.save(sim.to_onnx_qdq(), out)


TOOLS: dict[str, tuple[str, Maker]] = {
    "qtool fast": ("qtool", _qtool("fast")),
    "qtool balanced": ("qtool", _qtool("balanced")),
    "qtool best": ("qtool", _qtool("best")),
    "onnxruntime, defaults": ("onnxruntime", _onnxruntime(best=False)),
    "onnxruntime, per channel, percentile": ("onnxruntime", _onnxruntime(best=True)),
    "nncf": ("nncf", _nncf),
    "torchao pt2e": ("torchao", _torchao),
    "aimet, equalized": ("aimet-onnx", _aimet),
}
"""Name -> the package that it needs, and how it makes a file from a network and its float file."""


# --- measuring -----------------------------------------------------------------------------------


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def made(options: argparse.Namespace, network: str, tool: str, plain: Path, out: Path) -> Row:
    """The costs of one file, which a process of its own makes."""
    command = [sys.executable, str(HOME / "peers.py"), str(options.folder)]
    command += ["--make", tool, "--networks", network, "--files", str(plain), str(out)]
    paths = [str(options.peers), *sys.path] if options.peers else sys.path
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    if done.returncode or not out.is_file():
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return Row(network, tool, note=f"failed: {lines[-1][:120]}")
    cost = json.loads(done.stdout.strip().splitlines()[-1])
    return Row(network, tool, seconds=cost["seconds"], mib=cost["mib"])


def make_one(options: argparse.Namespace) -> None:
    """In the process of a tool: the file, and on the last line what it cost beside the start."""
    network = networks.load(options.folder, options.networks)
    plain, out = map(Path, options.files)
    before = time.process_time()
    TOOLS[options.make][1](network, plain, out)
    seconds = time.process_time() - before
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("\n" + json.dumps({"seconds": seconds, "mib": mib}))


def outputs(file: Path, data: Sequence[Any]) -> np.ndarray:
    """The first output of a file on all batches, in ONNX Runtime."""
    from qtool.evaluation.user_metrics import FileFunction

    model = FileFunction(file)
    parts = []
    for batch in data:
        found = model(**batch) if isinstance(batch, dict) else model(batch)
        parts.append((found if isinstance(found, torch.Tensor) else found[0]).numpy())
    width = parts[0].shape[-1]
    return np.concatenate([part.reshape(-1, width) for part in parts])


def judged(row: Row, network: networks.Network, exact: np.ndarray, plain: Path, out: Path) -> Row:
    """With what the file is worth."""
    found = outputs(out, network.data)
    noise = float(np.square(exact.astype(np.float64) - found).sum())
    values: dict[str, Any] = {
        "sqnr": decibels(float(np.square(exact.astype(np.float64)).sum()), noise) or float("inf"),
        "integer": 100 * audit(out).share,
    }
    if network.labels is not None:
        before, after = (o.argmax(-1) == np.asarray(network.labels) for o in (exact, found))
        lost = before.astype(np.float64) - after
        values["drop"] = 100 * lost.mean()
        values["error"] = 100 * lost.std() / np.sqrt(len(lost))
        values["agree"] = 100 * (exact.argmax(-1) == found.argmax(-1)).mean()
    arrays = [array[:1] for array in Feeder(plain).arrays(network.timed, 0)]
    values["speed"] = time_files([plain, out], arrays, seconds=SECONDS).ratios[1].median
    return Row(**{**asdict(row), **values})


def measure(options: argparse.Namespace, name: str, done: Collection[str]) -> Iterator[Row]:
    """A row for each tool. done: those that have one."""
    network = networks.load(options.folder, name)
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / "float.onnx"
        captured = qtool.capture_model(network.model, network.calibration[0], network.dynamic)
        captured.export_float(plain)
        exact = outputs(plain, network.data)
        for number, (tool, (package, _)) in enumerate(TOOLS.items()):
            if tool in done or (options.tools and tool not in options.tools):
                continue
            if package != "qtool" and _version(package) is None:
                yield Row(name, tool, note="not installed")
                continue
            out = Path(scratch) / f"{number}.onnx"
            row = made(options, name, tool, plain, out)
            try:
                yield row if row.note else judged(row, network, exact, plain, out)
            except Exception as error:  # noqa: BLE001  # a peer's file that does not run is a result
                yield Row(name, tool, note=f"does not run: {str(error).splitlines()[0][:120]}")


# --- the page ------------------------------------------------------------------------------------

HEADERS = ["", "drop", "agree %", "SQNR dB", "integer %", "speed", "CPU s", "MiB"]
HEAD = """# Accuracy, beside other tools

Made by `benchmarks/peers.py`, which says how to make it again; networks and data are those of
`benchmarks/networks.py`. Every tool calibrates on the same samples, and every file runs in ONNX
Runtime on samples that no tool has seen. *drop*: of top-1 accuracy against the float network, in
points, and its standard error. *agree*: same class as the float network. *integer*: share of
multiply-accumulates in integer kernels. *speed*: float time over int8 time, batch of 1. *CPU s*,
*MiB*: what making the file took; the float export that ONNX tools need is not counted for them.
"""


def _cells(row: Row) -> list[str]:
    if row.note:
        return [row.tool, row.note, *[""] * (len(HEADERS) - 2)]
    drop = "" if np.isnan(row.drop) else f"{row.drop:+.2f} ± {row.error:.2f}"
    agree = "" if np.isnan(row.agree) else f"{row.agree:.2f}"
    numbers = (agree, f"{row.sqnr:.2f}", f"{row.integer:.0f}", f"{row.speed:.2f}")
    return [row.tool, drop, *numbers, f"{row.seconds:.1f}", f"{row.mib:.0f}"]


def page(rows: Sequence[Row]) -> str:
    """All tables as Markdown."""
    parts = [HEAD]
    packages = dict.fromkeys(package for package, _ in TOOLS.values())
    versions = (f"{p} {_version(p) or '(not installed)'}" for p in (*packages, "torch"))
    parts.append(f"Versions: {', '.join(versions)}.\n")
    for network in dict.fromkeys(row.network for row in rows):
        lines = [HEADERS, ["---"] * len(HEADERS)]
        of = {row.tool: row for row in rows if row.network == network}
        lines += [_cells(of[tool]) for tool in TOOLS if tool in of]
        body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        parts.append(f"## {network}\n\n{body}\n")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--networks", default=",".join(networks.NETWORKS))
    parser.add_argument("--tools", nargs="*", choices=TOOLS, help="by default all")
    parser.add_argument("--peers", type=Path, help="where pip put the peers")
    parser.add_argument("--json", type=Path, help="rows that it holds already are kept")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--make", help=argparse.SUPPRESS)
    parser.add_argument("--files", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peers:
        sys.path.insert(0, str(options.peers))
    if options.make:
        make_one(options)
        return
    resumed = options.json is not None and options.json.is_file()
    rows = [Row(**row) for row in json.loads(options.json.read_text())] if resumed else []
    for name in options.networks.split(","):
        for row in measure(options, name, {r.tool for r in rows if r.network == name}):
            rows.append(row)
            print(name, *_cells(row), sep="  ", flush=True)
            if options.json:
                options.json.write_text(json.dumps([asdict(r) for r in rows], indent=2))
    if options.page:
        options.page.write_text(page(rows))


if __name__ == "__main__":
    main()
