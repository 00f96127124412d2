"""Rows of a benchmark are files that are written whole and read in an order of names."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rows import add_row, has_row, measured_on, read, rows_by_label, rows_of, write


def test_rows_come_back_in_the_order_of_names_with_their_machine(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write(tmp_path, {"network": name, "outcome": "ok"})
    write(tmp_path, {"network": "a", "outcome": "refused"})
    assert read(tmp_path, "a")["outcome"] == "refused"
    rows = rows_of(tmp_path, ["a", "missing", "b"])
    assert [r["network"] for r in rows] == ["a", "b"]
    (line,) = measured_on(rows).splitlines()
    assert line.startswith("Measured on ")
    assert rows[0]["machine"]["versions"]["torch"] in line


def test_a_row_is_added_once_unless_measuring_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, done = tmp_path / "measure.py", tmp_path / "rows" / "label"
    script.write_text('import sys; print(\'{"network": "a", "outcome": "%s"}\' % sys.argv[1])')
    for outcome, expected in (("failed", "failed"), ("ok", "ok"), ("refused", "ok")):
        add_row(done, "a", str(script), outcome)
        assert read(done, "a")["outcome"] == expected
        assert has_row(done, "a") is (expected == "ok")
    add_row(done, "b", str(script))  # ends with an error
    assert not has_row(done, "b")
    assert capsys.readouterr().out.splitlines()[-1] == "b: no row, exit code 1"
    (tmp_path / "rows" / "other").mkdir()
    rows = rows_by_label(tmp_path / "rows", ["a", "b"])
    assert {label: [row["network"] for row in each] for label, each in rows.items()} == {
        "label": ["a"]
    }
