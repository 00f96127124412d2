"""Mistakes with folders of models: tokenizers, processors, and texts of another language."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file
from torch import nn

import qtool
from qtool.frontends.data.collators import ProcessorCollator
from qtool.frontends.data.load_data import MANY_UNKNOWN, _warn_unknown
from qtool.frontends.data.rows import Row
from tests.mistakes.mistake import Cases, check_noted, check_refused

TEXTS = [Row(text="a cat"), Row(text="a dog")]
REFUSED: Cases = {
    "no tokenizer": (
        lambda: qtool.load_data("texts.txt", folder="bert"),
        "bert has no tokenizer (no tokenizer.json, ... or give another folder with 'folder'",
    ),
    "the folder of a float model as a file": (
        lambda: qtool.gate("bert", "bert", []),
        (
            "bert is the folder of a float model, not of a file; compare a file with it by `qtool "
            "evaluate FILE --model bert`"
        ),
    ),
    "images for a text model": (
        lambda: qtool.load_data("images", folder="bert"),
        "bert has no image processor, so its model may not take images; give data of the kind",
    ),
    "sounds for a text model": (
        lambda: qtool.load_data("sounds", folder="bert"),
        "bert has no feature extractor, so its model may not take sounds; give data of the kind",
    ),
    "an unknown architecture": (
        lambda: qtool.load_model("bert"),
        "bert needs code that is not part of transformers ... package.module:factory",
    ),
    "a task that is none": (
        lambda: qtool.load_model("bert", task="summarize"),
        "unknown task 'summarize'; there are: audio-classification",
    ),
    "weights next to a folder": (
        lambda: qtool.load_model("bert", weights="bert/model.safetensors"),
        "bert holds its own weights; leave out 'weights'",
    ),
    "a transform for texts": (
        lambda: qtool.load_data("texts.txt", transform="timm"),
        "'transform' is for images and sounds, and texts.txt has texts; leave out 'transform'",
    ),
    "a transform that is not there": (
        lambda: qtool.load_data("images", transform="tests.mistakes.nets:resize"),
        "cannot import tests.mistakes.nets:resize: AttributeError",
    ),
    "a transform that is a number": (
        lambda: qtool.load_data("images", transform="tests.mistakes.nets:number"),
        "tests.mistakes.nets:number is a int, not a function",
    ),
    "a damaged image": (
        lambda: list(qtool.load_data("images", transform="tests.mistakes.nets:tensor_of")),
        "images/a.png cannot be read as an image: ... or skip such files with unreadable=0.5",
    ),
    "no transform": (
        lambda: qtool.load_data("images"),
        "no preprocessing found for these images; pass 'transform'",
    ),
}
NOTED: Cases = {
    "texts of another language": (
        lambda: _warn_unknown(_collator().unknown_share(TEXTS), "texts.txt"),
        "75 % of the tokens of texts.txt are unknown to the tokenizer: it is of another language",
    ),
}


class Tokenizer:
    """Knows only the word `a`, and not always."""

    unk_token_id = 0

    def __call__(self, texts: list[str], **options: object) -> dict[str, list[list[int]]]:
        return {"input_ids": [[0, 0], [1, 0]]}


def _collator() -> ProcessorCollator:
    return ProcessorCollator(Tokenizer())


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    for name in ("bert", "images", "sounds"):
        Path(name).mkdir()
    Path("bert/config.json").write_text('{"model_type": "bert", "architectures": ["OwnBert"]}')
    save_file(nn.Linear(2, 2).state_dict(), "bert/model.safetensors")
    Path("texts.txt").write_text("a cat\na dog\n")
    for name in ("a.png", "b.png"):
        Path("images", name).write_bytes(bytes(9))
    Path("sounds/a.wav").touch()


@pytest.mark.parametrize(("call", "expected"), REFUSED.values(), ids=REFUSED)
def test_refused(call, expected):
    check_refused(call, expected)


@pytest.mark.parametrize(("call", "expected"), NOTED.values(), ids=NOTED)
def test_noted(call, expected, caplog):
    check_noted(call, expected, caplog)


def test_few_unknown_tokens_are_no_mistake(caplog: pytest.LogCaptureFixture) -> None:
    _warn_unknown(MANY_UNKNOWN, "texts.txt")
    assert not caplog.records


def test_images_among_arrays_are_left_out_with_a_note(caplog: pytest.LogCaptureFixture) -> None:
    np.save("images/x.npy", np.zeros((2, 3, 8, 8), "f4"))
    with caplog.at_level("INFO", "qtool"):
        assert len(list(qtool.load_data("images"))) == 1
    said = "images has .npy or .npz files, which alone are read: a.png and 1 more is left out"
    assert said in caplog.text
