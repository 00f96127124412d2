"""Images and sounds: read by known decoders, from regular files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qtool.core.errors import DataError
from qtool.frontends.data.collators import (
    ProcessorCollator,
    UnreadableFileError,
    read_image,
    read_sound,
)
from qtool.frontends.data.rows import Row


def test_a_file_of_another_decoder_is_not_read(tmp_path: Path) -> None:
    """Pillow chooses by content, and starts Ghostscript for PostScript."""
    (tmp_path / "a.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n\0"
    )
    with pytest.raises(UnreadableFileError, match="cannot identify image file"):
        read_image(tmp_path / "a.png")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names on this system")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    for name, read in (("a.png", read_image), ("a.wav", read_sound)):
        os.mkfifo(tmp_path / name)
        with pytest.raises(UnreadableFileError, match="is a pipe or a device; remove it"):
            read(tmp_path / name)


@pytest.mark.parametrize("call", ["lengths", "__call__", "unknown_share"])
def test_a_tokenizer_that_fails(call: str) -> None:
    class Tokenizer:
        unk_token_id = 0

        def __call__(self, *texts: object, **options: object) -> dict[str, object]:
            raise OverflowError("no such\nword")

    with pytest.raises(DataError, match=r"tokenizer .* not take the data: OverflowError: no such"):
        getattr(ProcessorCollator(Tokenizer()), call)([Row(text="a cat")])


def test_a_tokenizer_whose_unknown_token_is_not_to_be_had() -> None:
    class Tokenizer:
        @property
        def unk_token_id(self) -> int:
            raise RecursionError("maximum depth")

    with pytest.raises(DataError, match=r"tokenizer of the model .*: RecursionError: maximum"):
        ProcessorCollator(Tokenizer()).unknown_share([Row(text="a cat")])


@pytest.mark.parametrize(
    ("forward", "expected"),
    [({"ids"}, ["input_ids"]), ({"attention_mask"}, ["attention_mask"]), (None, None)],
)
def test_the_first_input_is_left_where_the_model_has_other_names(
    forward: set[str] | None, expected: list[str] | None
) -> None:
    class Tokenizer:
        def __call__(self, *texts: object, **options: object) -> dict[str, object]:
            return {"input_ids": [[1]], "attention_mask": [[1]]}

    names = None if forward is None else frozenset(forward)
    batch = ProcessorCollator(Tokenizer(), forward=names)([Row(text="a cat")])
    assert list(batch) == (expected or ["input_ids", "attention_mask"])
