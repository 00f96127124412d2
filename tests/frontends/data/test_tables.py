"""Tables as files: numbers for a model as they are, texts and conversations for its tokenizer."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from qtool.api.data import load_data
from qtool.core.array_batches import ArrayBatches
from qtool.core.errors import DataError
from qtool.frontends.data.collators import render_conversations
from qtool.frontends.data.rows import read_rows
from qtool.frontends.data.tables import read_table
from tests.named_cases import cases, named_cases

ROWS = [{"age": 20 + i, "height": i / 4, "price": 2.5 * i} for i in range(6)]
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def _separated(separator: str, index: bool = False) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        lines = [separator.join(["", *ROWS[0]] if index else ROWS[0])]
        for at, row in enumerate(ROWS):
            cells = [at, *row.values()] if index else row.values()
            lines.append(separator.join(map(str, cells)))
        (folder / "t.csv").write_text("\ufeff" + "\n".join(lines) + "\n\n", "utf-8")
        return folder / "t.csv"

    return write


def _json(content: Any, name: str = "t.json") -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text)
        return folder / name

    return write


def _parquet(folder: Path) -> Path:
    table = pytest.importorskip("pyarrow").Table.from_pylist(ROWS)
    pytest.importorskip("pyarrow.parquet").write_table(table, folder / "t.parquet")
    return folder / "t.parquet"


LINES = "\n".join(map(json.dumps, ROWS))
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}
INDEXED = {name: dict(enumerate(values)) for name, values in COLUMNS.items()}


@named_cases(
    "write",
    ("commas", _separated(",")),
    ("semicolons", _separated(";")),
    ("tabs", _separated("\t")),
    ("an index without a name", _separated(",", index=True)),
    ("objects", _json(ROWS)),
    ("objects inside", _json({"data": ROWS})),
    ("columns", _json(COLUMNS)),
    ("columns of pandas", _json(INDEXED)),
    ("an object per line", _json(LINES)),
    ("jsonl", _json(LINES, "t.jsonl")),
    ("parquet", _parquet),
)
def test_numbers_are_one_input(tmp_path, write):
    data = load_data(write(tmp_path), 4, labels="price")
    assert isinstance(data, ArrayBatches)
    assert torch.cat(list(data)).tolist() == [[20.0 + i, i / 4] for i in range(6)]
    assert data.labels.tolist() == COLUMNS["price"]


def test_a_part_of_a_table(tmp_path):
    data = load_data(_separated(",")(tmp_path), samples=3, column="height", labels="price")
    (batch,) = data
    assert batch.tolist() == [[0.0], [0.5], [1.0]]
    assert data.labels.tolist() == [0.0, 5.0, 10.0]


def test_labels_that_are_names(tmp_path):
    rows = [{"a": 1.0, "kind": "pear"}, {"a": 2.0, "kind": "apple"}]
    path = _json(rows)(tmp_path)
    assert load_data(path, labels="kind").labels.tolist() == [1, 0]
    assert load_data(path, labels="kind", classes="pear,apple").labels.tolist() == [0, 1]


@cases(
    "text, names",
    ("1.5,2\n3,4\n", None),
    ("5,0,0\n3,0,0\n", None),  # a digit and its pixels
    ("5.1,3.5,setosa\n4.9,,virginica\n", None),
    (",3.5\n4.9,1\n", None),  # a first value is missing
    ("39,State-gov,77516\n50,Private,83311\n", None),
    ("1.5\n2.5\n", None),
    ("0,1\n3,4\n", "0,1"),  # the names that pandas gives
    (",0,1\n0,3,4\n", ",0,1"),
    ("0\n1.5\n", "0"),
    ("2019,2020,2021\n1,2,3\n", "2019,2020,2021"),
    ("country,2019,2020\nFrance,2,3\n", "country,2019,2020"),
    ("id,7\n1,2\n", "id,7"),
    ("name,kind\nRex,dog\n", "name,kind"),
)
def test_whether_the_first_line_has_names(tmp_path, caplog, text, names):
    (tmp_path / "t.csv").write_text(text)
    table = read_table(tmp_path / "t.csv")
    lines, count = len(text.splitlines()), len(table)
    expected = ",".join(map(str, range(count))) if names is None else names
    assert ",".join(table) == expected
    assert len(next(iter(table.values()))) == (lines if names is None else lines - 1)
    assert ("is a sample, not names of columns" in caplog.text) == (names is None)


def test_columns_without_names_by_their_positions(tmp_path, caplog):
    (tmp_path / "t.csv").write_text("1.5,2,3\n3,4,5\n")
    data = load_data(tmp_path / "t.csv", column="0,1", labels="2")
    assert isinstance(data, ArrayBatches)
    assert next(iter(data)).tolist() == [[1.5, 2], [3, 4]]
    assert data.labels.tolist() == [3, 5]
    assert caplog.text.count("called by their positions, 0 to 2") == 1
    with pytest.raises(DataError, match=r"its columns are 0, 1, 2"):
        load_data(tmp_path / "t.csv", labels="price")


def test_lists_are_an_input(tmp_path):
    rows = [{"pixels": [[1, 2], [3, 4]]}] * 3
    (batch,) = load_data(_json(rows)(tmp_path))
    assert batch.shape == (3, 2, 2)


def test_texts_by_the_names_of_their_columns(tmp_path):
    rows = [{"review": "fine", "stars": 4.5, "text": "other"}]
    (row,) = read_rows(_json(rows)(tmp_path), ["review"], "stars")
    assert (row.text, row.label) == ("fine", 4.5)
    (tmp_path / "t.csv").write_text('text,label\n"a, b",1\n')
    (row,) = read_rows(tmp_path / "t.csv")
    assert (row.text, row.label) == ("a, b", 1)


@cases(
    "make, options, message",
    (_json([{"a": 1}]), {"column": "a,b"}, "t.json has no column 'b'"),
    (_json([{"a": 1}, {"a": None}]), {}, "t.json, row 2: the column 'a' holds no value"),
    (_json([]), {}, "t.json has no samples"),
    (_json("a,b\n1,2,3\n", "t.csv"), {}, "row 1 has 3 cells, the table has 2 columns"),
)
def test_what_is_no_table(tmp_path, make, options, message):
    with pytest.raises(DataError, match=message):
        load_data(make(tmp_path), **options)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": CHAT},
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
    ],
    ids=["messages", "from and value"],
)
def test_conversations_in_the_template_of_the_tokenizer(tmp_path, row):
    def template(messages: list[dict[str, str]], tokenize: bool) -> str:
        return "".join(f"<{m['role']}>{m['content']}" for m in messages)

    rows = read_rows(_json([row])(tmp_path))
    tokenizer = SimpleNamespace(chat_template="...", apply_chat_template=template)
    (rendered,) = render_conversations(rows, tokenizer, None)
    assert rendered.text == "<user>Hi<assistant>Hello"
    with pytest.raises(DataError, match="no chat template; give texts"):
        render_conversations(rows, SimpleNamespace(), None)


def test_types_of_columns(tmp_path):
    (tmp_path / "t.csv").write_text("a,b,c\n1,2,x\n2,2.5,y\n")
    types = {name: column.dtype for name, column in read_table(tmp_path / "t.csv").items()}
    assert types == {"a": np.int64, "b": np.float64, "c": object}
