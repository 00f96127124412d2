"""A new file of a target for browsers, run in WebAssembly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qtool.api.quantized_model import QuantizedModel
from qtool.core.errors import EmulationError
from qtool.core.number_texts import count, db, quantity
from qtool.core.progress import track_task
from qtool.planning.targets import target
from qtool.plugins.emulators.other_cpus import verify_on
from qtool.plugins.emulators.result import CpuResult

WASM = "wasm"
Row = tuple[str, str]

_MAX_MACS = 4e9
"""Multiply-accumulates of a sample, some seconds in node, until which files run."""


@dataclass(frozen=True)
class BrowserCheck:
    """What a file does in WebAssembly.

    Attributes:
        rows: label and text.
        wrong: a sentence if it computes something else there; "" if not.
    """

    rows: tuple[Row, ...] = ()
    wrong: str = ""


def check_in_browser(quantized: QuantizedModel, file: Path) -> BrowserCheck:
    """Run one sample of a new file of a target for browsers; nothing for other targets.

    Args:
        quantized: the model that the file was written from.
        file: the ONNX file.
    """
    if not target(quantized.plan.target).in_browsers or file.suffix != ".onnx":
        return BrowserCheck()
    macs = sum(node.macs for node in quantized.plan.nodes)
    if macs > _MAX_MACS:
        text = f"not run with {count(macs)} MACs; `qtool verify {file.name} --cpu {WASM}` runs it"
        return BrowserCheck(((WASM, text),))
    batch = quantized.reference.cut(quantized.sample, 1)
    try:
        with track_task(f"running on {WASM}"):
            (result,) = verify_on(file, WASM, [batch.arrays()]).results
    except EmulationError as error:
        return BrowserCheck(((WASM, f"not run there: {error}"),))
    return _in_wasm(result)


def _in_wasm(result: CpuResult) -> BrowserCheck:
    codes = f"all {count(result.codes)} codes identical, " if result.codes else ""
    if wrong := result.wrong_kernels:
        text = f"{quantity(len(wrong), 'integer kernel')} give other codes, first {wrong[0]}"
        return BrowserCheck(((WASM, f"{text} ({result.runtime})"),), f"in WebAssembly {text}")
    if result.codes_identical != result.codes:
        codes = f"{count(result.codes_identical)} of {count(result.codes)} codes identical, "
    outputs = "outputs identical" if result.sqnr_db is None else f"outputs {db(result.sqnr_db)} dB"
    why = " (MatMulNBits rounds its inputs here and not there)" if _rounds_here(result) else ""
    return BrowserCheck(((WASM, f"{codes}{outputs}{why}, 1 sample ({result.runtime})"),))


def _rounds_here(result: CpuResult) -> bool:
    return not result.codes and any("MatMulNBits" in name for name in result.hidden)
