"""The residual stream of decoders, rotated: the same function, fewer outliers, or a reason."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import qtool
from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.registry import ROTATION
from qtool.algorithms.rotation.rotation import randomized_hadamard, rotate
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.evaluation.restored_model import restore
from qtool.frontends.huggingface.causal_decoder import DYNAMIC, DecoderWithCache

library = pytest.importorskip("transformers")
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
ROTATED: dict[str, dict[str, Any]] = {
    "Llama": {"tie_word_embeddings": True},
    "Qwen2": {},  # biases of queries, keys and values
    "Qwen3": {},
    "Gemma": {},  # a scaled embedding, gains from 0
}
QUICK = ("Gemma",)
"""The family that `make test` runs; `make matrix` runs the others."""


def model_of(family: str, **more: Any) -> Any:
    """A decoder of random weights and gains."""
    torch.manual_seed(0)
    config = getattr(library, f"{family}Config")(**{**SIZES, **more})
    model = getattr(library, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.rand_like(parameter))
            if name.endswith("bias"):
                parameter.add_(torch.rand_like(parameter))
    return model


def captured(model: Any) -> tuple[Any, list[Any]]:
    decoder = DecoderWithCache(model).eval()
    decoder.fuse_attention()
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(0, 96, (24, 1, 11), generator=generator)
    batches = [decoder.with_cached_prefix(ids, torch.ones_like(ids), 4) for ids in texts]
    return qtool.capture_model(decoder, batches[0], DYNAMIC), batches


def outputs(module: Any, batch: Batch) -> list[torch.Tensor]:
    with torch.no_grad():
        return pytree.tree_leaves(module(*batch.args, **batch.kwargs))


@pytest.mark.parametrize("width", [1, 8, 48, 7])
def test_the_matrix_is_orthogonal_and_mixes_all_channels(width: int) -> None:
    matrix = randomized_hadamard(width)
    torch.testing.assert_close(matrix @ matrix.t(), torch.eye(width, dtype=torch.float64))
    assert float(matrix.abs().max()) <= (2 / width) ** 0.5 + 1e-12
    assert torch.equal(matrix, randomized_hadamard(width))


@pytest.mark.parametrize(
    ("family", "more"),
    [
        pytest.param(f, m, id=f, marks=[] if f in QUICK else pytest.mark.matrix)
        for f, m in ROTATED.items()
    ],
)
def test_the_float_outputs_stay(family: str, more: dict[str, Any]) -> None:
    graph = captured(model_of(family, **more))[0].graph
    module, example = G.clone(graph.module), Batch(*graph.example)
    assert rotate(module) > 2 * 7
    before, after = outputs(graph.module, example), outputs(module, example)
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5 * float(one.abs().max()))
    changed = {n.target for n in module.graph.nodes if n.op == "get_attr"}
    assert len({n.target for n in graph.graph.nodes if n.op == "get_attr"}) + bool(
        more.get("tie_word_embeddings") or family == "Gemma"
    ) == len(changed)  # a shared table is stored twice


@cache
def with_outliers() -> tuple[Any, list[Any]]:
    """A Llama whose layers have wide weights for two channels of their input."""
    model = model_of("Llama", tie_word_embeddings=False)
    wide = torch.ones(48)
    wide[[5, 17]] = 10.0
    with torch.no_grad():
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            for each in (
                attention.q_proj,
                attention.k_proj,
                attention.v_proj,
                mlp.gate_proj,
                mlp.up_proj,
            ):
                each.weight *= wide
            layer.input_layernorm.weight[[5, 17]] /= 10
            layer.post_attention_layernorm.weight[[5, 17]] /= 10
    return captured(model)


def quantized(recover: list[str], **more: Any) -> qtool.QuantizedModel:
    graph, batches = with_outliers()
    rule = {"op": "linear", "block": "channel"}
    return qtool.quantize(
        graph, batches, mode="weight-only-int4", recipe=[rule], recover=recover, **more
    )


@pytest.mark.matrix
def test_weights_with_outliers_lose_less_and_the_file_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    graph, batches = with_outliers()
    plain, rotated = quantized([]), quantized([ROTATION.name])
    assert [c.step for c in rotated.changes] == [ROTATION.name]
    noise = []
    for model in (plain, rotated):
        found = model.export(path, timing=0)
        assert found.passed
        noise.append(found.fidelity.worst)
    assert noise[1] > noise[0] + 1
    again = restore(path, graph, Batch((), batches[0]))
    with torch.no_grad():
        pairs = zip(*(pytree.tree_leaves(m(**batches[0])) for m in (rotated, again)), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_layers_whose_pruned_weights_are_rotated_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("Llama", tie_word_embeddings=False)
    layer = model.model.layers[0].mlp.up_proj
    with torch.no_grad():
        layer.weight[:, ::2] = 0
    graph, _ = captured(model)
    notes = list[str]()
    monkeypatch.setattr(ConversionState, "with_notes", lambda self, *own: notes.extend(own) or self)
    ROTATION.propose(ConversionState.start(graph, graph.plan(mode="weight-only")))
    assert len(notes) == 1
    assert "no longer pruned: " in notes[0]
    assert "up_proj" in notes[0]
    assert "down_proj" not in notes[0]


SKIPPED = {
    "LayerNorm": ("GPTNeoX", {}, "reads the residual stream and has no rotated form"),
    "norms behind layers": ("Gemma2", {}, "writes to the residual stream and has no rotated form"),
}


@pytest.mark.parametrize(("family", "more", "why"), SKIPPED.values(), ids=SKIPPED.keys())
def test_skipped(family: str, more: dict[str, Any], why: str) -> None:
    graph, batches = captured(model_of(family, num_hidden_layers=1, **more))
    model = qtool.quantize(graph, batches, mode="weight-only-int4", recover=[ROTATION.name])
    assert not model.changes
    (note,) = (n for n in model.notes if n.startswith(ROTATION.name))
    assert why in note


@pytest.mark.matrix
def test_skipped_where_activations_have_fixed_ranges() -> None:
    graph, batches = with_outliers()
    model = qtool.quantize(graph, batches, recover=[ROTATION.name])
    assert any("activations have fixed ranges" in note for note in model.notes)


def test_a_network_without_embedding_has_no_stream() -> None:
    net, x = torch.nn.Linear(8, 8).eval(), torch.rand(64, 8)
    model = qtool.quantize(net, x.split(8), mode="weight-only-int4", recover=[ROTATION.name])
    assert any("no embedding that a residual stream starts at" in note for note in model.notes)
