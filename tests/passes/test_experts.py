"""Experts of transformers become two layers; a file has one operator for them."""

from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

import qtool
from qtool.backends.onnx.mac_counts import onnx_macs
from qtool.backends.onnx.storage import save
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.graph import torch_ops
from qtool.evaluation.restored_model import restore
from qtool.planning.recipe import Recipe

library = pytest.importorskip("transformers")
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # logits that differ
}
EXPERTS: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 4, "intermediate_size": 96},
    "Qwen2Moe": {
        "num_experts": 4,
        "moe_intermediate_size": 96,
        "shared_expert_intermediate_size": 64,
        "intermediate_size": 64,
    },
    "Qwen3Moe": {"num_experts": 4, "moe_intermediate_size": 96, "norm_topk_prob": True},
}


def mixture(family: str, **more: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(library, f"{family}Config")(**{**SIZES, **EXPERTS[family], **more})
    config._experts_implementation = "batched_mm"
    return getattr(library, f"{family}ForCausalLM")(config).eval()


def texts(count: int = 8) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(0, 96, (2, 16), generator=generator) for _ in range(count)]
    return [{"input_ids": each, "attention_mask": torch.ones_like(each)} for each in ids]


def layers(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return [n for n in G.calls(graph) if n.target is torch_ops.expert_linear]


@pytest.mark.parametrize("family", EXPERTS)
def test_experts_are_two_layers(family: str) -> None:
    model, (batch, *_) = mixture(family), texts(1)
    graph, _ = qtool.capture_model(model, batch).for_target("onnxruntime")
    up, down = layers(graph.graph)
    assert G.name_of(up).endswith("mlp.experts.gate_up_proj")
    assert G.name_of(down).endswith("mlp.experts.down_proj")
    stored = [tuple(G.shape(G.source(layer, 1))) for layer in (up, down)]
    assert stored == [(4 * 192, 64), (4 * 64, 96)]
    with torch.no_grad():
        exact = model(**batch).logits
    torch.testing.assert_close(graph.module(**batch)["logits"], exact, rtol=1e-4, atol=1e-4)


def test_experts_of_another_function_stay_as_they_are() -> None:
    model = mixture("Mixtral", hidden_act="gelu")
    graph, _ = qtool.capture_model(model, texts(1)[0]).for_target("onnxruntime")
    assert not layers(graph.graph)


def test_experts_of_other_targets_stay_as_they_are() -> None:
    plan = qtool.capture_model(mixture("Mixtral"), texts(1)[0]).plan("openvino")
    products = [d for d in plan.nodes if d.op == "matmul" and "experts" in d.node]
    assert [d.reason for d in products] == [
        "its weights are selected at run time; integer kernels need constants"
    ] * 2


def test_gradients_of_experts() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (
        torch.randn(sizes, generator=generator, dtype=torch.float64, requires_grad=True)
        for sizes in ((5, 3), (4 * 2, 3))
    )
    ids = torch.tensor([0, 3, 3, 1, 0])
    assert torch.autograd.gradcheck(lambda a, b: torch_ops.expert_linear(a, b, ids, 4), (x, weight))


@pytest.mark.parametrize(
    ("family", "mode", "bits"), [("Mixtral", "weight-only-int4", 4), ("Qwen2Moe", "weight-only", 8)]
)
def test_a_file_has_one_kernel_for_the_experts(
    family: str, mode: str, bits: int, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    quantized = qtool.quantize(mixture(family), texts(4), mode=mode, recover=[])
    result = quantized.export(path)
    assert result.passed
    nodes = onnx.load(path).graph.node
    assert Counter(n.op_type for n in nodes)["QMoE"] == 1
    (kernel,) = (n for n in nodes if n.op_type == "QMoE")
    assert kernel.name.endswith("mlp.experts.gate_up_proj+down_proj")
    rows = [r for r in result.coverage.rows if r.op == "QMoE"]
    assert [(r.kernel, r.weights_only) for r in rows] == [("QMoE", True)] * 2
    own = onnx_macs(
        "QMoE",
        [(32, 64), None, (4, 192, 64 * bits // 8), None, None, (4, 64, 96 * bits // 8)],
        None,
        {"k": 2, "expert_weight_bits": bits},
        "com.microsoft",
    )
    assert sum(r.macs for r in rows) * 2 == own  # two samples


def test_one_layer_of_experts_in_float_keeps_the_other() -> None:
    recipe = Recipe.of(
        {"mode": "weight-only-int4", "rules": [{"select": "*down_proj", "as": "float"}]}
    )
    plan = qtool.capture_model(mixture("Qwen3Moe"), texts(1)[0]).plan(recipe=recipe)
    reasons = {d.node: d.reason for d in plan.nodes if d.op == "experts"}
    assert ["one scheme" in r for r in reasons.values()] == [True, False]


@pytest.mark.parametrize("mode", ["weight-only", "weight-only-int4"])
def test_the_file_restores_its_experts(mode: str, tmp_path: Path) -> None:
    path, data = tmp_path / "model.onnx", texts(12)
    captured = qtool.capture_model(mixture("Qwen3Moe"), data[0])
    quantized = qtool.quantize(captured, data, mode=mode, recover=["gptq"])
    save(quantized.to_onnx(), path)
    again = restore(path, captured, Batch((), data[0]))
    with torch.no_grad():
        assert torch.equal(again(**data[0])["logits"], quantized(**data[0])["logits"])
