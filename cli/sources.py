"""Loading of the model and the data of a command, as its options say (`source_options`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from qtool.cli.distributed import has_ranks
from qtool.cli.labels import are_names, is_column, labels_within, load_labels, note_labels
from qtool.cli.reading import NO_DATA, Reading
from qtool.cli.records import parse_sizes
from qtool.cli.source_options import ModelFile, ModelOptions

from qtool.core.conversion_options import QuantizeOptions

if TYPE_CHECKING:
    from qtool.api.quantized_file import EvaluationData


def load_model(
    source: str, options: ModelOptions, with_parts: bool = False, file: Path | None = None
) -> Any:
    """Load the model of MODEL.

    Args:
        source: value of MODEL.
        options: how it is loaded.
        with_parts: the command takes a model that becomes two files.
        file: a quantized file made from the model: inputs that are constants in it are fixed.

    Raises:
        click.BadParameter: the model becomes two files, and the command takes one.
    """
    from qtool.core.progress import track_task
    from qtool.core.torch_package import has_torch

    task, attention = options.task, options.attention
    if not has_torch():
        return _float_file(source)
    from qtool.core.data.noise_inputs import noise_input
    from qtool.frontends.load_model import load_model as load
    from qtool.frontends.own_models import TaskModel

    fixed = dict(options.fixed or {})
    if file is not None:
        from qtool.evaluation.fixed_inputs import fixed_inputs_of

        fixed = {**fixed_inputs_of(file, source), **fixed}
    with track_task("loading the model"):
        model = load(source, options.weights, task, attention=attention, fixed=fixed)
        if file is not None and task is None:
            model = _with_cache_of(file, model, source, attention)
    if options.noise_input:
        model = noise_input(model)
    if isinstance(model, TaskModel) and model.parts and not with_parts:
        raise click.BadParameter(
            f"'{task}' makes two files; name one, {task}-encoder or {task}-decoder",
            param_hint="--task",
        )
    _apply_decoder_options(model, options)
    return model


def _with_cache_of(file: Path, model: Any, source: str, attention: str) -> Any:
    """Return a model, loaded with its KV cache if it is a language model and the file has one."""
    from qtool.api.captured_source import lacks_cache
    from qtool.frontends.huggingface.model_folder import WITH_PAST
    from qtool.frontends.load_model import load_model as load

    return load(source, None, WITH_PAST, attention) if lacks_cache(file, model) else model


def file_or_model(
    source: str,
    options: ModelOptions,
    reading: Reading,
    file: Path | None = None,
    data: str | None = None,
) -> tuple[Any, Reading]:
    """Return the path of a model file, or the model; of a float file with --fix the model. And the
    reading of data for it.

    Args:
        source: value of MODEL or --model.
        options: how it is loaded.
        reading: how data is read.
        file: a quantized file made from it.
        data: value of --data. What is read for a model, as images and tables are, is read for that
            of the file.
    """
    from qtool.core.numpy_files import SUFFIXES, has_arrays
    from qtool.core.option_names import MODEL_FORMATS
    from qtool.core.path_arguments import holds_file
    from qtool.core.paths import is_file
    from qtool.core.torch_package import has_torch

    if holds_file(source):
        path = ModelFile.convert(source, None, click.get_current_context())
        return path, replace(reading, files=(*reading.files, path))
    # with a file weights are refused: it has its own
    other = options.fixed or options.noise_input or options.weights is not None
    of_model = file is not None and other
    if not source.endswith(tuple(MODEL_FORMATS)) or of_model:
        model = load_model(source, options, file=file)
        return model, reading.of(source, model)
    arrays = not data or Path(data).suffix in SUFFIXES or has_arrays(Path(data))
    onnx = source.endswith(".onnx") and is_file(source)
    if has_torch() and onnx and (not arrays or reading.options.states):
        model = load_model(source, replace(options, weights=None), file=file)
        reading = reading.of(source, model)
    return Path(source), reading


def _float_file(source: str) -> Path:
    """Return the path of a model that is a file, where torch is not installed."""
    from qtool.backends.formats import is_model
    from qtool.core.torch_package import torch_error

    path = Path(source)
    if not is_model(path):
        raise torch_error(f"a model that is no .onnx or .tflite file ({source})")
    return path


def _apply_decoder_options(model: Any, options: ModelOptions) -> None:
    """Apply --logits, and refuse options of decoders for other models."""
    from qtool.frontends.own_models import TaskModel

    if isinstance(model, TaskModel) and model.has_cache:
        model.last_logits = options.logits == "last"
        if model.refusal is not None:
            click.echo(f"attention stays in single operators: {model.refusal}", err=True)
        return
    for name in ("logits", "attention"):
        if getattr(options, name) != getattr(ModelOptions, name):
            raise click.BadParameter(
                "it is for --task text-generation-with-past; leave it out", param_hint=f"--{name}"
            )


def load_model_without_weights(source: Path, options: ModelOptions) -> Any:
    """Load a model folder without its weights; None for an ONNX file, which is mapped.

    Returns:
        The model, and the one that data is read for.
    """
    from qtool.frontends.huggingface.meta_init import load_without_weights
    from qtool.frontends.onnx.onnx_file import map_onnx

    if is_onnx := source.suffix == ".onnx":
        model: Any = map_onnx(source)
    else:
        how = options.task, options.attention, options.cache
        model = load_without_weights(source, *how)
    _apply_decoder_options(model, options)
    return None if is_onnx else model, model


def load_data(reading: Reading) -> Iterable[Any]:
    """Load the batches of --data, without the array of its file that --labels names.

    Raises:
        DataError: there is no such data.
    """
    named = reading.sources
    own = named.labels if named.eval_data is None else labels_within(named.labels, named.data)
    return _load(reading, named.data or "", own, reading.options.samples)


def load_labelled(reading: Reading) -> tuple[Iterable[Any], Any]:
    """Load the batches of --data, and their labels."""
    batches = load_data(reading)
    return batches, load_labels(reading, reading.sources.data or "", batches)


def load_eval_data(reading: Reading) -> tuple[Iterable[Any], Any]:
    """Load all batches of --eval-data, whatever --samples says, and their labels."""
    named = reading.sources
    batches = _load(reading, named.eval_data or "", named.labels, None)
    return batches, load_labels(reading, named.eval_data or "", batches)


def _load(reading: Reading, source: str, labels: str | None, samples: int | None) -> Iterable[Any]:
    from qtool.api.data import load_data as load
    from qtool.core.torch_package import has_torch

    inside = None if labels is None or Path(labels).is_file() else labels
    options, size = replace(reading.options, samples=samples), reading.batch_size
    if not has_torch():
        return load(source, size, labels=inside, samples=options.samples)
    if are_names(labels, source):
        options = replace(options, classes=None)  # they are for the array of labels
    place: dict[str, Any] = {"model": reading.model, "model_folder": reading.folder}
    return load(source, size, labels=inside, **place, **vars(options))


def load_optional_data(reading: Reading) -> Iterable[Any] | None:
    """Load the batches of --data; None without it."""
    return None if reading.sources.data is None else load_data(reading)


def check_data(reading: Reading) -> None:
    """Check before the model is loaded that data and labels exist.

    Raises:
        DataError: a file or folder does not exist, or has no such labels.
    """
    from qtool.core.numpy_files import check_source, find_labels

    named, labels = reading.sources.named, reading.sources.labels
    for source in named:
        check_source(source)
    last = Path(named[-1]) if named else None
    if labels is not None and last is not None and not is_column(labels, last):
        find_labels(labels, last)


def load_example_texts(reading: Reading, source: str) -> Iterable[Any] | None:
    """Load texts to verify the weights of a model folder on; None for another model.

    Args:
        reading: how data is read for the loaded model.
        source: value of MODEL.
    """
    from qtool.core.log import log_warning
    from qtool.frontends.data.load_data import example_texts

    folder = reading.options.folder or source
    texts = example_texts(reading.model, folder) if Path(source).is_dir() else None
    if texts is not None:
        log_warning(
            "there is no data: no step recovers accuracy, and SQNR is that of one sentence in "
            "English; check accuracy on real data"
        )
    return texts


def load_inputs(reading: Reading, cache: str = "float") -> tuple[Any, Iterable[Any] | None]:
    """Return a loaded model, captured if --shape is given, and the batches of --data for it.

    With --data none the batches are None, and with --shape the model is captured for that shape.

    Args:
        reading: how data is read for the model.
        cache: value of --cache.

    Raises:
        DataError: there is no such data.
    """
    model, data, shape = reading.model, reading.sources.data, reading.sources.shape
    if shape is not None and data != NO_DATA:
        raise click.BadParameter(f"it is for --data {NO_DATA}; leave it out", param_hint="--shape")
    if data != NO_DATA:
        if cache == "int8":
            _quantize_cache(model, load_data(reading))
        return model, load_data(reading)
    if shape is None:
        return model, None
    import torch

    from qtool import capture_model
    from qtool.core.errors import CaptureError
    from qtool.frontends.torch.example_inputs import is_run_error

    try:
        return capture_model(model, torch.zeros(2, *parse_sizes(shape))), None
    except CaptureError as error:
        if not is_run_error(error):
            raise
        raise click.BadParameter(
            f"the model does not take samples of the shape {shape} ({error.problem})",
            param_hint="--shape",
        ) from error


def _quantize_cache(model: Any, batches: Iterable[Any]) -> None:
    """Quantize the KV cache of a decoder: batches that are loaded from then on have such a one."""
    from qtool.frontends.own_models import TaskModel

    if not isinstance(model, TaskModel) or not model.has_cache:
        raise click.BadParameter(
            "it is for --task text-generation-with-past; leave it out", param_hint="--cache"
        )
    model.quantize_cache(batches)


def load_evaluation(reading: Reading, batches: Iterable[Any] | None) -> EvaluationData | None:
    """Load the data of --eval-data, or take that of --data for --labels; None without both.

    Args:
        reading: how data is read for the model.
        batches: those of --data; None for --data none.

    Raises:
        DataError: there is no such data, or no such labels.
    """
    from qtool.api.quantized_file import EvaluationData
    from qtool.core.log import log_note

    named = reading.sources
    data = NO_DATA if named.data is None else named.data
    if named.eval_data is not None:
        same = data != NO_DATA and Path(named.eval_data).absolute() == Path(data).absolute()
        return EvaluationData(*load_eval_data(reading), "calibration" if same else "evaluation")
    if named.labels is None:
        rows = getattr(batches, "rows", ())
        own = rows[0].label if rows else getattr(batches, "labels", None)
        if own is not None:
            log_note(f"{data} has labels; --eval-data {data} measures accuracy with them")
        else:
            note_labels(Path(data), reading.model)
        return None
    if batches is None:
        raise click.BadParameter(
            f"--data {NO_DATA} has no labels; give --eval-data", param_hint="--labels"
        )
    return EvaluationData(batches, load_labels(reading, data, batches), "calibration")


def share_of(batches: Iterable[Any]) -> Iterable[Any]:
    """Return the batches of this rank out of data that all ranks have (`qtool.distributed.Share`).

    Raises:
        RanksError: the ranks do not have the same data.
    """
    if not has_ranks():
        return batches
    from qtool.distributed import DataShard, current, data_name

    ranks = current()
    if not ranks.is_distributed:
        return batches
    ranks.check_equal("different data", data_name(batches))
    return DataShard(batches, ranks.rank, ranks.size)


def with_dynamic(how: QuantizeOptions, batches: Iterable[Any] | None) -> QuantizeOptions:
    """Return the options with the dimensions that the data declares, without --dynamic."""
    return replace(how, dynamic=how.dynamic or getattr(batches, "dynamic", None))
