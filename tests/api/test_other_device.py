"""A model that is not on the CPU: captured, calibrated and solved there, written as from the CPU.

The device is `tests/other_device.py`, so that no GPU is needed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import backend_registration

from qtool.core.graph.devices import float32_convolutions

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(
        not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
        reason="this torch has no devices in Python",
    ),
    pytest.mark.matrix,  # sixteen conversions
]


@pytest.fixture(scope="module")
def results() -> Any:
    script = Path(__file__).with_name("run_on_other_device.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_the_device_refuses_tensors_of_the_cpu(results: Any) -> None:
    assert "same device" in results["mixed"]


def test_the_graph_is_on_the_cpu_and_knows_the_device_of_the_model(results: Any) -> None:
    assert results["device"] == ["other:0", "other:0"]  # the model stays where it was
    assert results["graph"] == "cpu"


def test_data_may_be_on_either_device(results: Any) -> None:
    assert results["data"]


def test_an_exported_program_of_the_device_is_quantized(results: Any) -> None:
    assert results["program"] == 0


@pytest.mark.parametrize("network", ["cnn", "decoder"])
def test_ranges_weights_and_file_are_those_of_the_cpu(results: Any, network: str) -> None:
    assert results[network]["same file"]


@pytest.mark.parametrize("name", ["steps", "dynamic", "int4"])
@pytest.mark.parametrize("network", ["cnn", "decoder"])
def test_steps_run_there(results: Any, network: str, name: str) -> None:
    found = results[network][name]
    (here, there), notes = found["steps"], found["notes"]
    assert found["same plan"]
    assert "gptq" in here
    assert here == there
    assert notes[0] == notes[1]  # no step was skipped after a failure
    assert found["codes"] < 0.05  # last bits of sums decide some of them


def test_convolutions_keep_the_bits_of_float32_in_a_context_alone() -> None:
    assert torch.backends.cudnn.allow_tf32
    with float32_convolutions(torch.device("cpu")):
        assert torch.backends.cudnn.allow_tf32
    with float32_convolutions(torch.device("cuda")):
        assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.allow_tf32
