"""Outputs and codes of a file on other processors, compared with this machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from qtool.backends.onnxruntime.emulation.code_probes import CodeTensor
from qtool.backends.onnxruntime.emulation.comparison_case import Case, new_folder, prepare
from qtool.backends.onnxruntime.emulation.cpus import Cpu
from qtool.backends.onnxruntime.emulation.equality_counts import Tally, changed_predictions, tallies
from qtool.backends.onnxruntime.emulation.jobs import Job, run_jobs
from qtool.backends.onnxruntime.emulation.result import CpuResult, FirstDifference
from qtool.core.atomic import scratch_folder
from qtool.core.types import Array

TIMEOUT = 600.0
"""Seconds for one processor."""


def run_on_cpus(
    file: str | Path,
    cpus: Iterable[Cpu],
    batches: Iterable[Sequence[Array]],
    timeout: float = TIMEOUT,
) -> Iterator[CpuResult]:
    """Run a file on this machine and on other processors; yield one result after another.

    Args:
        file: an ONNX file of any tool.
        cpus: rows of the table.
        batches: arrays in the order of the file's inputs.
        timeout: seconds for each processor.

    Raises:
        DataError: there is no batch, or one holds text.
        EmulationError: a processor cannot be emulated, or its emulation fails or takes too long.
        FileError: not an ONNX file. VerificationError: this machine's runtime does not load it.
    """
    with scratch_folder() as folder:
        case = prepare(Path(file), batches, folder, timeout)
        for cpu in cpus:
            place = folder / cpu.name
            try:
                yield _compared(case, cpu, place)
            finally:
                shutil.rmtree(place, ignore_errors=True)


def _compared(case: Case, cpu: Cpu, place: Path) -> CpuResult:
    plain = replace(case.plain, outputs=new_folder(place / "plain"))
    coded = case.form(cpu).coded(plain.inputs, new_folder(place / "coded"), plain.batches)
    runtime = run_jobs(cpu, [plain, coded], place / "job", case.timeout)
    own = range(case.outputs)
    outputs = tallies(case.plain.outputs, plain.outputs, plain.batches, own)
    codes = _codes(case, case.coded, coded)
    classes = changed_predictions(case.plain.outputs, plain.outputs, case.samples)
    first = _first(case, codes)
    same_outputs = all(t.equal for t in outputs.values())
    needed = first is not None or (case.floats and not same_outputs)
    kernels, wrong = _compare_kernels(case, cpu, place) if needed else (case.all_kernels, ())
    undisturbed = all(
        tally.equal
        for one, other in ((case.plain, case.coded), (plain, coded))
        for tally in tallies(one.outputs, other.outputs, one.batches, own).values()
    )
    return CpuResult(
        cpu=cpu.name,
        runtime=runtime,
        outputs=sum(t.total for t in outputs.values()),
        outputs_identical=sum(t.identical for t in outputs.values()),
        codes=sum(t.total for t in codes.values()),
        codes_identical=sum(t.identical for t in codes.values()),
        sqnr_db=min((db for t in outputs.values() if (db := t.sqnr_db) is not None), default=None),
        predictions=None if classes is None else classes[0],
        changed=None if classes is None else classes[1],
        first=first,
        kernels=len(kernels),
        wrong_kernels=tuple(f"{c.node} ({c.op})" for c in wrong),
        hidden=case.hidden,
        undisturbed=undisturbed,
    )


def _codes(case: Case, here: Job, there: Job) -> dict[str, Tally]:
    """Return tensor of codes -> its count, in the order of the graph."""
    indices = [case.place[c.tensor] for c in case.codes]
    counts = tallies(here.outputs, there.outputs, here.batches, indices)
    return {c.tensor: counts[case.place[c.tensor]] for c in case.codes}


def _first(case: Case, codes: dict[str, Tally]) -> FirstDifference | None:
    code = next((c for c in case.codes if not codes[c.tensor].equal), None)
    if code is None:
        return None
    maker = case.producers.get(code.tensor)
    return FirstDifference(
        code.node, code.op, code.tensor, () if maker is None else maker.float_nodes
    )


def _compare_kernels(
    case: Case, cpu: Cpu, place: Path
) -> tuple[tuple[CodeTensor, ...], tuple[CodeTensor, ...]]:
    """Return the integer kernels that ran on this machine's codes, and those with other results."""
    job = case.form(cpu).forced(case.coded, case.floats, new_folder(place / "forced"))
    run_jobs(cpu, [job], place / "forced-job", case.timeout)
    return case.kernels, case.wrong(job)
