"""From a model and data to the verified, timed and measured file, or the folder of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qtool.api.data import load_data
from qtool.api.file_target import FileTarget
from qtool.api.model_parts import PartInputs, parts_of, quantize_parts
from qtool.api.quantized_file import EvaluationData, QuantizedFile
from qtool.api.stored_model import (
    GIVE_DATA,
    WITHOUT_DATA,
    options_in_use,
    refuse_blocks,
)
from qtool.blockwise.memory_plan import LIMIT, StoredModel, memory_beyond, whole_memory
from qtool.core import number_texts
from qtool.core.argument_names import argument
from qtool.core.conversion_options import FileOptions, QuantizeOptions
from qtool.core.downloads import local_model
from qtool.core.errors import OptionError
from qtool.core.log import log_warning
from qtool.core.memory import available_memory
from qtool.core.numpy_files import check_source
from qtool.core.on_use import OnUse
from qtool.core.option_records import arguments_of
from qtool.core.remedies import Argument, CallEdit, Remedy
from qtool.distributed import current
from qtool.frontends.captured_model import Captured, Model
from qtool.frontends.load_model import load_model
from qtool.frontends.own_models import BOTH_PARTS
from qtool.planning.recipe import Recipe

_load_without_weights = OnUse("qtool.frontends.huggingface.meta_init:load_without_weights")


@dataclass(frozen=True)
class ModelSource:
    """How a model and its data are read.

    Attributes:
        load: returns the model.
        load_empty: returns the module of a folder without its weights, None for an ONNX file.
        inputs_of: module, or `StoredModel` -> its data.
        task: that a transformers folder is loaded with.
        refused: what a conversion block by block does not have of what is in use -> what to do.
        has_data: whether there is data.
    """

    load: Callable[[], Any]
    load_empty: Callable[[], Any]
    inputs_of: Callable[[Any], PartInputs]
    task: str | None
    refused: Mapping[str, Remedy]
    has_data: bool


def quantize_source(
    source: ModelSource, target: FileTarget, options: QuantizeOptions, memory: int | None
) -> Iterator[QuantizedFile]:
    """Yield the file of each part of a model, once it is written.

    Args:
        source: how the model is read.
        target: where files go; it names the folder or file of the model, if there is one.
        options: how the model is quantized.
        memory: see `quantize_to_files`; of the ranks the least one counts.

    Raises:
        QtoolError: as for `quantize_to_files`.
    """
    chosen = replace(options, target=target.target_for(options.target))
    limit = min(map(int, current().all_gather(str(LIMIT if memory is None else memory))))
    needed = None if target.source is None else _memory_beyond(target, limit)
    if needed is None:
        loaded = source.load()
    else:
        assert target.source is not None
        refused = target.refused_by_blocks
        refused |= {} if source.has_data else {WITHOUT_DATA: GIVE_DATA}
        refused |= source.refused
        refuse_blocks(target.source, needed, refused)
        place, recipe = Path(target.source), Recipe.of(*chosen.rules)
        sizes = target.path, None if memory is None else limit, recipe
        loaded = StoredModel.of(place, source.load_empty(), *sizes)
    parts = parts_of(loaded, target, source.task)
    writer = target.writer(parts)
    yield from quantize_parts(parts, source.inputs_of, chosen, target, writer)


def _memory_beyond(target: FileTarget, limit: int) -> int | None:
    """Return the memory that a conversion of the whole model takes, if it is more than the limit.

    An interrupted conversion block by block resumes, whatever the limit is now. A conversion of the
    whole model that takes more than what is free gets a warning.
    """
    model = Path(str(target.source))
    if (beyond := memory_beyond(model, target.path, limit)) is not None:
        size = number_texts.size(beyond)
        log_warning(f"converted block by block: as a whole {model} takes about {size}")
        return beyond
    needed, free = whole_memory(model), available_memory()
    if free is not None and needed > free:
        size = number_texts.size(free)
        less = argument("--memory", size.replace(" ", ""))
        log_warning(
            f"converting {model} as a whole takes about {number_texts.size(needed)}, and {size} "
            f"are free; {less} converts it block by block"
        )
    return None


def quantize_to_files(
    model: Model | Captured | str | Path,
    data: Iterable[Any] | str | Path | None,
    path: str | Path,
    options: QuantizeOptions | None = None,
    file: FileOptions | None = None,
    *,
    weights: str | Path | None = None,
    task: str | None = None,
    evaluation: EvaluationData | None = None,
    memory: int | None = None,
) -> tuple[QuantizedFile, ...]:
    """Do what `qtool quantize` does: quantize a model, write its file, verify, time and measure it.

    An encoder-decoder becomes a folder of two files.

    Args:
        model: as for `quantize`; a text or path is loaded by `load_model`.
        data: as for `quantize`; a text or path is loaded by `load_data`, for this model.
        path: the file to write; for a transformers folder also a folder, which gets configuration,
            and tokenizer, too.
        options: how the model is quantized.
        file: how the file is written and timed, and the goals it is judged by.
        weights, task: as for `load_model`.
        evaluation: data to measure the accuracy of the file on.
        memory: bytes to use. A folder or ONNX file that takes more is converted block by block, see
            `quantize_by_blocks`; by default one with more than 4 GiB of float32 weights.

    Returns:
        The files that were written, the encoder first.

    Raises:
        QtoolError: as for `load_model`, `load_data`, `quantize` and `QuantizedModel.export`.
        OptionError: a model that becomes two files, and a path that is no folder; or an option that
            a conversion block by block does not have.
    """
    records: tuple[tuple[str, object, type], ...] = (
        ("options", options, QuantizeOptions),
        ("file", file, FileOptions),
        ("evaluation", evaluation, EvaluationData),
    )
    for name, value, expected in records:
        if not (value is None or isinstance(value, expected)):
            kind = expected.__name__
            raise OptionError(
                f"{name} is a {type(value).__name__}", CallEdit(f"give qtool.{kind}(...)")
            )
    source = local_model(str(model)) if isinstance(model, str | Path) else None
    stored = data if isinstance(data, str | Path) else None
    target = FileTarget.check(Path(path), source, file or FileOptions(), weights, stored)
    chosen = options or QuantizeOptions()
    if stored is not None:
        check_source(stored)
    folder = source if source is not None and Path(source).is_dir() else None

    def load() -> Any:
        return model if source is None else load_model(source, weights, task)

    def load_empty() -> Any:
        place = Path(str(source))
        return None if place.suffix == ".onnx" else _load_without_weights(place, task)

    def inputs_of(module: Any) -> PartInputs:
        batches: Any = data
        if stored is not None:
            empty = module.module if isinstance(module, StoredModel) else module
            batches = load_data(stored, model=empty, model_folder=folder)
        return PartInputs(module, batches, evaluation)

    refused = options_in_use({"--weights": weights is not None})
    reading = ModelSource(load, load_empty, inputs_of, task, refused, data is not None)
    return tuple(quantize_source(reading, target, chosen, memory))


@arguments_of(quantize_to_files)
def quantize_to_file(*arguments: Any, **keywords: Any) -> QuantizedFile:
    """Do what `quantize_to_files` does, of a model that becomes one file.

    Args:
        arguments, keywords: as for `quantize_to_files`.

    Raises:
        QtoolError: as for `quantize_to_files`.
        OptionError: a task whose model becomes two files.

    Example:
        >>> options = qtool.QuantizeOptions(mode="static", ignore=["op:max_pool"])
        >>> goals, held_out = qtool.FileOptions(min_sqnr=20), qtool.EvaluationData(loader, labels)
        >>> path = "model.int8.onnx"
        >>> print(qtool.quantize_to_file(model, loader, path, options, goals, evaluation=held_out))
    """
    if (task := keywords.get("task")) in BOTH_PARTS:
        raise OptionError(
            f"a model of the task '{task}' becomes two files",
            CallEdit("call qtool.quantize_to_files"),
            Argument("--task", f"{task}-encoder", "name a part with {} or -decoder"),
        )
    (written,) = quantize_to_files(*arguments, **keywords)
    return written
