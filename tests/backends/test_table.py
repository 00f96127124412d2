"""The formats of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from qtool.backends.open_files import READABLE, is_model
from qtool.backends.table import FORMATS, format_of, open_file
from qtool.core import option_names
from qtool.core.errors import FileError
from qtool.planning.targets import TARGETS


def test_the_command_line_names_them() -> None:
    names = [name for f in FORMATS for name in f.names]
    assert sorted(names) == sorted(option_names.FORMATS)
    assert {f.suffix: f.names[0] for f in FORMATS} == option_names.MODEL_FORMATS
    assert [f.suffix for f in FORMATS] == [f.suffix for f in READABLE]


def test_every_format_of_a_target_has_a_writer() -> None:
    for target in TARGETS.values():
        for name in target.file.formats:
            assert name in format_of(name).names


def test_a_file_is_opened_by_its_contents(tmp_path: Path) -> None:
    other = tmp_path / "model.bin"
    other.write_bytes(b"\0\0\0\0TFL3" + b"\0" * 8)
    assert is_model(other)
    assert is_model(Path("model.onnx"))
    assert not is_model(Path("calibration.safetensors"))
    with pytest.raises(FileError, match="no such file"):
        open_file(tmp_path / "none.onnx")
