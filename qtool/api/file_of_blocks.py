"""The file of a block-wise conversion: timed, measured on data, and judged as one in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qtool.api.quantized_file import (
    EvaluationData,
    FileOptions,
    QuantizedFile,
    missed_goals,
    with_accuracy,
)
from qtool.blockwise.converted_blocks import ConvertedBlocks
from qtool.core import formats
from qtool.core.data import whole_texts
from qtool.core.errors import QtoolError
from qtool.core.progress import track_task
from qtool.distributed import current
from qtool.evaluation.speedup import measure_file_speedup, untimed_reason

_UNTIMED = "the float model was never in memory as a whole"
_TOO_LARGE = "{} would take {}, more than the {} of memory"


def file_of_blocks(converted: ConvertedBlocks, source: Path, options: FileOptions) -> QuantizedFile:
    """Return what was measured on the file of a block-wise conversion.

    Args:
        converted: the conversion.
        source: the folder or ONNX file of the float model.
        options: timing and goals.
    """
    result = converted.verification
    speed, untimed = None, ""
    if options.timing:
        untimed = untimed_reason(converted.target)
        if source.is_dir() or converted.measured is None:
            untimed = untimed or _UNTIMED
        elif not untimed and not current().rank:
            how = converted.examples, converted.target, converted.mode, options.timing
            with track_task("timing"):
                speed = measure_file_speedup(source, converted.path, *how)
    return QuantizedFile(
        converted.path,
        None,
        f"{converted.title}, for {converted.target}",
        converted.target,
        converted.mode,
        converted.notes,
        result,
        converted.size_bytes,
        converted.float_bytes if speed is None else speed.float_bytes,
        speed,
        untimed,
        missed=missed_goals(result, options),
        blocks=converted.blocks,
    )


def accuracy_of_blocks(
    file: QuantizedFile, converted: ConvertedBlocks, evaluation: EvaluationData | None, memory: int
) -> tuple[QuantizedFile, QtoolError | None]:
    """Return the file with its accuracy on data, and None; or an error that says what failed.

    The float model runs next to the file, as in memory. Where both do not fit into the memory, the
    file runs alone, and not at all where it does not fit by itself.

    Args:
        file: what was measured on it so far.
        converted: the conversion.
        evaluation: data to measure the accuracy on; None skips that.
        memory: bytes that the files may take.
    """
    if evaluation is None:
        return file, None
    own, plain = converted.memory
    if own > memory:
        return _not_measured(file, "the file", own, memory), None
    alone = own + plain > memory
    if alone:
        file = _not_measured(file, "the float model next to the file", own + plain, memory)
    batches = converted.batches(whole_texts(evaluation.batches))
    evaluation = replace(evaluation, batches=batches)
    return with_accuracy(file, evaluation, converted.reference, alone=alone)


def _not_measured(file: QuantizedFile, what: str, needed: int, memory: int) -> QuantizedFile:
    sizes = map(formats.size, (needed, memory))
    return replace(file, unmeasured=_TOO_LARGE.format(what, *sizes))
