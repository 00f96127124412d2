"""Float models of torch as files: the front of what judges files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike
from torch import nn

from qtool.api.conversion_inputs import data_module, sizes_of_data
from qtool.api.float_source import FloatSource
from qtool.backends.formats import open_file, open_model, write_float
from qtool.core.atomic import scratch_folder
from qtool.core.conversion_options import DynamicSizes
from qtool.core.data import Batch, batches, peek, whole_texts
from qtool.core.errors import CaptureError, DataError, VerificationError
from qtool.core.graph import FloatGraph
from qtool.core.on_use import OnUse
from qtool.core.progress import no_progress
from qtool.core.random_inputs import is_cache
from qtool.core.remedies import Argument
from qtool.core.types import Progress
from qtool.distributed import Ranks
from qtool.distributed.first_batch import broadcast_first_batch
from qtool.evaluation.baseline import ONNX, Baseline
from qtool.evaluation.feeder import Feeder
from qtool.evaluation.fixed_inputs import check_fixed_inputs, fixed_inputs_of
from qtool.evaluation.measure.accuracy import Accuracy, summarize
from qtool.evaluation.measure.output_pass import Reference, measure_arrays
from qtool.evaluation.model_inputs import check_cache, describe_input
from qtool.frontends.captured_model import Captured, Model, capture_model
from qtool.frontends.huggingface.returned_cache import cache_note
from qtool.planning.targets import DEFAULT

if TYPE_CHECKING:
    from qtool.evaluation.labelled_data import LabelledData
    from qtool.evaluation.planned_layers import PlannedLayers

# a conversion measures accuracy, and needs none of these
_check_same_model = OnUse("qtool.evaluation.same_model:check_same_model")
_load_onnx = OnUse("qtool.frontends.onnx.onnx_file:load_onnx")
_planned_layers = OnUse("qtool.evaluation.planned_layers:PlannedLayers")
_try_restore = OnUse("qtool.evaluation.restored_model:try_restore")


def captured_source(
    file: str | Path,
    model: Model | Captured,
    data: LabelledData,
    folder: Path,
    dynamic: DynamicSizes | None,
    other_model: bool,
    ranks: Ranks,
) -> FloatSource:
    """Capture a model on the first batch of all ranks; see `float_source`."""
    opened = open_file(file)
    check_fixed_inputs(file, model)
    check_cached(file, model)
    ahead, stream = peek(data.batches, data_module(model))
    first = broadcast_first_batch(ranks, next(iter(ahead), None), "evaluation")
    captured = capture_model(model, first, sizes_of_data(model, ahead, dynamic))
    check_cache(file, captured.graph.inputs)
    if not other_model:
        _check_same_model(file, captured, model)
    baseline = Baseline(captured, folder, opened.target or DEFAULT, opened.suffix)

    def layers() -> PlannedLayers | str:
        restored = _try_restore(file, captured, first)
        return restored if isinstance(restored, str) else _planned_layers(restored)

    bind = partial(by_input_name, captured.graph)
    return FloatSource(baseline.subject, layers, replace(data, batches=stream, bind=bind))


def load_unless_runs(file: Path, quantized: Path) -> Path | nn.Module:
    """Return the path of a float file; the loaded copy in float32 of one in bfloat16, for which
    ONNX Runtime has no kernels, or with the inputs fixed that are constants in the quantized
    file."""
    if fixed := fixed_inputs_of(quantized, file):
        fixed_model: nn.Module = _load_onnx(file, fixed)
        return fixed_model
    try:
        open_model(file)
    except VerificationError:
        with suppress(CaptureError):
            if file.suffix == ONNX and (module := _load_onnx(file)).notes:
                copy: nn.Module = module
                return copy
        raise
    return file


def measure_accuracy(
    reference: FloatGraph,
    target: str,
    file: str | Path,
    data: Iterable[Any],
    labels: ArrayLike | None = None,
    *,
    alone: bool = False,
    progress: Progress = no_progress,
) -> Accuracy:
    """Run an exported file and its float model on data, without timing them.

    Args:
        reference: the float model; its weights may be deferred.
        target: name of the target of the file.
        file: the exported file.
        data: batches, in the order of `labels`.
        labels: [samples] class numbers.
        alone: run the file alone, so that the result has its metrics and one model.
        progress: wraps the iterable of batches, for a progress bar.

    Raises:
        DataError: no data, data that does not fit, or labels that are none of it.
        VerificationError: a file does not run.
    """
    files = [Path(file)]
    with scratch_folder() as folder:
        if not alone:
            files.insert(0, write_float(reference, folder / "float.onnx", target))
        source = Reference(files[0])
        named = Feeder(source.session, by_input_name(reference, whole_texts(data)), progress)
        return summarize(measure_arrays(source, files[1:], named), labels)


def by_input_name(graph: FloatGraph, data: Iterable[Any]) -> Iterator[Batch]:
    """Yield batches of data with their tensors by the names of the graph's inputs."""
    names = [i.name for i in graph.inputs]
    for index, batch in enumerate(batches(data, graph.module)):
        tensors = (t for _, t in graph.bind(batch, index).tensors())
        yield Batch((), dict(zip(names, tensors, strict=True)))


def check_cached(file: str | Path, model: Any) -> None:
    """Check that a language model was loaded with the KV cache of its file, before it is captured.

    Args:
        file: the file.
        model: as it was loaded.

    Raises:
        DataError: it has none, and the file has.
    """
    if lacks_cache(file, model):
        raise DataError(
            f"{file} has a KV cache as inputs, and the float model has none",
            Argument("--task", "text-generation-with-past", "load that with {}, too"),
        )


def lacks_cache(file: str | Path, model: Any) -> bool:
    """Return whether a file takes a KV cache, and the language model loaded for it none."""
    if cache_note(model) is None:
        return False
    return any(is_cache(describe_input(each)) for each in open_model(file).inputs)
