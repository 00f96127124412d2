"""Caches of keys and values in int8: as the float model sees them, and in files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch.utils import _pytree as pytree

import qtool
from qtool.backends.onnxruntime.integer_engine import lower
from qtool.core.errors import CaptureError, DataError
from qtool.evaluation.model_inputs import check_cache
from qtool.frontends.huggingface.causal_decoder import DYNAMIC, DecoderWithCache
from tests.frontends.huggingface.test_causal_decoder import TASK, folder, llama, qwen  # noqa: F401  # a fixture

pytest.importorskip("transformers")
IDS = torch.randint(0, 96, (4, 12), generator=torch.Generator().manual_seed(0))


def held(make: Any = llama) -> tuple[DecoderWithCache, torch.Tensor]:
    """A decoder with its cache in int8, and the logits that it had in float."""
    decoder = DecoderWithCache(make()).eval()
    batch = decoder.with_cached_prefix(IDS, torch.ones_like(IDS), 4)
    with torch.no_grad():
        real = decoder(**batch)["logits"]
    decoder.quantize_cache([batch])
    return decoder, real


@pytest.fixture(scope="module")
def captured() -> Any:
    """Of one text: the runtime takes no more that each have a cache and several tokens."""
    decoder, _ = held(lambda: llama(num_hidden_layers=1))
    batch = decoder.with_cached_prefix(IDS[:1], torch.ones_like(IDS[:1]), 4)
    return decoder, batch, qtool.capture_model(decoder, batch, DYNAMIC)


@pytest.mark.parametrize("make", [llama, pytest.param(qwen, marks=pytest.mark.matrix)])
def test_little_is_lost(make: Any) -> None:
    decoder, real = held(make)
    batch = decoder.with_cached_prefix(IDS, torch.ones_like(IDS), 4)
    with torch.no_grad():
        found = decoder(**batch)
    kinds = {t.dtype for pair in found["present"] for t in pair.values()}
    assert kinds == {torch.int8}
    assert found["present"][0]["key"].shape == (4, 2, 12, 8)
    noise = (found["logits"] - real).square().sum() / real.square().sum()
    assert -10 * float(noise.log10()) > 30


def test_the_file_gives_what_the_engine_gives(captured: Any, tmp_path: Path) -> None:
    _, batch, graph = captured
    path = tmp_path / "int4.onnx"
    assert (
        qtool.quantize(graph, [batch], mode="weight-only-int4", accuracy="fast").export(path).passed
    )
    nodes = [n.op_type for n in onnx.load(path).graph.node]
    assert nodes.count("GroupQueryAttention") == 1
    check_cache(path, graph.graph.inputs)
    in_float = [replace(i, dtype="float32") for i in graph.graph.inputs]
    with pytest.raises(DataError, match=r"KV cache in int8.* it is written \('evaluation'\)"):
        check_cache(path, in_float)
    session, program = ort.InferenceSession(path), lower(path)
    mask = torch.ones(4, 12, dtype=torch.int64)
    mask[1, :3] = 0  # padded on the left
    given: list[Any] = [IDS, mask, *[torch.zeros(4, 2, 0, 8, dtype=torch.int8)] * 2]
    for _ in range(4):  # a prompt of several, then step by step
        named = {i.name: t.numpy() for i, t in zip(session.get_inputs(), given, strict=True)}
        found = session.run(None, named)
        mine = program(*given)
        assert all(np.array_equal(a, b.numpy()) for a, b in zip(found, mine, strict=True))
        mask = torch.nn.functional.pad(mask, (0, 1), value=1)
        ids = torch.from_numpy(found[0])[:, -1:].argmax(-1)
        given = [ids, mask, *map(torch.from_numpy, found[1:])]


def test_the_float_file_computes_what_torch_does(captured: Any, tmp_path: Path) -> None:
    decoder, _, graph = captured
    mask = torch.ones_like(IDS)
    session = ort.InferenceSession(graph.export_float(tmp_path / "float.onnx"))
    step = decoder.with_cached_prefix(IDS, mask, 11)
    names = [i.name for i in session.get_inputs()]
    arrays = [t.numpy() for t in pytree.tree_leaves(step)]
    with torch.no_grad():
        wanted = pytree.tree_leaves(decoder(**step))
    found = session.run(None, dict(zip(names, arrays, strict=True)))
    torch.testing.assert_close(torch.from_numpy(found[0]), wanted[0], atol=1e-3, rtol=1e-4)
    same = [(a == b.numpy()).mean() for a, b in zip(found[1:], wanted[1:], strict=True)]
    assert min(same) > 0.99


def test_what_has_no_such_cache() -> None:
    decoder = DecoderWithCache(llama()).eval()
    with pytest.raises(DataError, match="needs data for its scales"):
        decoder.quantize_cache([])
    batch = decoder.with_cached_prefix(IDS, torch.ones_like(IDS), 4)
    for layer in decoder.model.model.layers:
        layer.self_attn.config = type(decoder.config)(attn_implementation="eager")
    with pytest.raises(CaptureError, match="does not use the attention interface of transformers"):
        decoder.quantize_cache([batch])
