"""Each remedy of an error about data in files is applied: the next command works, or has another
true error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from torch import nn

import qtool
from qtool.core.errors import QtoolError
from qtool.core.remedies import Argument, DataEdit
from tests.mistakes.mistake import check_refused
from tests.mistakes.nets import IMAGES, price_net, token_net
from tests.mistakes.remedies import changed, offered, run

__all__ = ["offered"]  # a fixture

M = "tests.mistakes.nets"
NET = f"{M}:price_net"
TO = "-o out.onnx"
COMMANDS: dict[str, tuple[str, str, dict[str, str]]] = {
    "the number to predict among the inputs": (
        f"quantize {NET} --data prices.csv {TO}",
        "columns a, b, c, price: choose the 3 that the model takes with --column a,b,c",
        {},
    ),
    "the number to predict, where a file is evaluated": (
        f"evaluate int8.onnx --model {NET} --data prices.csv",
        "choose the 3 that the model takes with --column a,b,c",
        {},
    ),
    "the number to predict, where files are timed": (
        "bench int8.onnx --data prices.csv --seconds 0.01",
        "choose the 3 that the model takes with --column a,b,c",
        {},
    ),
    "the number to predict, where a file is checked": (
        "verify int8.onnx --data prices.csv",
        "choose the 3 that the model takes with --column a,b,c",
        {},
    ),
    "the number to predict, in a gate": (
        "gate int8.onnx --against int8.onnx --data prices.csv",
        "choose the 3 that the model takes with --column a,b,c",
        {},
    ),
    "row numbers among the inputs": (
        f"quantize {NET} --data numbered.csv --labels price {TO}",
        "choose the 3 that the model takes with --column a,b,c",
        {},
    ),
    "a column of texts": (
        f"quantize {NET} --data cities.csv --labels price {TO}",
        "choose the numbers with --column a,b,c, or choose the text with --column city",
        {"city": "no preprocessing found for these texts"},
    ),
    "a column of texts among those of numbers": (
        f"quantize {NET} --data cities.csv --column a,b,c,city {TO}",
        "choose the numbers alone with --column a,b,c",
        {},
    ),
    "texts without a usual name": (
        f"quantize {M}:token_net --data titles.csv {TO}",
        "choose the text with --column title (a text, or two: title, body)",
        {"title": "no preprocessing found for these texts"},
    ),
    "images for labels": (
        f"quantize {M}:image_net --data shapes.npz --labels image {TO}",
        "an input, and inputs from label; name the array of labels with --labels label",
        {},
    ),
    "an input of the file for labels": (
        f"quantize images.onnx --data kinds.npz --labels image {TO}",
        "an input, and inputs from kind; name the array of labels with --labels kind",
        {},
    ),
}
"""Mistake -> command, what it must say, and value -> the other error that the next command has."""


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(40, 3)).round(3)
    table = np.c_[inputs, inputs.sum(1).round(3)].tolist()
    _write("prices.csv", "a,b,c,price", table)
    _write("numbered.csv", "id,a,b,c,price", [[i, *row] for i, row in enumerate(table)])
    _write("cities.csv", "a,b,c,city,price", [[*row[:3], "Rome", row[3]] for row in table])
    _write("titles.csv", "title,body,label", [["a cat", "a dog", i % 2] for i in range(40)])
    _write("two.csv", "a,b,c,price,rent", [[*row, row[3]] for row in table])
    np.savez("shapes.npz", image=IMAGES, label=np.arange(40) % 5)
    np.savez("kinds.npz", image=IMAGES, kind=np.arange(40) % 4)
    for name, cell in (("mixed.csv", "n/a"), ("blank.csv", ""), ("nan.csv", "nan")):
        _write(name, "a,b,c,price", [[*row[:2], cell, row[3]] for row in table[:1]], *table)


def _write(name: str, head: str, rows: list[Any], *more: Any) -> None:
    rows = [*more[:17], *rows, *more[17:]]
    Path(name).write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]))


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("file") / "int8.onnx"
    data = [np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)]
    qtool.quantize(price_net(), data, accuracy="fast").export(path)
    return path


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with an input called image, and a score for each of four classes."""
    path = tmp_path_factory.mktemp("file") / "images.onnx"
    weights = f"float[4, 3, 8, 8] w = {{{', '.join(str(k / 768) for k in range(768))}}}"
    graph = f"g (float[n, 3, 8, 8] image) => (float[n, 4] y) <{weights}>"
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    nodes = "{ c = Conv (image, w) y = Flatten (c) }"
    onnx.save(onnx.parser.parse_model(f"{head} {graph} {nodes}"), path)
    return path


@pytest.mark.parametrize(("command", "expected", "then"), COMMANDS.values(), ids=COMMANDS)
def test_a_command_with_the_remedy(
    command: str,
    expected: str,
    then: dict[str, str],
    offered: list[QtoolError],
    int8: Path,
    images: Path,
) -> None:
    Path("int8.onnx").symlink_to(int8)
    Path("images.onnx").symlink_to(images)
    code, said = run(command.split())
    assert (code, expected in said) == (2, True), said
    remedies = [r for e in reversed(offered) if str(e) in said for r in e.remedies]
    remedies = [r for r in remedies if not isinstance(r, DataEdit)]
    assert remedies
    for remedy in remedies:
        assert isinstance(remedy, Argument)
        code, said = run(changed(command.split(), remedy))
        other = then.get(str(remedy.value))
        assert (code == 2, other or "") == (other is not None, other or ""), said
        assert (other or "") in said


ROWS = {
    "mixed.csv": "mixed.csv, row 18: the column 'c' holds 'n/a', the others numbers; repair or",
    "blank.csv": "blank.csv, row 18: the column 'c' holds no value, the others numbers; repair or",
    "nan.csv": "nan.csv, row 18: the column 'c' holds no value, the others numbers; repair or",
}


@pytest.mark.parametrize(("name", "expected"), ROWS.items(), ids=ROWS)
def test_a_row_without_a_number(name: str, expected: str) -> None:
    check_refused(lambda: list(qtool.load_data(name, labels="price")), expected)
    repaired = Path(name).read_text().splitlines()
    del repaired[18]
    Path(name).write_text("\n".join(repaired))
    assert len(list(qtool.load_data(name, labels="price"))) == 2


SPELLINGS = {
    "semi.csv": ("a;b;c\n1,5;2,5;3,5\n", "write column 'a' as numbers ... (this one is '1,5')"),
    "thousands.csv": ('a,b,c\n"1,000",1,2\n', "write column 'a' as ... (this one is '1,000')"),
    "shares.csv": ("a,b,c\n1,10 %,2\n", "write column 'b' as ... (this one is '10 %')"),
    "dates.csv": ("when,a,b\n2020-01-01,1,2\n", "choose the numbers with column='a,b'"),
    "x.xlsx": ("", "or package.module:function; save it as .csv"),
    "photos.zip": ("", "or package.module:function; unpack it, and give the folder"),
    "x.h5": ("", "or package.module:function; save its array with numpy.save"),
    "cat.png": ("", "or package.module:function; give its folder"),
}


@pytest.mark.parametrize(("name", "case"), SPELLINGS.items(), ids=SPELLINGS)
def test_other_forms_of_data(name: str, case: tuple[str, str]) -> None:
    Path(name).write_text(case[0])
    check_refused(lambda: qtool.load_data(name), case[1])


def test_true_and_false_are_numbers() -> None:
    Path("flags.csv").write_text("a,b\nTrue,0.5\nfalse,1.5\n")
    (batch,) = qtool.load_data("flags.csv")
    assert batch.tolist() == [[1, 0.5], [0, 1.5]]


VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "no batch": ({"batch_size": 0}, "batch_size is 0; give a whole number of at least 1"),
    "a text as batch size": ({"batch_size": "8"}, "batch_size is '8'; give a whole number of at"),
    "no samples": ({"samples": 0}, "samples is 0; give a whole number of at least 1 or None"),
    "a share above 1": (
        {"unreadable": 5},
        "unreadable is 5; give a finite number of at least 0 and",
    ),
    "a number as column": ({"column": [1]}, "'column' has 1; give names of columns"),
    "labels as numbers": ({"labels": [0, 1]}, "labels is a list; give the name of a column"),
}


@pytest.mark.parametrize(("options", "expected"), VALUES.values(), ids=VALUES)
def test_values_of_load_data(options: dict[str, Any], expected: str) -> None:
    check_refused(lambda: qtool.load_data("prices.csv", **options), expected)


def test_several_numbers_to_predict() -> None:
    data = qtool.load_data("two.csv", labels="price,rent")
    assert data.labels.shape == (40, 2)
    assert next(iter(data)).shape == (32, 3)


class Frame(dict[str, Any]):
    """Stands for a DataFrame of pandas or polars."""

    columns = property(list)
    to_numpy = None


def frame_of(*names: str) -> Frame:
    return Frame({name: np.ones(40, np.float32) for name in names})


def test_a_data_frame_with_the_number_to_predict() -> None:
    check_refused(
        lambda: qtool.quantize(price_net(), frame_of("a", "b", "c", "price")),
        "choose the columns of the input (frame[['a', 'b', 'c']]); they are a, b, c, price",
    )
    qtool.quantize(price_net(), frame_of("a", "b", "c"), accuracy="fast")


def test_a_data_frame_with_coordinates() -> None:
    qtool.quantize(price_net(), frame_of("x", "y", "z"), accuracy="fast")
    line = nn.Linear(1, 1).eval()  # x alone
    qtool.quantize(line, frame_of("x", "y"), accuracy="fast")


def test_an_input_with_a_usual_name_of_labels() -> None:
    check_refused(
        lambda: qtool.quantize(price_net(), frame_of("a", "b", "target")),
        "the column 'target' is left out by its name, and the model takes it: give the numbers "
        "alone (frame.to_numpy('float32'))",
    )
    qtool.quantize(price_net(), np.ones((40, 3), np.float32), accuracy="fast")
    _write("targets.csv", "a,b,target", [[i / 9, 1, i % 3] for i in range(40)])
    words = f"quantize {NET} --data targets.csv {TO}".split()
    code, said = run(words)
    assert "and the model takes it: give --column a,b,target" in said
    assert (code, run([*words, "--column", "a,b,target"])[0]) == (2, 0)


def test_masks_next_to_classes() -> None:
    np.savez("masks.npz", image=IMAGES, mask=IMAGES, label=np.arange(40))
    data = qtool.load_data("masks.npz", labels="mask")
    assert next(iter(data)).keys() == {"image", "label"}  # a model that takes no label drops it


def test_a_table_that_no_choice_of_columns_mends() -> None:
    check_refused(
        lambda: qtool.quantize(token_net(), qtool.load_data("prices.csv")),
        "the model does not run on the given inputs ... these have fractions; give whole numbers",
    )
