"""Run ONNX models on saved inputs: the part of a comparison that runs on an emulated processor.

    python run_onnx.py JOB.json

Needs onnxruntime and numpy alone. A job is a list of runs: {"model": file, "inputs": folder,
"outputs": folder, "batches": number}. Input I of batch B is the file `B-I.npy`, in the order of the
model's inputs; outputs are written in the same way.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

_SILENT = 4  # fatal errors only: other errors are raised


def run_job(path: str | Path) -> None:
    """Run every model of a job on every batch, in one thread."""
    for each in json.loads(Path(path).read_text(encoding="utf-8"))["runs"]:
        _run_model(each)


def _run_model(run: dict[str, Any]) -> None:
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = _SILENT
    session = ort.InferenceSession(run["model"], options, providers=["CPUExecutionProvider"])
    inputs, outputs = Path(run["inputs"]), Path(run["outputs"])
    for batch in range(run["batches"]):
        arrays = {
            value.name: np.load(inputs / f"{batch}-{i}.npy", allow_pickle=False)
            for i, value in enumerate(session.get_inputs())
        }
        for i, array in enumerate(session.run(None, arrays)):
            np.save(outputs / f"{batch}-{i}.npy", np.asarray(array), allow_pickle=False)


def _end_with_parent() -> None:
    """End this process when standard input is closed, because the parent is gone."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    run_job(sys.argv[1])
