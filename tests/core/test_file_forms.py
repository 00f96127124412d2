"""What a file is by its first bytes."""

import os
from pathlib import Path

import pytest

from qtool.core.file_forms import is_tflite

MARK = bytes(4) + b"TFL3"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.tflite", b"", True),
        ("a.TFLITE", b"", True),
        ("a.bin", MARK, True),
        ("a.bin", MARK + bytes(20), True),
        ("a.bin", MARK[:7], False),
        ("a.bin", b"TFL3", False),
        ("a.onnx", b"", False),
    ],
)
def test_a_file_of_tflite(tmp_path: Path, name: str, content: bytes, expected: bool) -> None:
    (tmp_path / name).write_bytes(content)
    assert is_tflite(tmp_path / name) is expected


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert not is_tflite(tmp_path / "pipe")
    assert not is_tflite(tmp_path)
    assert not is_tflite(tmp_path / "none")
    assert is_tflite(tmp_path / "none.tflite")
