"""The files that cases read, each made once in the working folder when a line names it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from click.testing import CliRunner, Result

from tests.reference.cases import CACHE, CALIBRATION, CNN, DECODER

if TYPE_CHECKING:
    from tests.matrix.kinds import Kind

ROOT = Path(__file__).parents[2]
OUT = Path("out")


def run(arguments: list[str]) -> Result:
    from qtool.cli import main

    return CliRunner().invoke(main, arguments, prog_name="qtool")


def made(arguments: list[str]) -> None:
    """Run a command that writes an input."""
    result = run(arguments)
    assert result.exit_code == 0, (arguments, result.output, result.exception)


def arguments(line: str) -> list[str]:
    """Return the arguments of a line, after its inputs are there."""
    if not line.startswith("@"):
        words = shlex.split(line)
        for word in words:
            _provide(word)
        return words
    return _cell(*line[1:].split())


def _cell(command: str, name: str, mode: str) -> list[str]:
    from tests.matrix import cells

    kind = _kind(name)
    file = Path(name) / f"{mode}{kind.suffix}"
    if command in cells.NO_FILE and not file.exists():
        made(cells.arguments("quantize", kind, mode, file, OUT))
    return cells.arguments(command, kind, mode, file, OUT)


@cache
def _kind(name: str) -> Kind:
    from tests.matrix.kinds import KINDS

    Path(name).mkdir()
    kind = KINDS[name](Path(name))
    return replace(kind, **{f.name: _relative(getattr(kind, f.name)) for f in fields(kind)})


def _relative(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """Return paths of the checkout as those of the working folder."""
    if isinstance(value, tuple):
        return tuple(v.replace(f"{ROOT}/", "") for v in value)
    return value.replace(f"{ROOT}/", "")


def _provide(word: str) -> None:
    """Make the input that a word names, unless it is there."""
    for name in (word, word.partition("/")[0]):
        if name in INPUTS and not Path(name).exists():
            INPUTS[name]()


def _base() -> None:
    from tests.base_files import write

    Path("base").mkdir()
    write(Path("base"))


def _calibration() -> None:
    made(shlex.split(f"calibrate {CNN} {CALIBRATION} -o digits.calib"))


def _foreign() -> None:
    """Write base/float.onnx as onnxruntime.quantization quantizes it."""
    import numpy as np
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            with np.load("calib_data/digits/images.npz") as file:
                self.batches: Iterator[np.ndarray] = iter(np.split(file["x"][:64], 4))

        def get_next(self) -> dict[str, np.ndarray] | None:
            batch = next(self.batches, None)
            return None if batch is None else {"x": batch}

    _provide("base")
    quantize_static("base/float.onnx", "foreign.onnx", Reader(), per_channel=True)


def _llama() -> None:
    from tests.matrix.kinds import save_llama

    save_llama(Path("llama"))


def _decoder() -> None:
    _provide("llama")
    made(shlex.split(f"quantize {DECODER} {CACHE} -o decoder.onnx"))


def _table() -> None:
    import numpy as np

    values = np.random.default_rng(0).normal(size=(64, 5))
    np.savetxt("table.csv", values, delimiter=",", header="a,b,c,d,price", comments="")


INPUTS: Mapping[str, Callable[[], object]] = {
    "base": _base,
    "digits.calib": _calibration,
    "foreign.onnx": _foreign,
    "table.csv": _table,
    "llama": _llama,
    "decoder.onnx": _decoder,
}
"""Path, or the first part of it -> function that makes it."""
