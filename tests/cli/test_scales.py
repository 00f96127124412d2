"""`qtool convert --scales`: from another tool's file to a verified one, without data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from onnxruntime.quantization import CalibrationDataReader, quantize_static

from tests.cli.conftest import Cli
from tests.cli.float_onnx import write_float_onnx


class _Reader(CalibrationDataReader):
    def __init__(self, x: Any) -> None:
        self.batches = iter([{"x": x}])

    def get_next(self) -> Any:
        return next(self.batches, None)


def test_a_file_of_scales_becomes_a_verified_file(cli: Cli, tmp_path: Path) -> None:
    x = write_float_onnx(tmp_path)
    source, other, written = (str(tmp_path / f"{n}.onnx") for n in ("float", "other", "own"))
    quantize_static(source, other, _Reader(x))
    result = cli("convert", source, "--scales", other, "--seconds", "0", "--json", "-o", written)
    notes = " ".join(json.loads(result.stdout)["notes"])
    assert f"of 5 scales are those of {other} (onnx.quantize)" in notes
    assert "no step recovers accuracy" in notes
    assert cli("verify", written).stdout.startswith(f"{written}  verified\n")


def test_scales_are_not_overwritten(cli: Cli, tmp_path: Path) -> None:
    x = write_float_onnx(tmp_path)
    source, other = (str(tmp_path / f"{n}.onnx") for n in ("float", "other"))
    quantize_static(source, other, _Reader(x))
    assert "input" in cli.refuses("convert", source, "--scales", other, "-o", other)
