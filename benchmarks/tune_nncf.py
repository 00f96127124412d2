"""NNCF's accuracy control on the networks, the data and the goal of `tune.py goals`.

    pip install --target PEERS nncf
    python benchmarks/tune_nncf.py FOLDER --peers PEERS [--networks resnet20] [--drop 0.002]

A row for each network, as `tune.py goals` prints them; evaluations are runs on all evaluation data.
It asks for the drop itself and not for the end of an interval, and so says what it reached.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import networks
import numpy as np
from tune import HEAD, cases, of_goals

import qtool
from qtool.backends.onnxruntime.audit import audit
from qtool.backends.onnxruntime.session import run, session
from qtool.evaluation.feeder import Feeder
from qtool.evaluation.latency.interleaved_timing import time_files
from qtool.evaluation.user_metrics import FileFunction
from qtool.search.judge import Judge


def _controlled(network: networks.Network, plain: Path, file: Path, drop: float) -> str:
    import nncf
    import onnx

    judge, whole = Judge(plain, network.data, network.labels, network.metric, "metric"), []
    samples = _singles(plain, network.data)

    def worth(model: Any, indices: Any) -> tuple[float, list[float] | None]:
        onnx.save(model, file)
        if network.metric is not None:
            whole.append(1)
            return float(network.metric(FileFunction(file))), None
        opened, asked = session(file), list(indices)
        whole.extend([1] * (len(asked) == len(samples)))
        answers = [run(opened, list(samples[i].values()))[0][0].argmax() for i in asked]
        hits = [float(a == network.labels[i]) for a, i in zip(answers, asked, strict=True)]
        return float(np.mean(hits)), hits

    start, spent = time.monotonic(), time.process_time()
    few = _singles(plain, network.calibration)
    found = nncf.quantize_with_accuracy_control(
        onnx.load(plain),
        nncf.Dataset(few),
        nncf.Dataset(range(len(samples)), lambda i: samples[i]),
        worth,
        max_drop=drop * (100 if network.metric else 1),
        subset_size=len(few),
    )
    took, spent = time.monotonic() - start, time.process_time() - spent
    onnx.save(found, file)
    score, one = judge.score(file), list(samples[0].values())
    ratio = time_files([plain, file], one, seconds=1.0).ratios[1].median
    reached = score.drop is not None and score.drop <= drop * (100 if network.metric else 1)
    return (
        f"{reached!s:>5}  {ratio:.2f}x  {audit(file).share:6.1%} "
        f"{file.stat().st_size / plain.stat().st_size:6.2f}  {len(whole):11}  {took / 60:7.1f}  "
        f"{spent:5.0f}  {score.text}"
    )


def _singles(plain: Path, data: Any) -> list[dict[str, np.ndarray]]:
    """One sample each, by the names of the file's inputs."""
    names, feeder = [i.name for i in session(plain).get_inputs()], Feeder(plain)
    rows = (feeder.arrays(batch, i) for i, batch in enumerate(data))
    return [
        {n: a[i : i + 1] for n, a in zip(names, arrays, strict=True)}
        for arrays in rows
        for i in range(len(arrays[0]))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peers", type=Path, required=True, help="where pip put it")
    of_goals(parser)
    options = parser.parse_args()
    sys.path.append(str(options.peers))
    print(HEAD)
    for name, network, model, _ in cases(options):
        with tempfile.TemporaryDirectory() as made:
            captured = qtool.capture_model(model, network.calibration[0], network.dynamic)
            plain, file = captured.export_float(Path(made) / "float.onnx"), Path(made) / "int8.onnx"
            try:
                row = _controlled(network, plain, file, options.drop)
            except Exception as error:  # noqa: BLE001  # a peer that fails is a result
                row = f"fails: {type(error).__name__}: {str(error).splitlines()[0][:150]}"
        print(f"{name:22} {row}", flush=True)


if __name__ == "__main__":
    main()
