"""A report written: the folder is checked before the work, and results kept until it is done."""

from __future__ import annotations

import pytest

from qtool.errors import FileError
from qtool.page import write_report
from qtool.store import Store
from tests.page.made_up import made_up


def test_measured_then_written(tmp_path):
    folder, extra = tmp_path / "r", tmp_path / "m"
    kept = []

    def measure(keep):
        assert not folder.exists()
        kept.append(keep)
        Store(keep).save("a", {})
        extra.write_bytes(b"model")
        return made_up()

    report = write_report(folder, measure, {"model.int8.onnx": extra})
    assert report == made_up()
    assert (folder / "report.json").read_text() == report.text()
    assert (folder / "model.int8.onnx").read_bytes() == b"model"
    assert not kept[0].exists()


def test_a_folder_of_something_else_is_refused_before_the_work(tmp_path):
    (tmp_path / "notes.txt").touch()
    asked = []
    with pytest.raises(FileError, match="no part of a report"):
        write_report(tmp_path, asked.append)
    assert asked == []


def test_a_failure_keeps_the_old_report_and_what_was_measured(tmp_path):
    folder = tmp_path / "r"
    write_report(folder, lambda keep: made_up())
    before = (folder / "report.json").read_bytes()

    def fails(keep):
        Store(keep).save("a", {})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_report(folder, fails)
    assert (folder / "report.json").read_bytes() == before
    assert [p.name for p in (tmp_path / ".r.resume").iterdir()] == ["a.npz"]
