"""Defects of ONNX Runtime's WebGPU provider (docs/upstream.md): a failure means one is mended."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qtool.core.errors import EmulationError
from qtool.core.sqnr import sqnr
from qtool.plugins.emulators.cpus import WEBGPU
from qtool.plugins.emulators.jobs import Job, read_array, run_jobs, write_array
from tests.plugins.emulators.webgpu_networks import attention, needs_webgpu, show_subgroups

pytestmark = [pytest.mark.matrix, needs_webgpu]
TOKENS = 12


def ratios(folder: Path, past: int) -> list[float]:
    """Return the SQNR of attention for each token, on WebGPU against the CPU provider."""
    inputs = attention(folder / "a.onnx", TOKENS, past)
    for i, array in enumerate(inputs):
        write_array(folder, 0, i, array)
    pairs = zip(*(array[0] for array in run_both(folder)), strict=True)
    return [200.0 if (db := sqnr(one, other)) is None else db for one, other in pairs]


@pytest.mark.parametrize(("past", "right"), [(0, 4), (9, 0)])
def test_attention_needs_subgroups_of_eight(
    past: int, right: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step scores eight keys and loads as many as a subgroup has: with four, the others are
    whatever a shuffle from outside the subgroup gives, and are scored again in the next step."""
    show_subgroups(tmp_path, monkeypatch)
    of_tokens = ratios(tmp_path, past)
    assert all(db > 120 for db in of_tokens[:right])
    assert all(db < 40 for db in of_tokens[right:])


@pytest.mark.parametrize("past", [0, 9])
def test_attention_is_right_without_subgroups(past: int, tmp_path: Path) -> None:
    assert np.min(ratios(tmp_path, past)) > 120


def experts(path: Path, tokens: int, weights: bool = False) -> None:
    """Write a QMoE of four experts in 4 bits, of which two are chosen, and its inputs."""
    random, width, count, block = np.random.default_rng(0), 64, 4, 32
    stored = {}
    for name, rows in (("up", 2 * width), ("down", width)):
        shape = (count, rows, width // 2)
        stored[name] = random.integers(0, 256, shape).astype(np.uint8)
        blocks = (count, rows, width // block)
        stored[f"{name}_scale"] = (random.random(blocks) * 0.02).astype(np.float32)
    inputs = ["scaled", "router", "up", "up_scale", "", "down", "down_scale", *[""] * 7]
    node = helper.make_node(
        *("QMoE", [*inputs, "router"] if weights else inputs, ["y"], "experts"),
        domain="com.microsoft",
        k=2,
        activation_type="swiglu",
        swiglu_fusion=1,
        activation_alpha=1.0,
        activation_beta=0.0,
        expert_weight_bits=4,
        block_size=block,
        normalize_routing_weights=1,
    )
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "x"], ["scaled"]), node],
        "experts",
        [helper.make_tensor_value_info(n, 1, [None, s]) for n, s in (("x", 64), ("router", 4))],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    for i, size in enumerate((width, count)):
        write_array(path.parent, 0, i, random.standard_normal((tokens, size)).astype(np.float32))


def run_both(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the outputs of the CPU provider and of WebGPU."""
    results = []
    for cpu, providers in ((None, ()), (WEBGPU, ("WebGpuExecutionProvider",))):
        outputs = folder / f"outputs-{len(results)}"
        outputs.mkdir()
        job = Job(folder / "a.onnx", folder, outputs, 1, providers=providers)
        run_jobs(cpu, [job], folder / f"job-{len(results)}", 60)
        results.append(read_array(outputs, 0, 0))
    return results[0], results[1]


def test_experts_of_one_token_in_4_bits_are_right(tmp_path: Path) -> None:
    experts(tmp_path / "a.onnx", tokens=1)
    one, other = run_both(tmp_path)
    assert (sqnr(one, other) or 200) > 120


def test_experts_give_zeros_for_some_of_several_tokens_in_some_runs(tmp_path: Path) -> None:
    """Half of the runs or fewer are wrong, the others right: none of twenty is no accident."""
    for run in range(20):
        folder = tmp_path / str(run)
        folder.mkdir()
        experts(folder / "a.onnx", tokens=40)
        one, other = run_both(folder)
        assert one.any(axis=1).all()
        if not other.any(axis=1).all():
            return
    pytest.fail("every run is right")


def test_experts_with_weights_of_their_own_are_refused(tmp_path: Path) -> None:
    experts(tmp_path / "a.onnx", tokens=1, weights=True)
    with pytest.raises(EmulationError, match="router_weights is not yet implemented"):
        run_both(tmp_path)
