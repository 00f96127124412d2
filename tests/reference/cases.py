"""The cases: command lines, and cells of the matrix."""

from collections.abc import Mapping
from dataclasses import dataclass

from qtool.cli import COMMANDS

TEXT, JSON = "", "--json"
BOTH = (TEXT, JSON)


@dataclass(frozen=True)
class Case:
    """What is run.

    Attributes:
        line: arguments of `qtool`; "@COMMAND KIND MODE" for a cell of tests/matrix.
        forms: what is added to the line, a run for each.
        base: whether it also runs where torch cannot be imported.
        quick: whether `make test` has it; the others are for `make matrix`.
    """

    line: str
    forms: tuple[str, ...] = BOTH
    base: bool = False
    quick: bool = False


CNN = "examples.digits.network:digits_net --weights examples/digits/weights.safetensors"
CALIBRATION = "--data calib_data/digits"
EVAL = "--data examples/digits/eval.npz --labels labels"
FLOAT = f"--model base/float.onnx {EVAL}"
TABLE = "tests.cli.models:first_columns"
GATE = f"--against base/float.onnx {EVAL} --metric top-1 --max-drop 0.02"
FAST = "--accuracy fast"
TARGET = "--target tflite"
DECODER = "llama --data llama/texts.txt"
TASK = "--task text-generation-with-past"
CACHE = f"{TASK} --mode weight-only-int4 {FAST}"

_CNN: Mapping[str, Case] = {
    "cnn-quantize-verbose": Case(f"quantize {CNN} {CALIBRATION} {FAST} -vv -o out/a.onnx", (TEXT,)),
    "cnn-calibrate": Case(f"calibrate {CNN} {CALIBRATION} -o out/a.calib"),
    "cnn-inspect-calibration": Case("inspect digits.calib"),
    "cnn-merge": Case("merge digits.calib digits.calib -o out/b.calib"),
    "cnn-convert": Case(f"convert {CNN} --calibration digits.calib {FAST} -o out/a.onnx"),
    "cnn-evaluate": Case(f"evaluate base/int8.onnx --model {CNN} {EVAL}"),
    "cnn-report": Case(f"report base/int8.onnx --model {CNN} {EVAL} -o out/r", (TEXT,)),
    "cnn-dynamic": Case("@quantize cnn dynamic", (TEXT,)),
    "cnn-weight-only": Case("@quantize cnn weight-only", (TEXT,)),
}
_KINDS: Mapping[str, Case] = {
    "detector-quantize": Case("@quantize detector static"),
    "detector-evaluate": Case("@evaluate detector static"),
    "detector-report": Case("@report detector static", (TEXT,)),
    "lstm-quantize": Case("@quantize lstm static"),
    "lstm-quantize-int4": Case("@quantize lstm weight-only-int4", (TEXT,)),
    "lstm-verify": Case("@verify lstm static"),
    "lstm-evaluate": Case("@evaluate lstm static", (TEXT,)),
    "encoder-quantize": Case("@quantize classifier static"),
    "encoder-quantize-dynamic": Case("@quantize classifier dynamic", (TEXT,)),
    "encoder-evaluate": Case("@evaluate classifier static", (JSON,)),
    "decoder-quantize": Case(
        f"quantize {DECODER} --task text-generation {FAST} -o out/a.onnx", (TEXT,)
    ),
    "decoder-with-cache-quantize": Case(f"quantize {DECODER} {CACHE} -o out/a.onnx", (JSON,)),
    "decoder-with-cache-evaluate": Case(f"evaluate decoder.onnx --model {DECODER} {TASK}", (TEXT,)),
    "decoder-with-cache-generate": Case(
        "generate decoder.onnx 'the cat' --tokens 4 --tokenizer llama"
    ),
    "table-quantize": Case(
        f"quantize {TABLE} --data table.csv --labels price {FAST} --eval-data table.csv"
        " -o out/a.onnx"
    ),
    "onnx-quantize": Case("@quantize onnx static"),
    "onnx-blockwise": Case("@blockwise onnx weight-only"),
    "kept-part-quantize": Case("@quantize kept-part static"),
    "tflite-quantize": Case(f"quantize {CNN} {CALIBRATION} {FAST} {TARGET} -o out/a.tflite"),
}
_FILES: Mapping[str, Case] = {
    "verify": Case("verify base/int8.onnx", base=True),
    "verify-data": Case("verify base/int8.onnx --data base/eval.npz", base=True),
    "verify-tflite": Case("verify base/int8.tflite", base=True),
    "verify-damaged": Case("verify base/damaged.onnx", base=True),
    "verify-foreign": Case("verify foreign.onnx", base=True),
    "verify-float": Case("verify base/float.onnx", base=True),
    "inspect": Case("inspect base/int8.onnx", base=True),
    "inspect-verbose": Case("inspect base/int8.onnx -v", (TEXT,), base=True),
    "inspect-tflite": Case("inspect base/int8.tflite -v", (TEXT,), base=True),
    "inspect-foreign": Case("inspect foreign.onnx -v", (TEXT,), base=True),
    "evaluate": Case(f"evaluate base/int8.onnx {FLOAT}", base=True),
    "evaluate-tflite": Case(f"evaluate base/int8.tflite {FLOAT}", base=True),
    "evaluate-foreign": Case(f"evaluate foreign.onnx {FLOAT}", base=True),
    "report": Case(f"report base/int8.onnx {FLOAT} -o out/r", (TEXT,), base=True),
    "report-tflite": Case(f"report base/int8.tflite {FLOAT} -o out/r", (TEXT,), base=True),
    "report-foreign": Case(f"report foreign.onnx {FLOAT} -o out/r", (TEXT,), base=True),
    "report-stored": Case("report base/report.json -o out/r", (TEXT,), base=True),
    "compare": Case(
        f"compare base/float.onnx base/int8.onnx foreign.onnx base/int8.tflite {EVAL}", base=True
    ),
    "bench": Case("bench base/float.onnx base/int8.onnx", base=True),
    "gate": Case(f"gate base/int8.onnx {GATE}", base=True),
    "gate-speed": Case(f"gate base/int8.onnx {GATE} --min-speedup 1.1", base=True),
    "gate-tflite": Case(f"gate base/int8.tflite {GATE}", base=True),
    "gate-foreign": Case(f"gate foreign.onnx {GATE}", base=True),
    "gate-damaged": Case(f"gate base/damaged.onnx {GATE}", base=True),
    "gate-inconclusive": Case(f"gate base/int8.onnx {GATE} --max-drop 0.004", base=True),
}
_REFUSALS: Mapping[str, Case] = {
    "refused-command": Case("quantise", (TEXT,), quick=True),
    "refused-option": Case("inspect --no", base=True, quick=True),
    "refused-file": Case("inspect no.calib", base=True),
    "refused-data": Case(f"quantize {CNN} --data no.npy -o out/a.onnx"),
    "refused-model": Case(
        "quantize tests.cli.models:broken --data calib_data/digits -o out/a.onnx"
    ),
}
_HELP: Mapping[str, Case] = {
    "help": Case("--help", (TEXT,), quick=True),
    "help-usual": Case("quantize --help", (TEXT,), quick=True),
    **{f"help-{name}": Case(f"{name} --help-all", (TEXT,), quick=True) for name in COMMANDS},
}
GROUPS: Mapping[str, Mapping[str, Case]] = {
    "help": _HELP,
    "cnn": _CNN,
    "kinds": _KINDS,
    "files": {**_FILES, **_REFUSALS},
}
CASES: Mapping[str, Case] = {
    name: case for group in GROUPS.values() for name, case in group.items()
}
"""Name -> case."""

MODULES: Mapping[str, str] = {
    "quantize": f"quantize {CNN} {CALIBRATION} {FAST} -o out/a.onnx",
    "verify": "verify base/int8.onnx",
    "evaluate": f"evaluate base/int8.onnx {FLOAT} --seconds 0.05",
    "gate": f"gate base/int8.onnx {GATE}",
}
"""Commands after each of which the loaded modules are listed, each in a process of its own."""

OF_ARITHMETIC = frozenset({
    *("cnn-quantize-verbose", "cnn-convert", "cnn-report", "cnn-weight-only", "compare"),
    *("detector-quantize", "lstm-quantize", "encoder-quantize", "decoder-with-cache-quantize"),
    *("table-quantize", "onnx-quantize", "onnx-blockwise", "kept-part-quantize", "tflite-quantize"),
    *("verify-data", "verify-foreign", "evaluate-foreign", "report-foreign", "inspect"),
    *("inspect-verbose", "modules-after-verify"),
})  # fmt: skip
"""Texts with other processors than this one, last bits, sums that saturate, or loaded kernels."""
