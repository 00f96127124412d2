"""A new file of a target for browsers, run on the provider that loads it there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qtool.api.quantized_model import QuantizedModel
from qtool.backends.onnxruntime.webgpu_summary import describe_on_webgpu
from qtool.core.errors import EmulationError
from qtool.core.number_texts import count, db, percent, quantity
from qtool.core.progress import track_task
from qtool.planning.targets import target
from qtool.plugins.emulators.other_cpus import verify_on, verify_on_webgpu
from qtool.plugins.emulators.result import CpuResult
from qtool.plugins.emulators.webgpu_result import WebGpuComparison

WASM, WEBGPU = "wasm", "webgpu"
Row = tuple[str, str]

_MAX_MACS = 4e9
"""Multiply-accumulates of a sample, some seconds on the software adapter, until which files run."""


@dataclass(frozen=True)
class BrowserCheck:
    """What a file does on the providers of browsers.

    Attributes:
        rows: label and text.
        wrong: a sentence if it computes something else there; "" if not.
    """

    rows: tuple[Row, ...] = ()
    wrong: str = ""


def check_in_browser(quantized: QuantizedModel, file: Path) -> BrowserCheck:
    """Run one sample of a new file on its target's provider; nothing for other targets.

    Args:
        quantized: the model that the file was written from.
        file: the ONNX file.
    """
    place = target(quantized.plan.target).browser
    if not place or file.suffix != ".onnx":
        return BrowserCheck()
    other = () if place == WEBGPU else (("on WebGPU", describe_on_webgpu(file)),)
    macs = sum(node.macs for node in quantized.plan.nodes)
    if macs > _MAX_MACS:
        text = f"not run with {count(macs)} MACs; `qtool verify {file.name} --cpu {place}` runs it"
        return BrowserCheck(((place, text), *other))
    batch = quantized.reference.cut(quantized.sample, 1)
    try:
        with track_task(f"running on {place}"):
            if place == WEBGPU:
                check = _on_webgpu(verify_on_webgpu(file, [batch.arrays()]))
            else:
                (result,) = verify_on(file, place, [batch.arrays()]).results
                check = _in_wasm(result)
    except EmulationError as error:
        check = BrowserCheck(((place, f"not run there: {error}"),))
    return BrowserCheck((*check.rows, *other), check.wrong)


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


def _on_webgpu(result: WebGpuComparison) -> BrowserCheck:
    ratios = [o.sqnr_db for o in result.outputs if o.sqnr_db is not None]
    first = result.outputs[0]
    same = f", same argmax {percent(first.same_argmax / first.rows)}" if first.rows else ""
    worst = f"{db(min(ratios))} dB" if ratios else "outputs identical"
    fallbacks = len(result.placement.fallbacks)
    on_cpu = f"{quantity(fallbacks, 'activation')} on the CPU provider"
    adapter = result.adapter.partition(" (")[0]
    text = f"{worst}{same}, {on_cpu} ({result.runtime} on {adapter}, in software)"
    wrong = "" if result.agrees else f"on WebGPU the file differs: {text}; {result.first or ''}"
    return BrowserCheck(((WEBGPU, text),), wrong)
