"""Where nodes ran, from a profile."""

import json
from pathlib import Path
from typing import Any

import pytest

from qtool.core.errors import EmulationError
from qtool.plugins.emulators.placement import Placement, placement


def kernel(op: str, provider: str, *tensors: dict[str, list[int]]) -> dict[str, Any]:
    args = {"op_name": op, "provider": f"{provider}ExecutionProvider", "node_index": op}
    types = {"input_type_shape": list(tensors[:-1]), "output_type_shape": list(tensors[-1:])}
    return {"cat": "Node", "name": f"a/{op}_kernel_time", "args": {**args, **types}}


FLOAT, SCALAR, IDS = {"float": [4, 8]}, {"float": []}, {"int64": [4]}
RUN = [
    {"cat": "Session", "name": "model_run", "args": {}},
    kernel("MatMul", "WebGpu", FLOAT, FLOAT),
    kernel("MemcpyToHost", "WebGpu", FLOAT),
    kernel("QuantizeLinear", "CPU", FLOAT, {"uint8": [4, 8]}),
    kernel("Gather", "CPU", FLOAT, IDS, FLOAT),
    kernel("Sub", "CPU", IDS, IDS),
    kernel("Sqrt", "CPU", SCALAR, SCALAR),
]


@pytest.mark.parametrize("runs", [1, 3])
def test_what_reads_activations_on_the_cpu(tmp_path: Path, runs: int) -> None:
    (tmp_path / "profile_2026.json").write_text(json.dumps(RUN * runs))
    fallbacks = ("a/QuantizeLinear (QuantizeLinear)", "a/Gather (Gather)")
    assert placement(tmp_path / "profile", runs) == Placement(1, fallbacks, 2, 1)


def test_no_profile(tmp_path: Path) -> None:
    with pytest.raises(EmulationError, match="no profile"):
        placement(tmp_path / "profile", 1)
