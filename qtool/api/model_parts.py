"""The parts of a model, each quantized into a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from qtool.api.conversion import quantize
from qtool.api.file_target import FileTarget, write_next_to
from qtool.api.quantized_file import EvaluationData, QuantizedFile, try_accuracy, write_file
from qtool.api.stored_model import convert_stored
from qtool.blockwise.memory_plan import StoredModel
from qtool.core.conversion_options import QuantizeOptions
from qtool.core.errors import OptionError, QtoolError
from qtool.core.option_names import FORMATS, MODEL_SUFFIXES
from qtool.core.progress import length_of, stage
from qtool.core.remedies import Argument, OtherFile
from qtool.frontends.own_models import TWO_PARTS, TaskModel

if TYPE_CHECKING:
    from qtool.api.model_folder import FolderWriter


@dataclass(frozen=True)
class PartInputs:
    """A module that becomes a file, and its data.

    Attributes:
        model: the module, what `capture_model` made of it, or a `StoredModel`.
        batches: calibration data; None: inputs are distilled, as for `qtool.quantize`.
        evaluation: data to measure its file on; None skips that.
    """

    model: Any
    batches: Iterable[Any] | None
    evaluation: EvaluationData | None = None


def parts_of(model: Any, target: FileTarget, task: str | None) -> Mapping[str, Any]:
    """Return the modules that become files of their own; "" names a whole model.

    Args:
        model: as it was loaded.
        target: where files go.
        task: that the model was loaded with.

    Raises:
        OptionError: there are two, and one file is asked for; or the format holds no KV cache.
    """
    parts = model.parts if isinstance(model, TaskModel) else {}
    has_cache = isinstance(model, TaskModel) and model.has_cache
    if has_cache and FORMATS.get(target.format) != MODEL_SUFFIXES:
        raise OptionError(
            "a language model with a KV cache becomes an .onnx file",
            Argument("-o", target.path.with_suffix(".onnx")),
        )
    if not parts:
        return {"": model}
    if target.layout is not None:
        return parts
    if target.source is None:
        raise OptionError(TWO_PARTS)
    raise OptionError(
        f"{target.source} becomes two files with this task",
        OtherFile("name a folder as output"),
        Argument("--task", f"{task}-encoder", "name a part with {} or -decoder"),
    )


def quantize_parts(
    parts: Mapping[str, Any],
    inputs_of: Callable[[Any], PartInputs],
    options: QuantizeOptions,
    target: FileTarget,
    writer: FolderWriter | None = None,
) -> Iterator[QuantizedFile]:
    """Yield the file of each part of a model, once it is written.

    Args:
        parts: name -> module; see `parts_of`.
        inputs_of: loads the data of a module.
        options: how parts are quantized.
        target: where files go.
        writer: what writes the folder; None where one file is written.

    Raises:
        QtoolError: as for `quantize_to_file`.
    """
    for part, module in parts.items():
        inputs = inputs_of(module)
        if inputs.evaluation is not None:
            inputs.evaluation.check(inputs.model, inputs.batches)
        dynamic = options.dynamic or getattr(inputs.batches, "dynamic", None)
        settings: Any = {**options.keywords(), "dynamic": dynamic}
        if isinstance(inputs.model, StoredModel):
            file, failure = _quantize_stored(inputs, settings, target)
            yield file
            if failure is not None:
                raise failure
            continue
        quantized = quantize(
            inputs.model,
            inputs.batches,
            progress=stage("calibrating", length_of(inputs.batches)),
            format=target.format,
            **settings,
        )
        path = target.path if writer is None else writer.path(part, quantized.plan)
        file = write_file(quantized, path, target.options)
        file, failure = try_accuracy(file, inputs.evaluation)
        if writer is None:
            yield replace(file, kept=write_next_to(target.source, module, path))
        else:
            yield writer.add(file)
        if failure is not None:  # what belongs to the file is written, too
            raise failure


def _quantize_stored(
    inputs: PartInputs, settings: Mapping[str, Any], target: FileTarget
) -> tuple[QuantizedFile, QtoolError | None]:
    """Return the file of a model that is converted block by block, and why its evaluation failed.
    settings: of `quantize`."""
    stored: StoredModel = inputs.model
    batches: Any = inputs.batches  # without any it was refused
    rest = target.path, target.options, inputs.evaluation
    file, failure = convert_stored(stored, batches, *rest, **settings)
    return replace(file, kept=write_next_to(target.source, stored.module, target.path)), failure
