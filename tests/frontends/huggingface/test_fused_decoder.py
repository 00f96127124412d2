"""Decoders whose attention, cache and rotary embedding are one kernel: ten families, in files."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

import qtool
from qtool.backends.onnx.export.float_file import write_float
from qtool.frontends.huggingface.causal_decoder import DYNAMIC, DecoderWithCache
from tests.frontends.huggingface.test_causal_decoder import (
    PROMPT,
    SIZES,
    greedy,
    in_engine,
    in_runtime,
    wanted,
)

library = pytest.importorskip("transformers")
WIDE: dict[str, Any] = {**SIZES, "hidden_size": 64, "pad_token_id": 0}
"""Heads of 16 features, which the kernel rotates."""
BOTH: dict[str, Any] = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": 8},
    "Qwen2": {"use_sliding_window": True, **BOTH},
    "Qwen3": {"head_dim": 16},
    "Phi3": {"sliding_window": 8, "bos_token_id": 1, "eos_token_id": 2},
    "Gemma2": {"head_dim": 16, **BOTH},
    "Gemma3Text": {"head_dim": 16, **BOTH},
    "Starcoder2": {"sliding_window": 8, "bos_token_id": 1, "eos_token_id": 2},
    "Cohere2": {**BOTH, "bos_token_id": 1, "eos_token_id": 2},
    "Olmo3": {**BOTH, "eos_token_id": 2},
}
QUICK = ("Gemma2",)
"""Families that `make test` runs: full and sliding attention; `make matrix` runs the others."""


def model_of(family: str) -> Any:
    torch.manual_seed(0)
    config = getattr(library, f"{family}Config")(**WIDE, **FAMILIES[family])
    return getattr(library, f"{family.removesuffix('Text')}ForCausalLM")(config).eval()


def captured(model: Any) -> tuple[DecoderWithCache, Any, Any]:
    decoder = DecoderWithCache(model).eval()
    assert decoder.fuse_attention() is None
    ids = torch.randint(0, 96, (1, 11), generator=torch.Generator().manual_seed(0))
    batch = decoder.with_cached_prefix(ids, torch.ones_like(ids), 4)
    return decoder, batch, qtool.capture_model(decoder, batch, DYNAMIC)


def kinds(path: Path) -> Counter[str]:
    return Counter(n.op_type for n in onnx.load(path).graph.node)


@pytest.mark.parametrize(
    "family", [f if f in QUICK else pytest.param(f, marks=pytest.mark.matrix) for f in FAMILIES]
)
def test_the_float_file_gives_the_tokens_of_transformers(family: str, tmp_path: Path) -> None:
    model = model_of(family)
    expected = wanted(model)
    _, _, graph = captured(model)
    path = write_float(graph.graph, tmp_path / "float.onnx")
    assert greedy(in_runtime(path), width=16) == expected
    counts = kinds(path)
    assert counts["GroupQueryAttention"] == 2
    assert not {"Softmax", "Where", "CumSum"} & set(counts)  # no attention, no mask left


@pytest.mark.matrix
def test_the_engine_gives_the_tokens_of_the_quantized_file(tmp_path: Path) -> None:
    _, batch, graph = captured(model_of("Llama"))
    path = tmp_path / "int4.onnx"
    assert (
        qtool.quantize(graph, [batch], mode="weight-only-int4", accuracy="fast").export(path).passed
    )
    assert greedy(in_runtime(path), width=16) == greedy(in_engine(path), width=16)
    counts = kinds(path)
    assert counts["MatMulNBits"] == 2 * 4 + 1  # packed, output, gate and up, down; the head
    assert counts["SkipSimplifiedLayerNormalization"] == 4
    assert counts["Add"] == 1  # in the first norm, which has no residual before it
    assert counts.total() < 40
    attributes = {
        a.name: onnx.helper.get_attribute_value(a)
        for n in onnx.load(path).graph.node
        if n.op_type == "GroupQueryAttention"
        for a in n.attribute
    }
    assert attributes["do_rotary"] == 1


@pytest.mark.matrix
def test_dynamic_layers_and_an_int8_cache(tmp_path: Path) -> None:
    decoder = DecoderWithCache(model_of("Mistral")).eval()
    assert decoder.fuse_attention() is None
    ids = torch.randint(0, 96, (1, 12), generator=torch.Generator().manual_seed(0))
    decoder.quantize_cache([decoder.with_cached_prefix(ids, torch.ones_like(ids), 4)])
    batch = decoder.with_cached_prefix(ids, torch.ones_like(ids), 4)
    graph = qtool.capture_model(decoder, batch, DYNAMIC)
    path = tmp_path / "dynamic.onnx"
    assert qtool.quantize(graph, [batch], mode="dynamic", recover=[]).export(path).passed
    assert kinds(path)["MatMulInteger"] == 2 * 4 + 1
    session = ort.InferenceSession(path)
    given = {
        i.name: np.zeros((1, 2, 0, 16), np.int8)
        for i in session.get_inputs()
        if i.type == "tensor(int8)"
    }
    prompt = torch.tensor([PROMPT])
    given |= {"input_ids": prompt.numpy(), "attention_mask": np.ones((1, len(PROMPT)), np.int64)}
    (logits, *_), one = session.run(None, given), torch.ones_like(prompt)
    with torch.no_grad():
        expected = decoder(prompt, one, ())["logits"]
    noise = (torch.from_numpy(logits) - expected).square().sum() / expected.square().sum()
    assert -10 * float(noise.log10()) > 15


def test_padding_behind_the_tokens_and_texts_of_different_lengths() -> None:
    decoder = DecoderWithCache(model_of("Qwen2")).eval()
    texts = [[7, 8, 9, 10, 11], [12, 13, 14]]
    alone = [decoder(torch.tensor([t]), torch.ones(1, len(t)).long(), ()) for t in texts]
    assert decoder.fuse_attention() is None
    ids = torch.tensor([texts[0], [*texts[1], 5, 5]])
    mask = torch.tensor([[1] * 5, [1] * 3 + [0] * 2])
    together = decoder(ids, mask, ())
    for row, (text, own) in enumerate(zip(texts, alone, strict=True)):
        found = together["logits"][row, : len(text)]
        torch.testing.assert_close(found, own["logits"][0], rtol=0, atol=1e-4)
    step = torch.cat([mask, torch.ones(2, 1).long()], 1)
    new = torch.tensor([[20], [21]])
    found = decoder(new, step, together["present"])["logits"]
    for row, text in enumerate(texts):
        whole = torch.tensor([[*text, int(new[row])]])
        own = decoder(whole, torch.ones_like(whole), ())["logits"][0, -1]
        torch.testing.assert_close(found[row, 0], own, rtol=0, atol=1e-4)


def test_logits_of_the_last_token_only() -> None:
    decoder = DecoderWithCache(model_of("Llama")).eval()
    ids = torch.tensor([PROMPT])
    every = decoder(ids, torch.ones_like(ids), ())["logits"]
    decoder.last_logits = True
    last = decoder(ids, torch.ones_like(ids), ())["logits"]
    assert last.shape == (1, 1, 96)
    torch.testing.assert_close(last, every[:, -1:])


def test_a_model_with_its_own_attention_stays_as_it_is() -> None:
    decoder = DecoderWithCache(model_of("Llama")).eval()
    ids = torch.tensor([PROMPT])
    before = decoder(ids, torch.ones_like(ids), ())["logits"]
    for layer in decoder.model.model.layers:
        layer.self_attn.config = type(decoder.config)(attn_implementation="eager")
    reason = decoder.fuse_attention()
    assert reason is not None
    assert "does not call the attention interface" in reason
    assert decoder.refusal == reason
    assert not decoder.fused
    torch.testing.assert_close(decoder(ids, torch.ones_like(ids), ())["logits"], before)
