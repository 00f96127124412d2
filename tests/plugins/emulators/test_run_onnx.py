"""The script that runs on emulated processors: here on this one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from qtool.core.errors import EmulationError
from qtool.plugins.emulators import run_onnx
from qtool.plugins.emulators.jobs import Job, read_array, run_jobs, write_array
from tests.plugins.emulators.networks import batches, by_onnxruntime


@pytest.mark.parametrize("external", [False, True])
def test_outputs_are_those_of_the_runtime(tmp_path: Path, external: bool) -> None:
    file = by_onnxruntime(tmp_path / "int8.onnx", external=external)
    inputs, outputs = tmp_path / "in", tmp_path / "out"
    inputs.mkdir()
    outputs.mkdir()
    for i, batch in enumerate(batches()):
        write_array(inputs, i, 0, batch.numpy())
    assert run_jobs(None, [Job(file, inputs, outputs, 2)], tmp_path / "job", 60).startswith("onnx")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(file, options)
    for i, batch in enumerate(batches()):
        (wanted,) = session.run(None, {"x": batch.numpy()})
        np.testing.assert_array_equal(read_array(outputs, i, 0), wanted)


def test_it_needs_nothing_but_numpy_and_the_runtime(tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"runs": []}))
    code = f"""
import runpy, sys
sys.argv = ["run_onnx.py", {str(job)!r}]
runpy.run_path({run_onnx.__file__!r}, run_name="__main__")
print(sorted({{"qtool", "torch", "onnx"}} & set(sys.modules)))
"""
    read, write = os.pipe()  # open as long as this test
    done = subprocess.run(
        [sys.executable, "-c", code], stdin=read, capture_output=True, text=True, check=True
    )
    os.close(read)
    os.close(write)
    assert done.stdout == "[]\n"


def test_a_model_that_does_not_load_is_said(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    job = Job(tmp_path / "broken.onnx", tmp_path, tmp_path, 1)
    with pytest.raises(EmulationError, match=r"this machine fails: .*INVALID_PROTOBUF"):
        run_jobs(None, [job], tmp_path / "job", 60)


def test_arrays_are_never_pickles(tmp_path: Path) -> None:
    np.save(tmp_path / "0-0.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(EmulationError, match="output 0 of batch 0 is not readable"):
        read_array(tmp_path, 0, 0)
