"""From a model and data to the verified, timed and measured file, or the folder of a model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from qtool.api.file_target import FileTarget
from qtool.api.model_parts import PartInputs, parts_of, quantize_parts
from qtool.api.quantize_options import QuantizeOptions
from qtool.api.quantized_file import EvaluationData, FileOptions, QuantizedFile
from qtool.api.stored_model import (
    GIVE_DATA,
    WITHOUT_DATA,
    StoredModel,
    options_in_use,
    refuse_blocks,
)
from qtool.blockwise.memory_plan import LIMIT, memory_beyond
from qtool.core.errors import OptionError
from qtool.core.hub_cache import local_model
from qtool.core.numpy_files import check_source
from qtool.core.path_arguments import accepts_paths
from qtool.core.remedies import Argument, CallEdit
from qtool.frontends.captured_model import Captured, Model
from qtool.frontends.data.load_data import load_data
from qtool.frontends.huggingface.meta_init import load_without_weights
from qtool.frontends.huggingface.model_folder import BOTH_PARTS
from qtool.frontends.load_model import load_model


def quantize_to_file(
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
) -> QuantizedFile:
    """Do what `qtool quantize` does: quantize a model, write its file, verify, time and measure it.

    Args:
        model: as for `quantize`; a text or path is loaded by `load_model`.
        data: as for `quantize`; a text or path is loaded by `load_data`, for this model.
        path: the file to write; for a transformers folder also a folder, which gets configuration,
            tokenizer and a model card, too.
        options: how the model is quantized.
        file: how the file is written and timed, and the goals it is judged by.
        weights, task: as for `load_model`.
        evaluation: data to measure the accuracy of the file on.
        memory: bytes to use. A folder or ONNX file that takes more is converted block by block, see
            `quantize_by_blocks`; by default one with more than 4 GiB of float32 weights.

    Raises:
        QtoolError: as for `load_model`, `load_data`, `quantize` and `QuantizedModel.export`.
        OptionError: a task whose model becomes two files, or an option that a conversion block by
            block does not have.
    """
    if task in BOTH_PARTS:
        raise OptionError(
            f"a model of the task '{task}' becomes two files",
            CallEdit("call qtool.quantize_to_files"),
            Argument("--task", f"{task}-encoder", "name a part with {} or -decoder"),
        )
    (written,) = quantize_to_files(
        *(model, data, path, options, file),
        weights=weights,
        task=task,
        evaluation=evaluation,
        memory=memory,
    )
    return written


@accepts_paths("path")
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
    """Do what `quantize_to_file` does; of an encoder-decoder write a folder of two files.

    Args:
        model, data, path, options, file, weights, task, evaluation, memory: as for
            `quantize_to_file`.

    Returns:
        The files that were written, the encoder first.

    Raises:
        QtoolError: as for `quantize_to_file`.
        OptionError: a model that becomes two files, and a path that is no folder.
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
    chosen = (options or QuantizeOptions()).for_format(target.format)
    chosen.check_measure(weights, stored)
    if stored is not None:
        check_source(stored)
    limit, needed = LIMIT if memory is None else memory, None
    if source is not None and weights is None:
        needed = memory_beyond(Path(source), target.path, limit)
    loaded: Any
    if needed is not None:
        assert source is not None
        refused = target.refused_by_blocks
        refused |= {WITHOUT_DATA: GIVE_DATA} if data is None else {}
        refused |= options_in_use({"--measure": chosen.measure is not None})
        refuse_blocks(source, needed, refused)
        place = Path(source)
        module = None if place.suffix == ".onnx" else load_without_weights(place, task)
        loaded = StoredModel.of(place, module, target.path, memory, chosen.as_recipe())
    else:
        loaded = model if source is None else load_model(source, weights, task)
    folder = source if source is not None and Path(source).is_dir() else None

    def inputs_of(module: Any) -> PartInputs:
        batches: Any = data
        if stored is not None:
            empty = module.module if isinstance(module, StoredModel) else module
            batches = load_data(stored, model=empty, model_folder=folder)
        return PartInputs(module, batches, evaluation)

    parts = parts_of(loaded, target, task)
    return tuple(quantize_parts(parts, inputs_of, chosen, target, target.writer(parts)))
