"""Weights that a model does not use, and those of other tools."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from qtool.core.errors import CaptureError
from qtool.frontends.huggingface.foreign_weights import check_float_weights, dequantized
from qtool.frontends.huggingface.meta_init import load_without_weights, stored_names
from qtool.frontends.huggingface.safetensors_files import WeightFiles
from qtool.frontends.load_model import load_model


def test_a_pipe_in_place_of_a_configuration_is_not_read(tmp_path: Path) -> None:
    for name in ("config.json", "quantize_config.json"):
        os.mkfifo(tmp_path / name)
    check_float_weights(tmp_path)


def test_weights_that_become_float_are_told_from_others(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    check_float_weights(tmp_path)
    assert dequantized({"quantization_config": {"quant_method": "fp8"}}) == "fp8"
    for other in ({}, {"quantization_config": None}, {"quantization_config": {"bits": 4}}):
        assert dequantized(other) is None


SIZES: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two layers of BERT with a classifier."""
    library = pytest.importorskip("transformers")
    config = library.BertConfig(vocab_size=9, num_hidden_layers=2, **SIZES)
    library.BertForSequenceClassification(config).save_pretrained(tmp_path)
    return tmp_path


def with_layers(folder: Path, count: int) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_hidden_layers": count}))


def with_tensors(folder: Path, *names: str) -> None:
    file = folder / "model.safetensors"
    save_file({**load_file(file), **{n: torch.ones(2) for n in names}}, file, {"format": "pt"})


LINEAR = "bert.encoder.layer.0.attention.self.query"
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "half of the layers": (
        lambda f: with_layers(f, 1),
        r"'bert\.encoder\.layer\.1\..* and 15 more, .* describes 1 layers",
    ),
    "no layer": (lambda f: with_layers(f, 0), "describes 0 layers"),
    "a negative number": (lambda f: with_layers(f, -5), "describes 0 layers"),
    "scales": (
        lambda f: with_tensors(f, f"{LINEAR}.weight_scale_inv"),
        r"holds '.*query\.weight_scale_inv', .* belongs to the layer .* quantization_config",
    ),
    "zero points": (lambda f: with_tensors(f, f"{LINEAR}.qzeros"), "belongs to the layer"),
    "under the name of the body alone": (
        lambda f: with_tensors(f, f"{LINEAR}.g_idx".removeprefix("bert.")),
        "belongs to the layer",
    ),
}


def by_blocks(folder: Path) -> object:
    return stored_names(load_without_weights(folder), WeightFiles(folder))


@pytest.mark.parametrize("load", [load_model, by_blocks])
@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_parts_of_the_body_are_refused(
    change: Callable[[Path], None], message: str, load: Callable[[Path], object], folder: Path
) -> None:
    change(folder)
    with pytest.raises(CaptureError, match=message):
        load(folder)


@pytest.mark.parametrize("task", [None, "text-classification"])
def test_nothing_is_said_where_all_are_used(
    task: str | None, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with_tensors(folder, "bert.embeddings.position_ids")
    load_model(folder, task=task)
    stored_names(load_without_weights(folder, task), WeightFiles(folder))
    assert not caplog.records


def test_a_head_of_another_task_is_named(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "qtool"):
        load_model(folder, task="feature-extraction")
    (message,) = caplog.messages
    assert "holds weights that BertModel does not use, such as heads" in message
    assert "(classifier)" in message


@pytest.mark.parametrize("load", [load_model, by_blocks])
def test_packed_codes_without_a_configuration_are_named(
    load: Callable[[Path], object], folder: Path
) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors[f"{LINEAR}.weight"]
    save_file(tensors | {f"{LINEAR}.qweight": torch.ones(2)}, file, {"format": "pt"})
    with pytest.raises(
        CaptureError, match=r"quantized already \('.*query\.qweight'\).*float models"
    ):
        load(folder)
