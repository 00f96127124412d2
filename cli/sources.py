"""Loading of the model and the data of a command, as its options say (`source_options`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from qtool.cli.distributed import has_ranks
from qtool.cli.labels import are_names, is_column, load_labels, note_labels
from qtool.cli.parsed_options import parse_dynamic, parse_fixed, parse_sizes, parse_states
from qtool.cli.reading_options import (
    check_batch_size,
    chosen_options,
    refuse_reading,
    with_used_options,
)
from qtool.cli.source_options import (
    NO_DATA,
    ModelFile,
    context_value,
    loaded_model,
    processor_folder,
    remember_model,
)

from qtool.core.formats import quantity

if TYPE_CHECKING:
    from qtool.api.quantized_file import EvaluationData


def load_model(
    source: str, weights: Path | None, with_parts: bool = False, file: Path | None = None
) -> Any:
    """Load the model of MODEL, --weights and --task; `load_data` reads data for this model.

    Args:
        source: value of MODEL.
        weights: value of --weights.
        with_parts: the command takes a model that becomes two files.
        file: a quantized file made from the model: inputs that are constants in it are fixed.

    Raises:
        click.BadParameter: the model becomes two files, and the command takes one.
    """
    from qtool.core.missing_files import check_task_folder
    from qtool.core.progress import track_task
    from qtool.core.torch_package import has_torch

    check_task_folder(source, context_value("task"))  # before torch is imported
    if not has_torch():
        return _float_file(source)
    from qtool.frontends.huggingface.encoder_decoder import EncoderDecoder
    from qtool.frontends.load_model import load_model as load

    attention = context_value("attention") or "fused"
    fixed = parse_fixed(context_value("fix") or ())
    if file is not None:
        from qtool.evaluation.fixed_inputs import fixed_inputs_of

        fixed = {**fixed_inputs_of(file, source), **fixed}
    with track_task("loading the model"):
        model = load(source, weights, context_value("task"), attention=attention, fixed=fixed)
    if isinstance(model, EncoderDecoder) and not with_parts:
        task = context_value("task")
        raise click.BadParameter(
            f"'{task}' makes two files; name one, {task}-encoder or {task}-decoder",
            param_hint="--task",
        )
    _apply_decoder_options(model)
    remember_model(source, model)
    return model


def file_or_model(
    source: str, weights: Path | None, file: Path | None = None, data: str | None = None
) -> Any:
    """Return the path of a model file, or the model; of a float file with --fix the model.

    Args:
        source: value of MODEL or --model.
        weights: value of --weights.
        file: a quantized file made from it.
        data: value of --data. What is read for a model, as images and tables are, is read for that
            of the file.
    """
    from qtool.core.numpy_files import SUFFIXES, has_arrays
    from qtool.core.option_names import MODEL_FORMATS
    from qtool.core.path_arguments import QUANTIZE_CONFIG
    from qtool.core.paths import is_file
    from qtool.core.torch_package import has_torch

    fixed = file is not None and context_value("fix")
    if is_file(Path(source) / QUANTIZE_CONFIG):
        return ModelFile.convert(source, None, click.get_current_context())
    weighted = file is not None and weights is not None  # refused: a file has its own
    if not source.endswith(tuple(MODEL_FORMATS)) or fixed or weighted:
        return load_model(source, weights, file=file)
    arrays = data is None or Path(data).suffix in SUFFIXES or has_arrays(Path(data))
    onnx = source.endswith(".onnx") and is_file(source)
    if has_torch() and onnx and (not arrays or context_value("states")):
        load_model(source, None, file=file)
    return Path(source)


def _float_file(source: str) -> Path:
    """Return the path of a model that is a file, where torch is not installed."""
    from qtool.backends.formats import is_model
    from qtool.core.torch_package import torch_error

    path = Path(source)
    if not is_model(path):
        raise torch_error(f"a model that is no .onnx or .tflite file ({source})")
    return path


def _apply_decoder_options(model: Any) -> None:
    """Apply --logits, and refuse options of decoders for other models."""
    from qtool.frontends.huggingface.causal_decoder import DecoderWithCache

    last = context_value("logits") == "last"
    if not isinstance(model, DecoderWithCache):
        masked = context_value("attention") == "masked"
        if option := "--logits" * last or "--attention" * masked:
            raise click.BadParameter(
                "it is for --task text-generation-with-past; leave it out", param_hint=option
            )
        return
    model.last_logits = last
    if model.refusal is not None:
        click.echo(f"attention stays in single operators: {model.refusal}", err=True)


def write_companions(source: str, model: Any, path: Path) -> None:
    """Write configuration and tokenizer next to the file of a model from a transformers folder."""
    from qtool.api.model_folder import write_next_to

    report_kept(write_next_to(source, model, path), source)


def report_kept(files: Iterable[Path], source: str) -> None:
    """Name files that stayed as they were, since they are not those of a model's folder."""
    for kept in files:
        own = Path(source) / kept.name
        click.echo(f"{kept} differs from {own} and stays as it is", err=True)


def load_model_without_weights(source: Path) -> Any:
    """Load a model folder without its weights, with --task, --cache, --attention and --logits.

    None for an ONNX file, which is mapped; `load_data` reads data for this model.
    """
    from qtool.frontends.huggingface.meta_init import load_without_weights
    from qtool.frontends.onnx.onnx_file import map_onnx

    task, attention, cache = (context_value(name) for name in ("task", "attention", "cache"))
    if context_value("fix"):
        raise click.BadParameter("is not for conversions block by block", param_hint="--fix")
    if is_onnx := source.suffix == ".onnx":
        model: Any = map_onnx(source)
    else:
        model = load_without_weights(source, task, attention or "fused", cache or "float")
    _apply_decoder_options(model)
    remember_model(str(source), model)
    return None if is_onnx else model


def chosen_samples() -> int | None:
    """Return the value of --samples."""
    count: int | None = context_value("samples")
    return count


def load_data(
    source: str, batch_size: int, labels: str | None = None, whole: bool = False
) -> Iterable[Any]:
    """Load the batches of --data, without the array of its file that --labels names.

    Args:
        source: value of --data.
        batch_size: samples per batch.
        labels: value of --labels.
        whole: read all samples, whatever --samples says: this is not --data.

    Raises:
        DataError: there is no such data.
    """
    from qtool.api.data import load_data as load
    from qtool.core.torch_package import has_torch

    inside = None if labels is None or Path(labels).is_file() else labels
    count = None if whole else chosen_samples()
    if not has_torch():
        return load(source, batch_size, labels=inside, samples=count)
    name, model = loaded_model()
    check_batch_size(source)
    chosen = chosen_options()
    if are_names(labels, source):
        chosen.pop("classes", None)  # they are for the array of labels
    batches = with_used_options(
        source,
        partial(
            load,
            source,
            batch_size,
            model=model,
            model_folder=processor_folder(name),
            labels=inside,
            samples=count,
            states=parse_states(context_value("states") or ()),
        ),
        chosen,
    )
    if unreadable := getattr(batches, "unreadable", ()):
        click.echo(
            f"skipped {quantity(len(unreadable), 'file')} of {source}: {'; '.join(unreadable)}",
            err=True,
        )
    return batches


def load_optional_data(
    source: str | None, batch_size: int, but: Collection[str] = ()
) -> Iterable[Any] | None:
    """Load the batches of --data; None without it, which refuses options of reading but `but`."""
    if source is None:
        refuse_reading(but)
        return None
    return load_data(source, batch_size)


def check_data(*sources: str | None, labels: str | None = None) -> None:
    """Check before the model is loaded that data and labels exist.

    Args:
        sources: values of --data and --eval-data; the labels are on the last one.
        labels: value of --labels.

    Raises:
        DataError: a file or folder does not exist, or has no such labels.
    """
    from qtool.core.numpy_files import check_source, find_labels

    named = [source for source in sources if source not in (None, NO_DATA)]
    if not named:
        refuse_reading(but=("folder",))
    for source in named:
        check_source(source)
    if labels is not None and named and not is_column(labels, Path(named[-1])):
        find_labels(labels, Path(named[-1]))


def load_model_and_data(
    source: str, weights: Path | None, data: str, shape: str | None, batch_size: int
) -> tuple[Any, Iterable[Any] | None]:
    """Load the model and the batches of --data.

    With --data none the batches are None, and with --shape the model is captured for that shape.

    Raises:
        DataError: there is no such data.
    """
    return load_inputs(source, load_model(source, weights), data, shape, batch_size)


def load_example_texts(source: str, model: Any) -> Iterable[Any] | None:
    """Load texts to verify the weights of a model folder on; None for another model.

    Args:
        source: value of MODEL.
        model: the loaded model.
    """
    from qtool.core.log import log_warning
    from qtool.frontends.data.load_data import example_texts

    folder = context_value("processor") or source
    texts = example_texts(model, folder) if Path(source).is_dir() else None
    if texts is not None:
        log_warning(
            "there is no data: no step recovers accuracy, and SQNR is that of one sentence in "
            "English; check accuracy on real data"
        )
    return texts


def load_inputs(
    source: str,
    model: Any,
    data: str,
    shape: str | None,
    batch_size: int,
    labels: str | None = None,
) -> tuple[Any, Iterable[Any] | None]:
    """Return a loaded model, captured if --shape is given, and the batches of --data for it.

    Args:
        labels: value of --labels, if it is on --data.

    Raises:
        DataError: there is no such data.
    """
    remember_model(source, model)
    if shape is not None and data != NO_DATA:
        raise click.BadParameter(f"it is for --data {NO_DATA}; leave it out", param_hint="--shape")
    if data != NO_DATA:
        if context_value("cache") == "int8":
            _quantize_cache(model, load_data(data, batch_size, labels))
        return model, load_data(data, batch_size, labels)
    if shape is None:
        return model, None
    import torch

    from qtool import capture_model
    from qtool.core.errors import CaptureError
    from qtool.frontends.torch.export_errors import is_run_error

    try:
        return capture_model(model, torch.zeros(2, *parse_sizes(shape))), None
    except CaptureError as error:
        if not is_run_error(error):
            raise
        likely = _shape_taken(model, parse_sizes(shape))
        instead = f"; write --shape {likely}" if likely else ""
        raise click.BadParameter(
            f"the model does not take samples of the shape {shape} ({error.problem}){instead}",
            param_hint="--shape",
        ) from error


def _shape_taken(model: Any, sizes: Sequence[int]) -> str:
    """Return the shape without the batch, or with channels first, if the model takes it."""
    import torch

    from qtool.core.data import to_batch
    from qtool.frontends.torch.export_errors import eager_problem

    for each in (sizes[1:], (*sizes[-1:], *sizes[:-1])):
        if each and eager_problem(model, to_batch(torch.zeros(2, *each))) is None:
            return ",".join(map(str, each))
    return ""


def _quantize_cache(model: Any, batches: Iterable[Any]) -> None:
    """Quantize the KV cache of a decoder: batches that are loaded from then on have such a one."""
    from qtool.frontends.huggingface.causal_decoder import DecoderWithCache

    if not isinstance(model, DecoderWithCache):
        raise click.BadParameter(
            "it is for --task text-generation-with-past; leave it out", param_hint="--cache"
        )
    model.quantize_cache(batches)


def load_evaluation(
    eval_data: str | None,
    labels: str | None,
    data: str,
    batches: Iterable[Any] | None,
    batch_size: int,
) -> EvaluationData | None:
    """Load the data of --eval-data, or take that of --data for --labels; None without both.

    Raises:
        DataError: there is no such data, or no such labels.
    """
    from qtool.api.quantized_file import EvaluationData
    from qtool.core.log import log_note

    if eval_data is not None:
        batches = load_data(eval_data, batch_size, labels, whole=True)
        same = data != NO_DATA and Path(eval_data).absolute() == Path(data).absolute()
        kind = "calibration" if same else "evaluation"
        return EvaluationData(batches, load_labels(labels, eval_data, batches), kind)
    if labels is None:
        if context_value("classes"):
            raise click.BadParameter(
                "it is for labels, of --eval-data or --labels; leave it out", param_hint="--classes"
            )
        rows = getattr(batches, "rows", ())
        own = rows[0].label if rows else getattr(batches, "labels", None)
        if own is not None:
            log_note(f"{data} has labels; --eval-data {data} measures accuracy with them")
        else:
            note_labels(Path(data))
        return None
    if batches is None:
        raise click.BadParameter(
            f"--data {NO_DATA} has no labels; give --eval-data", param_hint="--labels"
        )
    return EvaluationData(batches, load_labels(labels, data, batches), "calibration")


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


def dynamic_of(
    values: tuple[str, ...], batches: Iterable[Any] | None
) -> Mapping[str, Mapping[int, str]] | None:
    """Return the dimensions of --dynamic; without the option those that the data declares."""
    return (parse_dynamic(values) if values else None) or getattr(batches, "dynamic", None)
