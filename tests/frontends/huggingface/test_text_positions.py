"""Texts are cut at the positions that a model has; longer ones are refused before its capture."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qtool.api.data import load_data
from qtool.core.errors import DataError
from qtool.frontends.data.processors import text_positions
from qtool.frontends.huggingface.causal_decoder import DecoderWithCache
from tests.frontends.huggingface.test_model_folder import SMALL, tokenizer

library = pytest.importorskip("transformers")
BART = {"vocab_size": 30, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1}
BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
LLAMA = {**SMALL, "vocab_size": 30, "max_position_embeddings": 40}
TOWER = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
TOWER |= {"num_attention_heads": 2}
POSITIONS = {"max_position_embeddings": 40}
IMAGES = {"image_size": 8, "patch_size": 4}


def of(name: str, config: str, **sizes: Any) -> Any:
    return getattr(library, name)(getattr(library, config)(**sizes))


MODELS: dict[str, tuple[Callable[[], Any], int | None]] = {
    "BERT": (lambda: of("BertModel", "BertConfig", **LLAMA), 40),
    "RoBERTa, whose first two are for padding": (
        lambda: of("RobertaModel", "RobertaConfig", **LLAMA | {"max_position_embeddings": 42}),
        40,
    ),
    "BART, whose table has two more": (
        lambda: of("BartModel", "BartConfig", **BART, **POSITIONS),
        40,
    ),
    "CLIP, without the positions of patches": (
        lambda: of("CLIPModel", "CLIPConfig", text_config=TOWER | POSITIONS, vision_config=IMAGES),
        40,
    ),
    "rotary positions": (lambda: of("LlamaForCausalLM", "LlamaConfig", **LLAMA), None),
    "rotary positions in tables of a file": (
        lambda: DecoderWithCache(of("LlamaForCausalLM", "LlamaConfig", **LLAMA)),
        40,
    ),
    "no model": (lambda: None, None),
}


@pytest.mark.parametrize(("make", "positions"), MODELS.values(), ids=MODELS)
def test_positions(make: Callable[[], Any], positions: int | None) -> None:
    assert text_positions(make()) == positions


def test_lengths(tmp_path: Path) -> None:
    tokenizer(library).save_pretrained(tmp_path)
    file = tmp_path / "texts.txt"
    file.write_text("a b c d e f g h i j\n")
    sizes = {**SMALL, "vocab_size": len(tokenizer(library)), "max_position_embeddings": 6}
    model = of("BertModel", "BertConfig", **sizes)

    def length(max_length: int | None) -> int:
        data = load_data(file, model=model, folder=tmp_path, max_length=max_length)
        return int(next(iter(data))["input_ids"].shape[1])

    assert length(None) == length(6) == 6
    assert length(4) == 4
    with pytest.raises(DataError, match="of 7 tokens are longer than the 6 positions"):
        length(7)
