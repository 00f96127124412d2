"""Encoder-decoder models as two files: what they write together is what the model writes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from click.testing import CliRunner
from qtool.cli import main
from torch.utils import _pytree as pytree

import qtool
from qtool.api.data import load_data
from qtool.backends.onnx.export.float_file import write_float
from qtool.core.errors import CaptureError, DataError
from qtool.frontends.huggingface.encoder_decoder import (
    DecoderPart,
    EncoderPart,
    MergedDecoder,
    StatesEncoder,
)
from qtool.frontends.huggingface.meta_init import load_without_weights
from qtool.frontends.load_model import load_model
from tests.frontends.huggingface.test_model_folder import tokenizer

library = pytest.importorskip("transformers")
STEPS = 10
SIZES = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "vocab_size": 64}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
WIDE = {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "init_std": 0.4}


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, words = tmp_path_factory.mktemp("t5"), tokenizer(library)
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    config = library.T5Config(vocab_size=len(words), decoder_start_token_id=0, **sizes)
    library.T5ForConditionalGeneration(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def whisper(**other: int) -> tuple[Any, dict[str, Any]]:
    torch.manual_seed(0)
    more = {"max_source_positions": 10, "max_target_positions": 40, "num_mel_bins": 8}
    tokens = {"decoder_start_token_id": 1, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    given = {**SIZES, **HEADS, **WIDE, **more, **tokens, **other}
    config = library.WhisperConfig(**given)
    return library.WhisperForConditionalGeneration(config), {
        "input_features": torch.randn(2, 8, 20)
    }


def bart() -> tuple[Any, dict[str, Any]]:
    torch.manual_seed(0)
    config = library.BartConfig(**SIZES, **HEADS, **WIDE, max_position_embeddings=40)
    ids = torch.randint(3, 64, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return library.BartForConditionalGeneration(config), {"input_ids": ids, "attention_mask": mask}


def t5_model(vocab_size: int = 64) -> tuple[Any, dict[str, Any]]:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    config = library.T5Config(vocab_size=vocab_size, decoder_start_token_id=0, **sizes)
    model = library.T5ForConditionalGeneration(config)
    model.lm_head.weight = torch.nn.Parameter(
        torch.randn(vocab_size, 16)
    )  # else one token is always first
    ids = torch.randint(3, 64, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return model, {"input_ids": ids, "attention_mask": mask}


Run = Callable[[dict[str, np.ndarray[Any, Any]]], list[np.ndarray[Any, Any]]]


def written(reads: Run, writes: Run, given: dict[str, Any], start: int, mask: bool) -> np.ndarray:
    """Tokens [batch, STEPS] that are the likeliest ones."""
    cross = reads({name: t.numpy() for name, t in given.items()})
    batch, heads, _, width = cross[0].shape
    past = [np.zeros((batch, heads, 0, width), np.float32) for _ in cross]
    kinds = [f"{i}.{kind}" for i in range(len(cross) // 2) for kind in ("key", "value")]
    fixed = {f"cross.{kind}": array for kind, array in zip(kinds, cross, strict=True)}
    if mask:
        fixed["encoder_attention_mask"] = given["attention_mask"].numpy()
    tokens = [np.full((batch, 1), start)]
    for _ in range(STEPS):
        cache = {f"past_key_values.{k}": a for k, a in zip(kinds, past, strict=True)}
        logits, *past = writes({"input_ids": tokens[-1], **cache, **fixed})
        tokens.append(logits[:, -1:].argmax(-1))
    return np.concatenate(tokens[1:], 1)


def in_torch(half: Any) -> Run:
    def run(given: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        tensors = {name: torch.from_numpy(array) for name, array in given.items()}
        for kind in ("past_key_values", "cross"):
            named = [tensors.pop(n) for n in list(tensors) if n.startswith(f"{kind}.")]
            pairs = zip(named[::2], named[1::2], strict=True)
            found = [{"key": key, "value": value} for key, value in pairs]
            tensors |= {kind: found} if found else {}
        with torch.no_grad():
            return [t.numpy() for t in pytree.tree_leaves(half(**tensors))]

    return run


def generated(model: Any, given: dict[str, Any]) -> np.ndarray:
    names = ("eos_token_id", "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id")
    plain: dict[str, Any] = dict.fromkeys((*names, "forced_eos_token_id"))
    ids = torch.full((2, 1), model.config.decoder_start_token_id)
    more = {"max_new_tokens": STEPS, "do_sample": False, "num_beams": 1}
    found: torch.Tensor = model.generate(**given, decoder_input_ids=ids, **more, **plain)
    return found[:, -STEPS:].numpy()


@pytest.mark.parametrize("make", [whisper, bart, t5_model])
def test_two_halves_write_what_the_model_writes(make: Callable[[], Any]) -> None:
    model, given = make()
    halves = (EncoderPart(model.eval()).eval(), DecoderPart(model).eval())
    start = model.config.decoder_start_token_id
    found = written(*map(in_torch, halves), given, start, "attention_mask" in given)
    assert np.array_equal(found, generated(model, given))
    assert len(np.unique(found)) > 1


@pytest.mark.matrix
@pytest.mark.parametrize("make", [t5_model, whisper, bart])
def test_one_decoder_for_the_first_call_and_the_next_ones(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    """Its cache of encoder states is empty first, then full; in between for calibration."""
    model, given = make()
    encoder, decoder = StatesEncoder(model.eval()).eval(), MergedDecoder(model).eval()
    ids = torch.randint(3, 64, (2, 9), generator=torch.Generator().manual_seed(0))
    batch = decoder.batch({**given, "decoder_input_ids": ids})
    with torch.no_grad():
        states = encoder(**given)["last_hidden_state"]
    length = {1: "length"} if "attention_mask" in given else {}
    sizes: dict[str, dict[int, str]] = {"input_ids": {0: "batch_size", 1: "sequence"}}
    sizes |= {name: {0: "batch_size", **length} for name in batch if name.startswith("encoder")}
    sizes |= {
        f"past_key_values.{side}": {0: "batch_size", 2: side} for side in ("decoder", "encoder")
    }
    captured = qtool.capture_model(decoder, batch, sizes)
    session = ort.InferenceSession(write_float(captured.graph, tmp_path / "decoder.onnx"))
    past = {i.name: i.shape for i in session.get_inputs() if i.name.startswith("past")}
    assert past["past_key_values.0.encoder.key"] == ["batch_size", 2, "encoder", 8]
    cache = {n: np.zeros((2, s[1], 0, s[3]), np.float32) for n, s in past.items()}
    fixed = {"encoder_hidden_states": states.numpy()}
    if length:
        fixed["encoder_attention_mask"] = given["attention_mask"].numpy()
    tokens = [np.full((2, 1), model.config.decoder_start_token_id)]
    for _ in range(STEPS):
        logits, *present = session.run(None, {"input_ids": tokens[-1], **fixed, **cache})
        cache = dict(zip(cache, present, strict=True))
        tokens.append(logits[:, -1:].argmax(-1))
    assert cache["past_key_values.0.encoder.key"].shape[2] == states.shape[1]
    assert 0 < batch["past_key_values"][0]["encoder"]["key"].shape[2] < states.shape[1]
    assert np.array_equal(np.concatenate(tokens[1:], 1), generated(model, given))


def test_batches_of_each_half(t5: Path, texts: Path) -> None:
    reads = load_model(t5, task="text2text-generation-encoder")
    data = load_data(texts, 4, model=reads, folder=t5)
    assert set(next(iter(data))) == {"input_ids", "attention_mask"} == set(data.dynamic)
    writes = load_model(t5, task="text2text-generation-decoder")
    data = load_data(texts, 4, model=writes, folder=t5)
    first = next(iter(data))
    assert first["past_key_values"][0]["key"].shape == (3, 2, 4, 8)
    assert first["cross"][0]["value"].shape == (3, 2, 5, 8)
    assert data.dynamic["cross"] == {0: "batch_size", 2: "length"}


def test_a_command_for_one_file_wants_a_part(t5: Path, texts: Path, tmp_path: Path) -> None:
    task = "text2text-generation-with-past"
    line = ["calibrate", str(t5), "--task", task, "--data", str(texts), "-o", str(tmp_path / "c")]
    result = CliRunner().invoke(main, line)
    assert result.exit_code == 2
    assert f"makes two files; name one, {task}-encoder or {task}-decoder" in result.output
    whole: Any = load_model(t5, task=task)
    with pytest.raises(DataError, match="has two parts"):
        load_data(texts, 4, model=whole, folder=t5)
    with pytest.raises(CaptureError, match="has two parts"):
        qtool.capture_model(whole, {"input_ids": torch.ones(2, 3, dtype=torch.int64)})
    data = load_data(texts, 4, model=whole.parts["decoder"], folder=t5)
    first = next(iter(data))["past_key_values"][0]
    assert first["encoder"]["key"].shape == (3, 2, 2, 8)
    assert data.dynamic["past_key_values.encoder"] == {0: "batch_size", 2: "encoded"}


def test_no_half_comes_without_its_weights(t5: Path) -> None:
    with pytest.raises(CaptureError, match="loads no part of an encoder-decoder"):
        load_without_weights(t5, "text2text-generation-decoder")
