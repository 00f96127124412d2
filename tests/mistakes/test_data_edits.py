"""Each change of the data that an error names is made: the next call works."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

import qtool
from qtool.backends.session import PortInfo
from qtool.core.array_batches import whole_arrays
from qtool.core.columns import InputNames, table_arrays
from qtool.core.data.arguments import Arguments
from qtool.core.data.batch import Batch, to_tensor
from qtool.core.data.batches import batches, batches_of_size
from qtool.core.frame_columns import in_column_order, split_labels
from qtool.core.remedies import DataEdit
from qtool.evaluation.feeder import Feeder
from qtool.frontends.data.class_order import chosen_classes
from qtool.frontends.data.recordings import unroll_recordings
from qtool.metrics.labels import check_classes, check_labels, check_no_names
from tests.core.test_array_batches import Frame
from tests.mistakes.nets import (
    IMAGES,
    Samples,
    captured,
    flat_net,
    image_net,
    quantize,
    two_inputs,
)
from tests.mistakes.remedies import Edit, check_edit

A, B = torch.randn(40, 4), torch.randn(40, 5)


def read(*items: Any, model: Any = None) -> Callable[[], object]:
    """Return the reading of batches for a model."""
    return lambda: [b.check_finite(i) for i, b in enumerate(batches(list(items), model))]


def captured_on(net: Callable[[], Any], batch: Any) -> Callable[[], object]:
    return lambda: qtool.capture_model(net(), batch)


def columns(*names: str, **arrays: Any) -> Callable[[], object]:
    """Return the inputs of a table with these arrays, of columns that a user chose or of all."""
    held = {
        k: np.array(v, dtype=object if isinstance(v[0], list) else None) for k, v in arrays.items()
    }
    held = {k: v for k, v in held.items() if not names or k in names}
    return lambda: table_arrays(held, InputNames(frozenset({"x"}), frozenset({"x"})))


def branches(**arrays: torch.Tensor) -> Callable[[], object]:
    """Return the inputs of `two_inputs` from a table of these columns of lists."""
    return lambda: table_arrays({k: v.numpy() for k, v in arrays.items()}, TWO)


NAMES = ["cat", "dog"]
TWO = Arguments.of(two_inputs())


def frame(*names: str) -> Callable[[], object]:
    def call() -> None:
        table = Frame(a=np.ones(40), b=np.ones(40))
        table.columns = list(names)
        whole_arrays(table)

    return call


class Region(nn.Module):
    """Embeds a category of four."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(4, 3), nn.Linear(7, 2)
        self.eval()

    def forward(self, x: torch.Tensor, region: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat([x, self.table(region)], 1))


class Positions(nn.Module):
    """Embeds tokens, and the first four positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(16, 3), nn.Embedding(4, 3)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tokens(x) + self.positions(torch.arange(x.shape[1]))


def read_all(data: Any) -> Callable[[], object]:
    return lambda: whole_arrays(data)


def table(text: str, name: str = "t.csv", **options: Any) -> Callable[[], object]:
    def call() -> None:
        Path(name).write_text(text)
        list(qtool.load_data(name, **options))

    return call


def labels(values: Any, samples: int = 40) -> Callable[[], object]:
    return lambda: check_labels(values, samples)


def classes(*values: float) -> Callable[[], object]:
    return lambda: check_classes(np.array(values), 5)


def order(names: str) -> Callable[[], object]:
    return lambda: chosen_classes(Path("t.csv"), names)


class Cell(torch.nn.Module):
    """A step of a recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + h


def recording(**arrays: torch.Tensor) -> Callable[[], object]:
    return lambda: list(unroll_recordings(Cell().eval(), [arrays], {"output": "h"}))


def integers(kind: str, *values: Any) -> Callable[[], object]:
    """Return the reading of images for an input of integers."""
    session: Any = SimpleNamespace(inputs=[PortInfo("x", f"tensor({kind})", ("n", 3, 8, 8))])
    return lambda: [Feeder(session).fit([np.asarray(each)], 0) for each in values]


STEPS, FIRST = torch.randn(5, 3), torch.zeros(1, 3)
EDITS: dict[str, Edit] = {
    "give tensors, tuples of tensors or dicts of tensors (images through a transform, texts "
    "through a tokenizer)": (read("a cat"), read(IMAGES)),
    "give the dataset a transform that returns tensors": (
        lambda: list(batches(DataLoader([Image.new("RGB", (8, 8))] * 4))),
        lambda: list(batches(DataLoader([torch.zeros(3, 8, 8)] * 4))),
    ),
    "give numbers": (lambda: to_tensor(np.array(["cat"])), lambda: to_tensor(np.array([1.0]))),
    "give a dense tensor": (read(IMAGES.to("meta")), read(IMAGES)),
    "name its entries as the arguments": (
        captured_on(two_inputs, {"left": A, "right": B}),
        captured_on(two_inputs, {"a": A, "b": B}),
    ),
    "give tensors or tuples in the order of the arguments": (
        captured_on(two_inputs, {"left": A, "right": B}),
        captured_on(two_inputs, (A, B)),
    ),
    "give qtool.load_data({})": (
        lambda: quantize("t.npy"),
        lambda: quantize(qtool.load_data("t.npy")),
    ),
    "give DataLoader(data, batch_size=32), or batch_size=None if its items are batches": (
        lambda: quantize(Samples()),
        lambda: quantize(DataLoader(Samples(), batch_size=32)),
    ),
    "give arrays of all samples, or a list of batches": (
        lambda: quantize({"x": 3}),
        lambda: quantize({"x": IMAGES}),
    ),
    "pad them to one size": (
        lambda: list(batches_of_size(2, iter([Batch((A[:1],)), Batch((B[:1],))]))),
        lambda: list(batches_of_size(2, iter([Batch((B[:1],)), Batch((B[1:2],))]))),
    ),
    "remove empty batches": (read(IMAGES[:0]), read(IMAGES)),
    "remove or repair that sample": (read(IMAGES / 0), read(IMAGES)),
    "give at least one batch": (lambda: quantize([]), lambda: quantize([IMAGES])),
    "give at least one": (
        lambda: qtool.capture_model(image_net(), None),
        lambda: qtool.capture_model(image_net(), IMAGES),
    ),
    "choose the columns of one input": (
        columns(a=[[1, 2], [3, 4]], b=[1, 2]),
        columns("a", a=[[1, 2], [3, 4]], b=[1, 2]),
    ),
    "name the columns as the inputs": (branches(c=A, d=B), branches(a=A, b=B)),
    "give an array per input, in a dict or an .npz file": (
        branches(c=A, d=B),
        lambda: quantize({"a": A, "b": B}, two_inputs()),
    ),
    "give the columns of the calibration data, by their names": (
        lambda: in_column_order(Frame(a=A, b=B), ["b", "c"]),
        lambda: in_column_order(Frame(a=A, b=B, c=A), ["b", "c"]),
    ),
    "give the values": (
        lambda: split_labels(Frame(a=A, b=B), "price"),
        lambda: split_labels(Frame(a=A, b=B), B),
    ),
    "number them in alphabetical order, if the model's classes are, with "
    "numpy.unique(labels, return_inverse=True)[1]": (
        lambda: check_no_names(NAMES),
        lambda: check_no_names(np.unique(NAMES, return_inverse=True)[1]),
    ),
    "give indices (token ids, categories) and lengths that the tables of the model have": (
        captured_on(Region, (A, torch.arange(40) % 9)),
        captured_on(Region, (A, torch.arange(40) % 4)),
    ),
    "rename one": (frame("a", "a"), frame("a", "b")),
    "give rows of one length": (read_all([[1.0, 2.0], [1.0]]), read_all([[1.0, 2.0], [1.0, 2.0]])),
    "give all samples as one array": (
        lambda: quantize(list(torch.randn(40, 12)), flat_net()),
        lambda: quantize(torch.randn(40, 12), flat_net()),
    ),
    "give it as numbers, as the model was trained, or leave it out": (
        columns(a=["x", "y"]),
        columns(a=[0, 1]),
    ),
    "quote texts that hold separators": (table("a,b\n1,5,0\n2,1\n"), table('a,b\n"1",0\n2,1\n')),
    "give samples of one kind": (
        table('{"text": "a"}\n{"image": "a.png"}\n', "t.jsonl"),
        table(
            '{"image": "a.png"}\n{"image": "a.png"}\n',
            "t.jsonl",
            transform="tests.mistakes.nets:tensor_of",
        ),
    ),
    "pass one of their fields": (
        labels(np.zeros(40, "i4,i4")),
        labels(np.zeros(40, "i4,i4")["f0"]),
    ),
    "pass one class number per sample": (labels(np.eye(40)), labels(np.eye(40).argmax(1))),
    "pass one per sample": (labels([0] * 7), labels([0] * 40)),
    "pass class numbers, whole and from 0": (classes(0.3, 0.7), classes(0, 1)),
    "{}": (classes(1, 2, 5), classes(0, 1, 4)),
    "give the name of each class once, in the order of the model's outputs": (
        order("cat,dog,cat"),
        order("cat,dog"),
    ),
    "give a list, [{}]": (
        lambda: qtool.bench(["x.onnx"], batch_sizes=4),  # type: ignore[arg-type]  # a number
        lambda: [4],
    ),
    "give a row per step for each input that is no state": (
        recording(x=torch.tensor(1.0), h=FIRST),
        recording(x=STEPS, h=FIRST),
    ),
    "give its first value in each recording, under that name, and its output with {}": (
        recording(x=STEPS),
        recording(x=STEPS, h=FIRST),
    ),
    "give tensors (images through a transform, texts through a tokenizer)": (
        lambda: quantize([["a.png"]], image_net()),
        lambda: quantize([IMAGES], image_net()),
    ),
    "its values are {} to {}, with fractions or beyond {}: give the integers that the model was "
    "trained on, of an image those before it was normalised": (
        integers("uint8", IMAGES),
        integers("uint8", (IMAGES * 50).clamp(0, 255).to(torch.uint8)),
    ),
    "give batches of the types and shapes that the model was trained on": (
        captured_on(image_net, IMAGES.permute(0, 2, 3, 1)),
        captured_on(image_net, IMAGES),
    ),
    "it has one number per sample, as labels have: give the inputs": (
        captured_on(image_net, torch.ones(40)),
        captured_on(image_net, IMAGES),
    ),
}
"""Edit -> (a call that is refused with it, the call after the edit)."""


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    np.save("t.npy", IMAGES.numpy())
    Image.new("RGB", (8, 8)).save("a.png")
    captured()


@pytest.mark.parametrize("text", EDITS)
def test_the_next_call_works(text: str) -> None:
    check_edit(DataEdit, text, EDITS[text])
