"""Images and sounds: read by known decoders, from regular files."""

import os
from pathlib import Path

import numpy as np
import pytest

from qtool.core.errors import DataError
from qtool.frontends.data.collators import (
    ProcessorCollator,
    TransformCollator,
    read_image,
    read_sound,
)
from qtool.frontends.data.rows import Row


def test_a_file_of_another_decoder_is_not_read(tmp_path: Path) -> None:
    """Pillow chooses by content, and starts Ghostscript for PostScript."""
    (tmp_path / "a.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n\0"
    )
    with pytest.raises(DataError, match="cannot identify image file"):
        read_image(tmp_path / "a.png")


WIDE = np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)
DEEP = {
    "I;16 of a PNG": ("PNG", WIDE),
    "I;16 of a TIFF": ("TIFF", WIDE),
    "I;16B": ("TIFF", WIDE.astype(">u2")),
    "I": ("TIFF", WIDE.astype(np.int32) - 300),
    "F": ("TIFF", WIDE.astype(np.float32) / 65535),
    "F, NaN": ("TIFF", np.full((8, 8), np.nan, np.float32)),
}
USUAL = ("RGB", "L", "P", "RGBA", "LA", "1", "CMYK")


def stored(kind: str, values: np.ndarray, path: Path) -> Path:
    pil = pytest.importorskip("PIL.Image")
    mode = "I;16B" if values.dtype == ">u2" else None
    image = pil.frombytes(mode, (8, 8), values.tobytes()) if mode else pil.fromarray(values)
    image.save(path, kind)
    return path


@pytest.mark.parametrize("case", DEEP)
@pytest.mark.parametrize("decoded", [False, True], ids=["file", "decoded"])
def test_a_function_of_the_user_gets_an_image_of_more_bits_as_it_is_stored(
    tmp_path: Path, case: str, decoded: bool
) -> None:
    path = stored(*DEEP[case], tmp_path / "a.png")
    image = pytest.importorskip("PIL.Image").open(path) if decoded else path
    collate = TransformCollator(lambda image: np.asarray(image).astype(np.float64), "mine")
    np.testing.assert_array_equal(collate([Row(image=image)])[0], DEEP[case][1])


@pytest.mark.parametrize("case", DEEP)
def test_other_preprocessing_refuses_values_that_do_not_fit_into_8_bits(
    tmp_path: Path, case: str
) -> None:
    path = stored(*DEEP[case], tmp_path / "a.png")
    for collate in (
        ProcessorCollator(images=lambda images, **options: {}),
        TransformCollator(np.asarray, "of timm", in_8_bits=True),
    ):
        with pytest.raises(DataError, match=r"a\.png has values from .* pass 'transform', a func"):
            collate([Row(image=path)])


def test_values_that_fit_into_8_bits_become_rgb(tmp_path: Path) -> None:
    path = stored("TIFF", WIDE.astype(np.int32) >> 8, tmp_path / "a.tif")
    np.testing.assert_array_equal(np.asarray(read_image(path))[..., 2], WIDE >> 8)


@pytest.mark.parametrize("mode", USUAL)
def test_images_of_8_bits_are_converted_to_rgb(mode: str) -> None:
    pil = pytest.importorskip("PIL.Image")
    values = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    image = pil.fromarray(values).convert(mode)
    for in_8_bits in (True, False):
        assert read_image(image, in_8_bits).tobytes() == image.convert("RGB").tobytes()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names on this system")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    for name, read in (("a.png", read_image), ("a.wav", read_sound)):
        os.mkfifo(tmp_path / name)
        with pytest.raises(DataError, match="is a pipe or a device; remove it"):
            read(tmp_path / name)


@pytest.mark.parametrize("call", ["lengths", "__call__"])
def test_a_tokenizer_that_fails(call: str) -> None:
    class Tokenizer:
        unk_token_id = 0

        def __call__(self, *texts: object, **options: object) -> dict[str, object]:
            raise OverflowError("no such\nword")

    with pytest.raises(DataError, match=r"tokenizer .* not take the data: OverflowError: no such"):
        getattr(ProcessorCollator(Tokenizer()), call)([Row(text="a cat")])


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
