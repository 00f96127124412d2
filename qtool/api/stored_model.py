"""A model that is larger than memory, and its conversion block by block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from qtool.api.quantized_file import (
    EvaluationData,
    QuantizedFile,
    missed_goals,
    with_accuracy,
)
from qtool.blockwise.memory_plan import BLOCK, LIMIT, StoredModel
from qtool.core import number_texts
from qtool.core.argument_names import argument
from qtool.core.conversion_options import FileOptions, QuantizeKeywords, QuantizeOptions
from qtool.core.data import whole_texts
from qtool.core.errors import OptionError, QtoolError
from qtool.core.on_use import OnUse
from qtool.core.option_records import keywords_of
from qtool.core.progress import track_task
from qtool.core.remedies import Argument, Omission, Remedy
from qtool.evaluation.speedup import compare_speed, untimed_reason

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from qtool.blockwise.converted_blocks import ConvertedBlocks

_convert_blocks = OnUse("qtool.blockwise.quantize:convert_blocks")  # for stored models alone
_UNTIMED = "the float model was never in memory as a whole"
_TOO_LARGE = "{} would take {}, more than the {} of memory"


@keywords_of(QuantizeOptions)
def quantize_by_blocks(
    folder: str | Path,
    data: Iterable[Any],
    path: str | Path,
    *,
    model: nn.Module | None = None,
    task: str | None = None,
    attention: str = "fused",
    cache: str = "float",
    block: int = BLOCK,
    memory: int = LIMIT,
    file: FileOptions | None = None,
    evaluation: EvaluationData | None = None,
    **keywords: Unpack[QuantizeKeywords],
) -> QuantizedFile:
    """Quantize a model that does not fit into memory, and write its verified file.

    If the process ends early, even by a kill, the same call resumes after the last finished block
    and writes the same bytes. Until then its checkpoint is in `<path>.blocks`.

    Args:
        folder: a folder of transformers or timm with config.json and one or more safetensors files,
            or an ONNX file with its weights as external data.
        data: batches, as for `quantize`; read again on resuming.
        path: path of the file; its weights are written to `<path>.<digest>.data` next to it.
        model: your own model, built in `qtool.init_empty_weights()`; the folder holds its weights.
        task, attention: as for `load_model`. Batches of a decoder with its KV cache have an empty
            one, as those of `load_data` for its model do.
        cache: "float" or "int8", the KV cache of a decoder.
        block: bytes of float32 weights in memory at once. Linear layers and embeddings with more
            than a quarter of that are split, and joined again by a Concat.
        memory: bytes that what runs the whole file may take: its verification, its self-test and
            the measurement of its outputs and its accuracy. Of a file that takes more, blocks alone
            are verified and measured, and it has the digest of its bytes alone.
        file: timing, and the goals that the file is judged by; by default it is not timed.
        evaluation: data to measure the accuracy of the file on. The float model runs next to it,
            as a temporary file, where both fit into `memory`; `QuantizedFile.unmeasured` says where
            not.
        keywords: as for `quantize`. Steps run that need no more than a block (`Step.scope`).

    Raises:
        CaptureError: the folder does not hold this model, or not all of its weights.
        DataError: the data does not fit the model.
        PlanError: `recover` names a step that needs the whole network.
        FileError: a file cannot be written, or the checkpoint is of another model or data.
        VerificationError: a block does not compute what its plan says, or the file was written and
            does not run on the evaluation data.
        RanksError: several ranks of a process group call it.
    """
    if evaluation is not None:
        evaluation.check(None, data)
    stored = StoredModel(Path(folder), model, block, memory)
    how: dict[str, Any] = {"task": task, "attention": attention, "cache": cache, **keywords}
    made, failure = convert_stored(stored, data, Path(path), file, evaluation, **how)
    if failure is not None:
        raise failure
    return made


def convert_stored(
    stored: StoredModel,
    data: Iterable[Any],
    path: Path,
    file: FileOptions | None,
    evaluation: EvaluationData | None,
    **options: Any,
) -> tuple[QuantizedFile, QtoolError | None]:
    """Do what `quantize_by_blocks` does, which has these arguments; return the file, and an error
    if its evaluation failed.

    Raises:
        QtoolError: as for `quantize_by_blocks`, of the conversion.
    """
    converted = _convert_blocks(stored, data, path, **options)
    made = _file_of_blocks(converted, stored.path, file or FileOptions(timing=0))
    return accuracy_of_blocks(made, converted, evaluation, stored.memory)


WITHOUT_DATA = "a conversion without data"
GIVE_DATA = Argument("--data", text="give data")


def options_in_use(options: Mapping[str, bool]) -> dict[str, Remedy]:
    """Return option -> to leave it out, of options -> whether they are in use."""
    used = (option for option, is_used in options.items() if is_used)
    return {argument(option): Omission(option, "leave it out") for option in used}


def refuse_blocks(model: str | Path, needed: int, refused: Mapping[str, Remedy]) -> None:
    """Refuse what a conversion block by block cannot do, before work begins.

    Args:
        model: the folder or file.
        needed: memory in bytes of a conversion of the whole model.
        refused: what is in use of what needs the whole model -> what to do instead.

    Raises:
        OptionError: something is.
    """
    if option := next(iter(refused), None):
        size = number_texts.size(needed + needed // 50)  # printed with three digits
        raise OptionError(
            f"{model} takes about {size} to convert as a whole and is converted block by block, "
            f"where {option} is not possible",
            refused[option],
            Argument("--memory", size.replace(" ", "").removesuffix("bytes"), "convert it with {}"),
        )


def _file_of_blocks(
    converted: ConvertedBlocks, source: Path, options: FileOptions
) -> QuantizedFile:
    """Return what was measured on the file of a block-wise conversion.

    Args:
        converted: the conversion.
        source: the folder or ONNX file of the float model.
        options: timing and goals.
    """
    result, plan = converted.verification, converted.run.plan
    speed, untimed = None, ""
    if options.timing:
        untimed = untimed_reason(plan.target)
        if source.is_dir() or converted.measured is None:
            untimed = untimed or _UNTIMED
        elif not untimed:
            files = source, converted.path
            how = converted.examples, plan.target, plan.recipe.mode, options.timing
            with track_task("timing"):
                speed, _ = compare_speed(files, *how, source.name)
    return QuantizedFile(
        converted.path,
        None,
        plan,
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
    return with_accuracy(file, evaluation, converted.run.whole, alone=alone)


def _not_measured(file: QuantizedFile, what: str, needed: int, memory: int) -> QuantizedFile:
    sizes = map(number_texts.size, (needed, memory))
    return replace(file, unmeasured=_TOO_LARGE.format(what, *sizes))
