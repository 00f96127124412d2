"""From a model and data to the verified, timed and measured file, or the folder of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from qtool.api.conversion import quantize
from qtool.api.fastest_recipe import fastest_recipe
from qtool.api.model_folder import FolderWriter, folder_name, write_next_to
from qtool.api.quantized_file import (
    EvaluationData,
    FileOptions,
    QuantizedFile,
    stage,
    try_accuracy,
    write_file,
)
from qtool.api.stored_model import (
    GIVE_DATA,
    WITHOUT_DATA,
    StoredModel,
    convert_stored,
    options_in_use,
    refuse_blocks,
)
from qtool.blockwise.memory_plan import LIMIT, memory_beyond
from qtool.core.argument_names import argument
from qtool.core.atomic import check_writable
from qtool.core.data import peek
from qtool.core.errors import FileError, OptionError, QtoolError
from qtool.core.numpy_files import check_source
from qtool.core.option_names import (
    FOLDER_LAYOUTS,
    FORMATS,
    MODEL_SUFFIXES,
    RECIPE_SUFFIXES,
    file_format,
    suffixes_of,
)
from qtool.core.path_arguments import accepts_paths
from qtool.core.progress import track_task
from qtool.core.remedies import Argument, CallEdit, Omission, OtherFile, Remedy
from qtool.frontends.captured_model import DEFAULT_OBSERVER, Captured, DynamicSizes, Model
from qtool.frontends.data.load_data import load_data
from qtool.frontends.huggingface.causal_decoder import DecoderWithCache
from qtool.frontends.huggingface.encoder_decoder import TWO_PARTS, EncoderDecoder
from qtool.frontends.huggingface.meta_init import load_without_weights
from qtool.frontends.load_model import load_model
from qtool.planning.recipe import Recipe
from qtool.planning.targets import target_for
from qtool.search.fastest_recipe import FastestRecipe


@dataclass(frozen=True)
class QuantizeOptions:
    """How a model is quantized: the arguments of `qtool.quantize` of these names.

    Without a target it is that of the file: "tflite" for .tflite, "tflite-micro" for C source.

    Attributes:
        measure: file for the recipe of `qtool.fastest_recipe`, which the model is quantized with;
            None measures nothing. Of a model of two parts each gets a file, with its name.
    """

    target: str | None = None
    observer: str = DEFAULT_OBSERVER
    recipe: Any = None
    mode: str | None = None
    accuracy: str | None = None
    recover: tuple[str, ...] | None = None
    dynamic: DynamicSizes | None = None
    measure: str | Path | None = None

    def __post_init__(self) -> None:
        self.check_measure()

    def check_measure(self, *inputs: str | Path | None) -> None:
        """Check that the recipe can be written. inputs: paths of inputs, which are not overwritten.

        Raises:
            FileError: it cannot.
        """
        if self.measure is not None:
            own = self.recipe if isinstance(self.recipe, str | Path) else None
            if Path(self.measure).suffix.lower() not in RECIPE_SUFFIXES:
                raise FileError(
                    f"{self.measure} is no name of a recipe",
                    OtherFile(f"name it in {' or '.join(RECIPE_SUFFIXES)}"),
                )
            check_writable(self.measure, own, *inputs)

    def as_recipe(self) -> Recipe:
        """Return the recipe with the mode, the accuracy and the steps."""
        return Recipe.of(self.recipe, self.mode, self.accuracy, self.recover)

    def for_format(self, name: str) -> QuantizeOptions:
        """Return the options with the target of files of a format, `target_for`.

        Raises:
            ExportError, PlanError: as for `target_for`.
        """
        return replace(self, target=target_for(name, self.target))


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


_OF_ANY_FILE = (None, "nchw", "float", "dynamic")
"""Layouts, interfaces and batches that ONNX files have, too."""


@dataclass(frozen=True)
class FileTarget:
    """Where files go.

    Attributes:
        path: path of the file or folder.
        source: see `folder_name`.
        options: how files are written.
        layout: name of the layout of a folder; None for one file.
    """

    path: Path
    source: str | Path | None
    options: FileOptions
    layout: str | None

    @classmethod
    def check(
        cls, path: Path, source: str | Path | None, options: FileOptions, *inputs: Any
    ) -> FileTarget:
        """Return where files go, after checking that they can be written.

        Args:
            path, source, options: see the attributes.
            inputs: paths of other inputs, which are not overwritten.

        Raises:
            FileError: the path cannot be written.
            OptionError: format, suffix and layout do not suit each other.
        """
        layout = folder_name(source, path, options.layout)
        if layout is None:
            suffixes = suffixes_of(file_format(path, options.format))
            check_writable(path, source, *inputs, suffixes=suffixes)
        images = None if options.layout in FOLDER_LAYOUTS else options.layout
        written = file_format(path, options.format)
        if options.external_data and FORMATS.get(written) != MODEL_SUFFIXES:
            raise OptionError(
                f"{path} holds its weights itself", Omission("--external-data", "leave out {}")
            )
        forms = (
            Argument("--layout", images),
            Argument("--interface", options.interface),
            Argument("--batch", options.batch),
        )
        for form in forms:
            if form.value in _OF_ANY_FILE or FORMATS.get(written) != MODEL_SUFFIXES:
                continue
            raise OptionError(
                f"{argument(form.name, form.value)} is for .tflite files, and {path} is an .onnx "
                "file",
                Omission(form.name, "leave it out"),
            )
        return cls(path, source, replace(options, layout=images), layout)

    def writer(self, parts: Mapping[str, Any]) -> FolderWriter | None:
        """Return a writer for the folder of a model's parts; None where one file is written.

        Raises:
            OptionError: the library of the layout does not load such a model.
        """
        if self.layout is None:
            return None
        assert self.source is not None
        return FolderWriter.start(self.source, self.path, self.layout, parts)

    @property
    def format(self) -> str:
        """Name of the format of the files."""
        return file_format(self.path, self.options.format)

    @property
    def refused_by_blocks(self) -> dict[str, Remedy]:
        """What a block-wise conversion does not have of what is in use -> what to do instead."""
        refused: dict[str, Remedy] = {}
        if self.layout is not None:
            refused["a folder to write"] = Argument("-o", "FILE.onnx", "name a file, {}")
        elif self.format != "qdq":
            leave_out: Remedy = Omission("--format", "leave it out")
            if self.options.format == "qdq":  # the suffix says it
                leave_out = Argument("-o", "FILE.onnx", "write ONNX, {}")
            refused[argument("--format", self.format)] = leave_out
        interface, batch = (v is not None for v in (self.options.interface, self.options.batch))
        return refused | options_in_use({"--interface": interface, "--batch": batch})


@accepts_paths("path")
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
) -> tuple[QuantizedFile, ...]:
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

    Returns:
        The file that was written; of an encoder-decoder two, the encoder first.

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
    source = model if isinstance(model, str | Path) else None
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


def parts_of(model: Any, target: FileTarget, task: str | None) -> Mapping[str, Any]:
    """Return the modules that become files of their own; "" names a whole model.

    Args:
        model: as it was loaded.
        target: where files go.
        task: that the model was loaded with.

    Raises:
        OptionError: there are two, and one file is asked for; or the format holds no KV cache.
    """
    if isinstance(model, DecoderWithCache) and FORMATS.get(target.format) != MODEL_SUFFIXES:
        raise OptionError(
            "a language model with a KV cache becomes an .onnx file",
            Argument("-o", target.path.with_suffix(".onnx")),
        )
    if not isinstance(model, EncoderDecoder):
        return {"": model}
    if target.layout is not None:
        return model.parts
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
        settings = {name: value for name, value in vars(options).items() if name != "measure"}
        settings["dynamic"] = options.dynamic or getattr(inputs.batches, "dynamic", None)
        if isinstance(inputs.model, StoredModel):
            file, failure = _quantize_stored(inputs, settings, target)
            yield file
            if failure is not None:
                raise failure
            continue
        measured = ""
        if options.measure is not None:
            inputs, fastest = _measure_layers(inputs, settings, target)
            fastest.save(_part_path(Path(options.measure), part))
            settings |= {"recipe": fastest.recipe, **_IN_RECIPE}
            measured = str(fastest)
        quantized = quantize(
            inputs.model,
            inputs.batches,
            progress=stage("calibrating", inputs.batches),
            format=target.format,
            **settings,
        )
        path = target.path if writer is None else writer.path(part, quantized.plan)
        file = replace(write_file(quantized, path, target.options), measured=measured)
        file, failure = try_accuracy(file, inputs.evaluation)
        if writer is None:
            yield replace(file, kept=write_next_to(target.source, module, path))
        else:
            yield writer.add(file)
        if failure is not None:  # what belongs to the file is written, too
            raise failure


_IN_RECIPE = dict.fromkeys(("mode", "accuracy", "recover"))
"""Arguments of `quantize` that a complete recipe replaces."""


def _measure_layers(
    inputs: PartInputs, settings: Mapping[str, Any], target: FileTarget
) -> tuple[PartInputs, FastestRecipe]:
    """Return inputs whose data is still whole, and the fastest recipe. settings: of `quantize`."""
    module = inputs.model if isinstance(inputs.model, nn.Module) else None
    first, batches = (None, None) if inputs.batches is None else peek(inputs.batches, module)
    data = batches if first is None else [first]
    seconds = target.options.timing or FileOptions().timing
    with track_task("timing of layers"):
        fastest = fastest_recipe(
            inputs.model, data, format=target.format, seconds=seconds, **settings
        )
    return replace(inputs, batches=batches), fastest


def _part_path(path: Path, part: str) -> Path:
    """Return the file of a part of a model: next to the given path, with the part's name."""
    return path.with_stem(f"{path.stem}.{part}") if part else path


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
