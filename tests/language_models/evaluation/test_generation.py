"""Text from the file of a decoder: the tokens of its float model, drawn tokens, ends."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qtool
from qtool.api.generation import _ENDS, _read_first
from qtool.backends.onnxruntime.cached_decoder import CachedDecoder
from qtool.core.errors import DataError, OptionError
from qtool.evaluation.generation import choose, context_size, end_tokens, next_tokens
from qtool.evaluation.options import GenerationOptions
from qtool.frontends.data.processors import load_tokenizer
from qtool.frontends.huggingface.causal_decoder import DYNAMIC, DecoderWithCache
from tests.frontends.huggingface.test_causal_decoder import folder  # noqa: F401  # a fixture
from tests.named_cases import cases

pytest.importorskip("transformers")
PROMPT = "the cat sat"


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:  # noqa: F811
    return folder


def export(source: Path, path: Path, attention: str) -> Path:
    decoder: Any = qtool.load_model(source, task="text-generation-with-past", attention=attention)
    assert isinstance(decoder, DecoderWithCache)
    ids = torch.arange(3, 14)[None]
    batch = decoder.with_cached_prefix(ids, torch.ones_like(ids), 4)
    qtool.capture_model(decoder, batch, DYNAMIC).export_float(path)
    return path


@pytest.mark.parametrize("attention", ["fused", "masked"])
def test_the_tokens_of_the_float_model(attention: str, model: Path, tmp_path: Path) -> None:
    file = export(model, tmp_path / "model.onnx", attention)
    pieces = list[str]()
    result = qtool.generate(
        file, PROMPT, model=model, tokenizer=model, tokens=12, on_text=pieces.append
    )
    assert result.agreement == len(result.tokens)
    assert "".join(pieces) == result.text
    assert result.prompt_seconds > 0
    assert "tokens per second" in str(result.summary)
    drawn = [
        qtool.generate(
            file, PROMPT, tokenizer=model, tokens=12, temperature=5.0, top_k=50, seed=seed
        ).tokens
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_text_ends_with_a_token_that_ends_texts(model: Path, tmp_path: Path) -> None:
    file = export(model, tmp_path / "model.onnx", "fused")
    every = list(next_tokens(CachedDecoder(file, 40), [3, 4], GenerationOptions(9)))
    ends = frozenset({every[2]})
    some = list(next_tokens(CachedDecoder(file, 40), [3, 4], GenerationOptions(9), ends))
    assert some == every[: every.index(every[2]) + 1]


def test_tokens_are_drawn_from_the_most_likely_ones() -> None:
    generator = np.random.default_rng(0)
    logits = np.log(np.array([0.05, 0.5, 0.15, 0.3], np.float32))

    def drawn(count: int, **options: Any) -> list[int]:
        how = GenerationOptions(**options)
        return [choose(logits, how, generator) for _ in range(count)]

    assert drawn(1) == [1]
    assert {*drawn(50, temperature=1.0, top_k=2)} == {1, 3}
    assert {*drawn(100, temperature=1.0, top_p=0.9)} == {1, 2, 3}
    every = drawn(2000, temperature=1.0)
    assert abs(every.count(1) / 2000 - 0.5) < 0.05


def test_what_cannot_generate(model: Path, tmp_path: Path) -> None:
    plain = qtool.capture_model(torch.nn.Linear(4, 4).eval(), torch.randn(2, 4))
    file = plain.export_float(tmp_path / "plain.onnx")
    with pytest.raises(
        DataError, match="has no KV cache, so it continues no text; write it with task='text"
    ):
        qtool.generate(file, PROMPT, tokenizer=model)
    with pytest.raises(OptionError, match="top_p is 0"):
        qtool.generate(file, PROMPT, tokenizer=model, top_p=0)
    with pytest.raises(OptionError, match="temperature is 0"):
        qtool.generate(file, PROMPT, tokenizer=model, model=model, temperature=1.0)


@pytest.mark.parametrize("text", ["null", "[]", '{"eos_token_id": {}}', "[" * 100_000])
def test_a_damaged_configuration_is_refused(text: str, model: Path, tmp_path: Path) -> None:
    place = tmp_path / "tokenizer"
    shutil.copytree(model, place)
    (place / "generation_config.json").write_text(text)
    with pytest.raises(DataError, match=r"generation_config\.json is no configuration of a model"):
        _read_first(place, _ENDS, end_tokens)


def test_a_prompt_that_is_no_text(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.onnx").touch()
    with pytest.raises(DataError, match="bytes that are no UTF-8"):
        qtool.generate(tmp_path / "a.onnx", "\udcff", tokenizer=model)


def test_a_text_ends_with_the_context_of_the_model(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = export(model, tmp_path / "model.onnx", "fused")
    place = tmp_path / "tokenizer"
    shutil.copytree(model, place)
    prompt = len(load_tokenizer(model)(PROMPT)["input_ids"])
    write_context(place, prompt + 3)
    assert len(qtool.generate(file, PROMPT, tokenizer=place, tokens=20).tokens) == 3
    assert "the text ends after 3 tokens" in caplog.text
    write_context(place, prompt)
    with pytest.raises(DataError, match=f"the model was made for texts of {prompt}; shorten it"):
        qtool.generate(file, PROMPT, tokenizer=place)


def write_context(place: Path, size: int) -> None:
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "max_position_embeddings": size}))
    (place / "generation_config.json").write_text("{}")  # no token ends a text


@cases(
    "config, size",
    ({"n_positions": 1024, "n_embd": 8}, 1024),
    ({"text_config": {"max_position_embeddings": 32}}, 32),
    ({"model": {"context_length": 64}}, 64),
    ({"max_position_embeddings": "64", "n_positions": True}, None),
    ([], None),
)
def test_the_context_of_a_configuration(config: object, size: int | None) -> None:
    assert context_size(config) == size
