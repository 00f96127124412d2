"""Mistakes with data, labels and folders of processors, in Python."""

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import qtool
from qtool.evaluation.labelled_data import LabelledData
from qtool.frontends.data.class_order import class_numbers
from qtool.frontends.data.rows import Row
from qtool.metrics.labels import check_labels
from tests.backends.onnx.export.networks import network, samples
from tests.mistakes.mistake import Case, cases, check_noted, check_refused
from tests.mistakes.nets import (
    IDS,
    IMAGES,
    Samples,
    captured,
    image_net,
    quantize,
    token_net,
    two_inputs,
)

M = "tests.mistakes.nets"
BYTES = (IMAGES * 50).clamp(0, 255).to(torch.uint8)
A, B = torch.randn(40, 4), torch.randn(40, 5)
LABELS = torch.zeros(40).long()
NAMES = {"neg": 0, "pos": 1}


def calibrate(*batches: Any) -> object:
    return qtool.calibrate(captured(), batches)


def calibrate_two(batch: Any) -> object:
    return qtool.calibrate(two_inputs(), [{"a": A, "b": B}, batch])


def overflow() -> None:
    """Calibrate with values that overflow inside the model."""
    x = samples("residual", 8)[0]
    qtool.calibrate(network("residual"), [x, x * (3e38 / x.abs().max())])


def quantized_tensor() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that these will end
        return torch.quantize_per_tensor(IMAGES, 0.1, 0, torch.qint8)


def rows_of(names: list[int]) -> Any:
    """Return what is read of a Series and of a DataFrame with these rows."""
    index = Index(names)
    return SimpleNamespace(
        index=index, columns=["a"], to_numpy=None, __array__=lambda *_: np.array(names)
    )


def other_order(names: list[int]) -> None:
    LabelledData(rows_of(sorted(names)), rows_of(names)).check()


class Index(list[int]):
    """What is read of an index of pandas."""

    def equals(self, other: Any) -> bool:
        return self == other


def load(source: str = "photos", transform: str = "", **options: Any) -> object:
    of = {"transform": f"{M}:{transform}"} if transform else {}
    return list(qtool.load_data(source, **of, **options))


REFUSED: list[Case] = [
    (lambda: quantize({"x": IMAGES, "m": A[:3]}), "DataError", "different numbers of samples"),
    (lambda: quantize(5), "DataError", "data of type int cannot be iterated over"),
    (lambda: quantize(None, image_net()), "DataError --data --shape", "there is no data, and the"),
    (lambda: calibrate_two({"a": A, "b": B / 0}), "DataError DataEdit", "input 'b' holds Inf"),
    (overflow, "DataError", "NaN or Inf (or a value beyond float32)"),
    (lambda: calibrate(IMAGES, {"images": A, "more": A}), "DataError", "batch 1 gives images"),
    (lambda: calibrate(IMAGES, ()), "DataError DataEdit", "a batch is a tuple"),
    (lambda: calibrate(IMAGES, (["a"],)), "DataError", "'input' is a str, not a tensor"),
    (lambda: quantize([[[1.0, 2.0]]]), "DataError", "batch 0 has 2 tensors, the model takes 1"),
    (lambda: quantize([quantized_tensor()]), "DataError DataEdit", "a quantized tensor"),
    (lambda: quantize([(A,)], two_inputs()), "DataError DataEdit DataEdit", "argument: 'b'"),
    (lambda: quantize([IMAGES], samples=0.5), "OptionError CallEdit", "samples is 0.5"),
    (lambda: other_order([0, 2, 1]), "DataError DataEdit DataEdit", "(row 2 is 1 in the data, 2"),
    (lambda: check_labels([(A, 0)], 4), "DataError DataEdit", "a list that is no array"),
    (lambda: check_labels("price", 40), "DataError DataEdit", "the labels are the text 'price'"),
    (lambda: qtool.gate("own", "own", []), "FileError CallEdit", "own is the folder of a float"),
    (lambda: qtool.load_model("own", task="summary"), "CaptureError", "unknown task 'summary'"),
    (lambda: qtool.load_model("own", weights="x"), "CaptureError no --weights", "own holds its"),
    (lambda: load(transform="resize"), "DataError", f"cannot import {M}:resize: AttributeError"),
    (lambda: load(transform="number"), "DataError", f"{M}:number is a int, not a function"),
    (load, "DataError --transform", "no preprocessing found for these images"),
    (lambda: load(folder="own"), "DataError DataEdit --processor", "own has no image processor"),
    (
        lambda: load(transform="tensor_of"),
        "DataError OtherFile",
        "photos/a.png cannot be read as an image",
    ),
]
BATCHES = "in the batches"
FEW = "; ranges and recovery"
NOTED = {
    f"'mask' {BATCHES} is left out": lambda: quantize([{"a": A, "b": B, "mask": A}], two_inputs()),
    "the data is in float64": lambda: quantize([IMAGES.double()], image_net()),
    "the data is in float16": lambda: quantize([IMAGES.half()], image_net()),
    "is in float64: it is": lambda: quantize([IMAGES.double().numpy()], image_net()),
    "'labels' in": lambda: quantize([{"a": A, "b": B, "labels": LABELS}], two_inputs()),
    "'target' in": lambda: quantize([{"a": A, "b": B, "target": LABELS}], two_inputs()),
    "labels are no input": lambda: quantize([{"image": IMAGES, "label": LABELS}], image_net()),
    f"'pixels' {BATCHES} is the": lambda: quantize([{"pixels": IMAGES}], image_net()),
    f"calibrated on 1 sample{FEW}": lambda: quantize([IMAGES[:1]]),
    f"calibrated on 3 samples{FEW}": lambda: quantize([IMAGES[:3]], mode="dynamic"),
    f"calibrated on 8 samples{FEW}": lambda: calibrate(IMAGES[:8]),
    f"calibrated on 31 samples{FEW}": lambda: quantize(DataLoader(Samples(), 8), samples=31),
    "every value of input 'input' is 0 in": lambda: quantize([IMAGES * 0]),
    "every value of input 'input' is 0.5 in": lambda: quantize([IMAGES * 0 + 0.5]),
    "all 40 calibration samples are": lambda: quantize([IMAGES[:1].repeat(20, 1, 1, 1)] * 2),
    "samples are equal": lambda: quantize([IDS[:1].repeat(40, 1)], token_net()),
    "input 'input' has values from 0 to": lambda: quantize([BYTES.float()]),
    "label 'negative' is": lambda: class_numbers(texts("negative", "positive"), NAMES),
    "label 'Neg' is none of": lambda: class_numbers(texts("Neg", "Pos"), NAMES),
    "label 'neutral' is": lambda: class_numbers(texts("neg", "pos", "neutral"), NAMES),
}
"""Part of a note -> what the user does."""


def texts(*labels: str) -> list[Row]:
    return [Row(text="a cat", label=label) for label in labels]


@pytest.mark.usefixtures("here")
@cases(REFUSED)
def test_refused(mistake, kind, names):
    check_refused(mistake, kind, names)


@pytest.mark.parametrize("names", NOTED)
def test_noted(names, caplog):
    check_noted(NOTED[names], names, caplog)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_floats_are_converted(dtype: torch.dtype) -> None:
    one, other = (calibrate(IMAGES, x) for x in (IMAGES.to(dtype).float(), IMAGES.to(dtype)))
    assert one.statistics.keys() == other.statistics.keys()
    assert one.kept_samples.state().keys() == other.kept_samples.state().keys()


def test_images_among_arrays_are_left_out_with_a_note(caplog: pytest.LogCaptureFixture) -> None:
    Path("mixed").mkdir()
    np.save("mixed/x.npy", np.zeros((2, 3, 8, 8), "f4"))
    for name in ("a.png", "b.png"):
        Path("mixed", name).touch()
    with caplog.at_level("INFO", "qtool"):
        assert len(list(qtool.load_data("mixed"))) == 1
    said = "mixed has .npy or .npz files, which alone are read: a.png and 1 more is left out"
    assert said in caplog.text
