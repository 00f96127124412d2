"""Rows of a benchmark are files that are written whole and read in an order of names."""

from __future__ import annotations

from pathlib import Path

from benchmarks.rows import measured_on, read, rows_of, write


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
