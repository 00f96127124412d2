"""Speed of a file over another in a fresh process: paired runs in turns, by thread CPU time.

    python benchmarks/truth/timed.py FLOAT FILE INPUTS.npz SECONDS

Prints JSON: the median ratio of the pairs, its tenth and ninetieth percentile, and the milliseconds
of both. One thread; the order of a pair alternates.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measured import by_input, transposed

WARM_UP, LEAST = 5, 30


def runs_of(path: Path, arrays: dict[str, np.ndarray]) -> Callable[[], object]:
    """One run of a file on inputs that it has already."""
    if path.suffix == ".tflite":
        from ai_edge_litert.interpreter import Interpreter

        model = Interpreter(str(path), num_threads=1)
        values = []
        for detail, value in zip(model.get_input_details(), arrays.values(), strict=True):
            values.append(transposed(value, tuple(detail["shape_signature"])))
            model.resize_tensor_input(detail["index"], values[-1].shape)
        model.allocate_tensors()
        for detail, value in zip(model.get_input_details(), values, strict=True):
            model.set_tensor(detail["index"], value.astype(detail["dtype"]))
        return model.invoke
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    feed = by_input(names, arrays)
    return lambda: session.run(None, feed)


def main() -> None:
    plain, file, inputs, seconds = sys.argv[1:]
    with np.load(inputs) as stored:
        arrays = {name: stored[name] for name in stored.files}
    runs = [runs_of(Path(f), arrays) for f in (plain, file)]
    for run in runs:
        for _ in range(WARM_UP):
            run()
    times: list[list[float]] = []
    end = time.perf_counter() + float(seconds)
    while len(times) < LEAST or time.perf_counter() < end:
        row = [0.0, 0.0]
        for i in (0, 1) if len(times) % 2 else (1, 0):
            start = time.thread_time()
            runs[i]()
            row[i] = time.thread_time() - start
        times.append(row)
    both = np.array(times)
    low, middle, high = np.percentile(both[:, 0] / both[:, 1], [10, 50, 90])
    figures = {"ratio": middle, "p10": low, "p90": high, "rounds": float(len(times))}
    milliseconds = dict(zip(("float_ms", "int8_ms"), 1000 * np.median(both, 0), strict=True))
    print(json.dumps({k: float(v) for k, v in (figures | milliseconds).items()}))


if __name__ == "__main__":
    main()
