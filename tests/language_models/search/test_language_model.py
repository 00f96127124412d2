"""Layers of a decoder with 4 or 8 bits, chosen by perplexity."""

from typing import Any

import pytest
import torch

import qtool
from qtool.frontends.huggingface.causal_decoder import DYNAMIC, DecoderWithCache

library = pytest.importorskip("transformers")


def test_a_decoder_with_4_and_8_bits_is_judged_by_perplexity() -> None:
    torch.manual_seed(0)
    config = library.LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2,
    )  # fmt: skip
    decoder = DecoderWithCache(library.LlamaForCausalLM(config)).eval()
    decoder.fuse_attention()
    texts = torch.randint(0, 96, (24, 1, 20), generator=torch.Generator().manual_seed(0))
    data: Any = [decoder.with_cached_prefix(ids, torch.ones_like(ids), 4) for ids in texts]
    captured = qtool.capture_model(decoder, data[0], DYNAMIC)
    tuned = qtool.tune(
        captured,
        data[:16],
        data[16:],
        goals=qtool.TuneGoals(min_sqnr=25, smallest=True),
        options=qtool.SearchOptions(
            choices=("int4-weights", "int8-weights"), evaluations=4, timing=0.01
        ),
        accuracy=("fast",),
    )
    assert {t.score.metric and t.score.metric.name for t in tuned.evaluated} == {"perplexity"}
    assert tuned.reached
    assert {layer.choice for layer in tuned.layers} <= {"int4-weights", "int8-weights", "float"}
    assert len({trial.size for trial in tuned.evaluated}) > 1
