"""A report folder is the old one or the new one, whenever the writer is killed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qtool.core.errors import FileError
from qtool.evaluation.report.page import folder as folder_module
from qtool.evaluation.report.page.folder import check_folder, replace_folder

NAMES = ("report.json", "report.md", "report.html")


def version(mark: str, size: int = 10) -> dict[str, bytes]:
    return {name: mark.encode() * size for name in NAMES}


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.mark.parametrize("exchange", [True, False])
def test_new_and_replaced(exchange, tmp_path, monkeypatch):
    if not exchange:
        monkeypatch.setattr(folder_module, "_exchange", lambda a, b: False)
    folder = tmp_path / "r"
    replace_folder(folder, version("a"))
    assert contents(folder) == version("a")
    replace_folder(folder, {"report.json": b"b"})
    assert contents(folder) == {"report.json": b"b"}
    assert list(tmp_path.iterdir()) == [folder]


def test_failure_leaves_the_old_report(tmp_path, monkeypatch):
    folder = tmp_path / "r"
    replace_folder(folder, version("a"))

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_module, "_write", full)
    with pytest.raises(FileError, match="No space left"):
        replace_folder(folder, version("b"))
    assert contents(folder) == version("a")
    assert list(tmp_path.iterdir()) == [folder]


def test_missing_parent(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="is not a directory"):
        check_folder(tmp_path / "file" / "folder")
    check_folder(tmp_path / "new" / "folder")
    assert not (tmp_path / "new").exists()


def test_unwritable_parent(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(FileError, match="is not writable"):
        check_folder(tmp_path / "r")


WRITER = """
import sys
from pathlib import Path
from qtool.evaluation.report.page import folder as folder_module
from qtool.evaluation.report.page.folder import replace_folder
folder = Path(sys.argv[1])
print("ready", flush=True)
i = 0
while True:
    mark = b"ab"[i % 2 : i % 2 + 1]
    replace_folder(folder, {n: mark * 200_000 for n in ("report.json", "report.md", "report.html")})
    i += 1
"""


def test_killed_at_random_times(tmp_path):
    """Whoever reads meets one whole version, during the writing and after kill -9."""
    folder, draw = tmp_path / "r", random.Random(0)
    seen = set()
    for _ in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout.readline() == "ready\n"
            time.sleep(draw.uniform(0.0, 0.12))
            writer.send_signal(signal.SIGKILL)
        if folder.exists():
            found = contents(folder)
            assert set(found) == set(NAMES)
            assert len(set(found.values())) == 1, "a mix of two versions"
            assert len(found["report.md"]) == 200_000, "a part of a file"
            seen.add(found["report.md"][:1])
    replace_folder(folder, version("c"))
    assert contents(folder) == version("c")
    assert list(tmp_path.iterdir()) == [folder], "what the killed left was not cleared"
    assert seen, "no run got as far as a report"
