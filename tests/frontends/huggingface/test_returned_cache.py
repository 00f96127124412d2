"""A model of transformers as it is converts without the cache that it returns."""

import pytest
import torch

import qtool
from qtool.frontends.huggingface.returned_cache import NOTE

library = pytest.importorskip("transformers")


def test_a_model_as_it_is_leaves_out_its_cache() -> None:
    config = library.LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
    )
    model = library.LlamaForCausalLM(config).eval()
    captured = qtool.capture_model(model, {"input_ids": torch.ones(2, 4, dtype=torch.int64)})
    assert captured.graph.outputs == ("logits",)
    assert captured.notes == (NOTE,)
    assert model.config.use_cache


def test_a_model_without_a_cache_has_no_note() -> None:
    size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = library.BertConfig(vocab_size=16, num_attention_heads=2, **size)
    model = library.BertForSequenceClassification(config).eval()
    captured = qtool.capture_model(model, {"input_ids": torch.ones(2, 4, dtype=torch.int64)})
    assert captured.notes == ()
