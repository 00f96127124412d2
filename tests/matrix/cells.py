"""The command of each cell of the matrix, and the cells that are refused."""

from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from tests.matrix.kinds import KINDS, SAMPLES, Kind

MODES = ("static", "dynamic", "weight-only", "weight-only-int4", "weight-only-int2")
MODES_OF = dict.fromkeys(("batch-1", "kept-part"), ("static",))
"""Modes of kinds that other kinds have in the other modes."""
BLOCKWISE = "blockwise"
"""`quantize` with little memory, of models that are files."""
COMMANDS = (
    "calibrate",
    "convert",
    "quantize",
    "verify",
    "inspect",
    "evaluate",
    "report",
    "compare",
    "bench",
    BLOCKWISE,
    "tune",
)
_SCHEMES = {
    "static": "static",
    "dynamic": "dynamic",
    "weight-only": "int8-weights",
    "weight-only-int4": "int4-weights",
    "weight-only-int2": "int2-weights",
}

NO_FILE = ("verify", "inspect", "evaluate", "report", "compare", "bench")
"""Commands on the file of `quantize`."""

_NO_LAYER = r"nothing in this model can run in integers on \w+: .*; use --mode static"
REFUSED: tuple[tuple[str, str, str, str], ...] = (
    # command, kind, mode, what the sentence says
    (BLOCKWISE, "encoder-decoder", "*", "no part of an encoder-decoder .*--memory"),
    ("*", "detector", "dynamic", _NO_LAYER),
    ("*", "tflite", "weight-only-int?", _NO_LAYER),
    ("calibrate", "tflite", "weight-only", "there is nothing to calibrate: .*`qtool quantize`"),
    ("*", "tflite", "weight-only", "no TFLite layer with integer weights .*; use --mode static"),
    ("compare", "encoder-decoder", "*", "the encoder computes it, .*`qtool report FILE --model"),
    # of lstm the ranges of inputs are calibrated: smooth-quant moves them into the weights
    ("calibrate", "[!l]*", "weight-only*", "there is nothing to calibrate: .*use `qtool quantize`"),
    ("bench", "batch-1", "*", "does not accept batch size 2; time what it takes, --batch-sizes"),
)
"""Cells that are refused; names are patterns of fnmatch, the sentence is a regular expression."""


def is_covered(command: str, kind: str, mode: str) -> bool:
    """Say whether a cell is in the covering set, in which each pair is once.

    A dead end is one of a pair: a command that cannot read a kind, a kind without a layer for a
    mode, a mode that a command does not know. `quantize` has each mode of each kind. Another
    command has one mode of each kind, the next command the next mode, so that each mode has each
    command with several kinds; where that mode is refused, the command has the next one that works.
    """
    if MODES_OF.get(kind) or command == "quantize":
        return mode in MODES_OF.get(kind, MODES)
    turn = (list(KINDS).index(kind) + COMMANDS.index(command)) % len(MODES)
    turns = MODES[turn:] + MODES[:turn]
    works = next((each for each in turns if not refusal(command, kind, each)), None)
    return mode in {turns[0], works}


def refusal(command: str, kind: str, mode: str) -> str | None:
    """Return what the refusal of a cell says; None for a cell that works."""
    for *patterns, sentence in REFUSED:
        if all(map(fnmatch, (command, kind, mode), patterns)):
            return sentence
    return None


def arguments(command: str, kind: Kind, mode: str, file: Path, folder: Path) -> list[str]:
    """Return the command line of a cell.

    Args:
        command: its name.
        kind: the model and its data.
        mode: value of --mode.
        file: the quantized file of the kind and mode; what `quantize` writes.
        folder: for other output.
    """
    return [
        "quantize" if command == BLOCKWISE else command,
        *_LINES[command](kind, mode, file, folder),
    ]


_QUICK = ("--accuracy", "fast")


def _data(kind: Kind) -> list[str]:
    return ["--data", kind.data, "--samples", SAMPLES, *kind.reading]


def _model(kind: Kind) -> list[str]:
    return [kind.model, *kind.loading]


def _calibrate(kind: Kind, mode: str, file: Path, folder: Path) -> list[str]:
    out = str(folder / f"{mode}.calib")
    return [*_model(kind), *_data(kind), *kind.target, "--mode", mode, *_QUICK, "-o", out]


def _convert(kind: Kind, mode: str, file: Path, folder: Path) -> list[str]:
    out = ["-o", str(folder / f"{mode}.converted{kind.suffix}"), "--seconds", "0"]
    own = folder / f"{mode}.calib"
    chosen = (
        ["--calibration", str(own)]
        if own.exists()
        else ["--calibration", str(folder / "static.calib"), "--mode", mode]
    )
    return [*_model(kind), *chosen, *kind.target, *out]


def _quantize(kind: Kind, mode: str, file: Path, folder: Path) -> list[str]:
    out = ["-o", str(file), "--seconds", "0"]
    return [*_model(kind), *_data(kind), *kind.target, "--mode", mode, *_QUICK, *out]


def _with_float(kind: Kind) -> list[str]:
    return ["--model", *_model(kind), *_data(kind)]


_LINES: dict[str, Callable[[Kind, str, Path, Path], list[str]]] = {
    "calibrate": _calibrate,
    "convert": _convert,
    "quantize": _quantize,
    "verify": lambda kind, mode, file, folder: [str(file), "--samples", SAMPLES],
    "inspect": lambda kind, mode, file, folder: [str(file)],
    "evaluate": lambda kind, mode, file, folder: [
        *(str(file), *_with_float(kind), *kind.labels, "--seconds", "0.01")
    ],
    "report": lambda kind, mode, file, folder: [
        *(str(file), *_with_float(kind), *kind.labels, "--seconds", "0.01"),
        *("--layer-samples", "2", "--budget", "2.5", "-o", str(folder / f"{mode}.report")),
    ],
    "compare": lambda kind, mode, file, folder: [
        *(str(file), str(_copy(file)), *_data(kind), *kind.processor, *kind.labels),
        *("--seconds", "0.01", "-o", str(folder / f"{mode}.compare")),
    ],
    "bench": lambda kind, mode, file, folder: [
        *(str(file), "--seconds", "0.01", "--precision", "1", "--batch-sizes", "1,2")
    ],
    "tune": lambda kind, mode, file, folder: [
        *(*_model(kind), *_data(kind), "--eval-data", kind.data, *kind.labels, *_QUICK),
        *("--choices", _SCHEMES[mode], "--evaluations", "1", "--min-sqnr", "-50"),
        *(*kind.target, "-o", str(folder / f"{mode}.tuned{kind.suffix}")),
    ],
    BLOCKWISE: lambda kind, mode, file, folder: [
        *(*_model(kind), *_data(kind), "--mode", mode, *_QUICK, "--memory", "1B"),
        *("--seconds", "0", "-o", str(folder / f"{mode}.blocks.onnx")),
    ],
}


def _copy(file: Path) -> Path:
    copy = file.with_suffix(f".copy{file.suffix}")
    copy.write_bytes(file.read_bytes())
    return copy
