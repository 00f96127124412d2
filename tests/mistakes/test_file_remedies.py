"""Remedies of errors about tables and data frames are applied: the next call works."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import qtool
from tests.mistakes.files import NUMBERS, write_table
from tests.mistakes.mistake import check_refused
from tests.mistakes.nets import IMAGES, price_net
from tests.mistakes.remedies import run

M = "tests.mistakes.nets"
NET = f"{M}:price_net"


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    write_table(folder / "prices.csv", "a,b,c,price", NUMBERS)
    write_table(folder / "two.csv", "a,b,c,price,rent", [[*row, row[3]] for row in NUMBERS])
    for name, cell in (("mixed.csv", "n/a"), ("blank.csv", ""), ("nan.csv", "nan")):
        row = [*NUMBERS[0][:2], cell, NUMBERS[0][3]]
        write_table(folder / name, "a,b,c,price", [*NUMBERS[:17], row, *NUMBERS[17:]])


ROWS = {"mixed.csv": "holds 'n/a', the others numbers"} | dict.fromkeys(
    ("blank.csv", "nan.csv"), "holds no value, the others numbers"
)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_without_a_number(name: str) -> None:
    said = f"{name}, row 18: the column 'c' {ROWS[name]}"
    check_refused(lambda: list(qtool.load_data(name, labels="price")), "DataError DataEdit", said)
    repaired = Path(name).read_text().splitlines()
    del repaired[18]
    Path(name).write_text("\n".join(repaired))
    assert len(list(qtool.load_data(name, labels="price"))) == 2


def test_true_and_false_are_numbers() -> None:
    Path("flags.csv").write_text("a,b\nTrue,0.5\nfalse,1.5\n")
    (batch,) = qtool.load_data("flags.csv")
    assert batch.tolist() == [[1, 0.5], [0, 1.5]]


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
        lambda: qtool.quantize(price_net(), frame_of("a", "b", "c", "price"), accuracy="fast"),
        "CaptureError DataEdit",
        "(input 0: float32[32, 4])",
    )
    qtool.quantize(price_net(), frame_of("a", "b", "c"), accuracy="fast")


def test_a_data_frame_with_coordinates() -> None:
    qtool.quantize(price_net(), frame_of("x", "y", "z"), accuracy="fast")
    line = nn.Linear(1, 1).eval()  # x alone
    qtool.quantize(line, frame_of("x", "y"), accuracy="fast")


def test_an_input_with_a_usual_name_of_labels() -> None:
    write_table(Path("targets.csv"), "a,b,target", [[i / 9, 1, i % 3] for i in range(40)])
    words = f"quantize {NET} --data targets.csv -o out.onnx".split()
    code, said = run(words)
    assert "the column 'target' is left out: it is no input" in said
    assert (code, run([*words, "--column", "a,b,target"])[0]) == (2, 0)


def test_masks_next_to_classes() -> None:
    np.savez("masks.npz", image=IMAGES, mask=IMAGES, label=np.arange(40))
    data = qtool.load_data("masks.npz", labels="mask")
    assert next(iter(data)).keys() == {"image", "label"}  # a model that takes no label drops it
