"""Files on the WebGPU provider, where it is installed."""

from pathlib import Path

import pytest

import qtool
from qtool.plugins.emulators import compare_webgpu
from tests.plugins.emulators.networks import batches, by_onnxruntime, by_qtool
from tests.plugins.emulators.webgpu_networks import attention, needs_webgpu, show_subgroups

pytestmark = needs_webgpu


@pytest.mark.parametrize(("tokens", "past"), [(17, 0), (3, 9), (1, 9)])
def test_attention_over_several_tokens_is_right(tokens: int, past: int, tmp_path: Path) -> None:
    inputs = attention(tmp_path / "a.onnx", tokens, past)
    compared = qtool.verify_on_webgpu(tmp_path / "a.onnx", [inputs])
    assert compared.agrees
    assert min(o.sqnr_db or 200 for o in compared.outputs) >= 120
    assert (compared.placement.nodes, compared.placement.fallbacks) == (2, ())
    assert "agrees on WebGPU (limit 80 dB)" in str(compared)
    assert "not judged here: kernels with subgroups" in str(compared)


def test_the_first_node_that_differs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_subgroups(tmp_path, monkeypatch)
    inputs = attention(tmp_path / "a.onnx", 17, 0)
    compared = qtool.verify_on_webgpu(tmp_path / "a.onnx", [inputs])
    assert not compared.agrees
    assert compared.first is not None
    assert (compared.first.node, compared.first.tensor) == ("attention", "y")
    assert compared.first.sqnr_db < 40
    assert compared.first.input_db is None
    assert "first     attention (GroupQueryAttention): " in str(compared)


def test_a_file_that_rounds_activations_falls_back(tmp_path: Path) -> None:
    file = by_onnxruntime(tmp_path / "a.onnx", external=True)
    compared = qtool.verify_on_webgpu(file, batches())
    assert compared.agrees
    assert compared.limit_db == 40
    assert compared.placement.fallbacks
    assert all("QuantizeLinear" in name for name in compared.placement.fallbacks)
    assert compared.placement.copies > 2
    assert compared.outputs[0].rows == compared.samples == 8


def test_moved_codes_are_no_difference_if_each_node_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is above what the last bits of floats give here: codes are looked at."""
    monkeypatch.setattr(compare_webgpu, "ROUNDED_DB", 1000.0)
    file = by_qtool(tmp_path / "a.onnx", "onnxruntime")
    compared = qtool.verify_on_webgpu(file, batches())
    assert compared.limit_db == 1000
    assert compared.agrees
    assert compared.codes_moved
    assert "moved by last bits; each node is right for its inputs" in str(compared)
