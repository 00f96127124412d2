"""The script that runs on emulated processors: here on this one."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qtool.core.errors import EmulationError
from qtool.plugins.emulators import run_onnx
from qtool.plugins.emulators.cpus import CPUS
from qtool.plugins.emulators.jobs import Job, read_array, run_jobs, write_array
from tests.needs import needs_web
from tests.plugins.emulators.networks import batches, by_onnxruntime


@pytest.mark.parametrize("external", [False, True])
def test_outputs_are_those_of_a_session(tmp_path: Path, external: bool) -> None:
    file = by_onnxruntime(tmp_path / "int8.onnx", external=external)
    for name in ("in", "here", "there"):
        (tmp_path / name).mkdir()
    for i, batch in enumerate(batches()):
        write_array(tmp_path / "in", i, 0, batch.numpy())
    job = Job(file, tmp_path / "in", tmp_path / "here", 2)
    assert run_jobs(None, [job], tmp_path, 60).startswith("onnxruntime ")
    there = {**vars(job), "outputs": tmp_path / "there"}
    (tmp_path / "job.json").write_text(json.dumps({"runs": [there]}, default=str))
    run_onnx.run_job(tmp_path / "job.json")
    for i in range(2):
        one, other = (read_array(tmp_path / name, i, 0) for name in ("here", "there"))
        np.testing.assert_array_equal(one, other)


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


@needs_web
def test_a_model_that_does_not_run_in_node(tmp_path: Path) -> None:
    job = Job(by_onnxruntime(tmp_path / "int8.onnx"), tmp_path, tmp_path, 1)
    write_array(tmp_path, 0, 0, batches()[0].numpy())
    with pytest.raises(EmulationError, match=r"wasm was stopped after 0 s; give fewer samples"):
        run_jobs(CPUS["wasm"], [job], tmp_path, 0.01)
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(EmulationError, match=r"wasm fails: .*INVALID_PROTOBUF"):
        run_jobs(CPUS["wasm"], [replace(job, model=tmp_path / "broken.onnx")], tmp_path, 60)


def test_arrays_are_never_pickles(tmp_path: Path) -> None:
    np.save(tmp_path / "0-0.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(EmulationError, match="output 0 of batch 0 is not readable"):
        read_array(tmp_path, 0, 0)
