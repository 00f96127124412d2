"""The Python API for a file next to its float model: `evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike
from torch import nn

from qtool.api.cached_files import check_cached
from qtool.backends.table import open_file, write_float
from qtool.core.atomic import scratch_folder
from qtool.core.data import Batch, batches, peek, whole_texts
from qtool.core.graph import FloatGraph
from qtool.core.limits import THREADS, Range
from qtool.core.option_names import NATIVE
from qtool.core.path_arguments import accepts_paths
from qtool.core.types import Progress
from qtool.distributed import collective, current
from qtool.distributed.data_shard import broadcast_first_batch
from qtool.evaluation.baseline import Baseline
from qtool.evaluation.evaluate import evaluate_files
from qtool.evaluation.evaluation import Evaluation
from qtool.evaluation.feeder import measure_outputs
from qtool.evaluation.fixed_inputs import check_fixed_inputs
from qtool.evaluation.label_checks import check_labels_of
from qtool.evaluation.measure.accuracy import Accuracy, summarize
from qtool.evaluation.model_inputs import check_cache
from qtool.evaluation.same_model import check_same_model
from qtool.evaluation.user_metrics import over_data
from qtool.frontends.captured_model import (
    Captured,
    DynamicSizes,
    Model,
    capture_model,
)
from qtool.frontends.data.table_remedies import columns_in_errors
from qtool.planning.targets import DEFAULT


@accepts_paths("file", models="file")
@collective
def evaluate(
    file: str | Path,
    model: Model | Captured,
    data: Iterable[Any],
    labels: ArrayLike | None = None,
    *,
    function: Callable[[Any], Any] | None = None,
    where: str = "the evaluation function",
    lower_is_better: Sequence[str] = (),
    threads: int = 1,
    runtime: str = NATIVE,
    seconds: float = 2.0,
    dynamic: DynamicSizes | None = None,
    other_model: bool = False,
    progress: Progress = lambda x: x,
) -> Evaluation:
    """Compare a quantized file with its float model: accuracy, size, latency, integer share.

    A causal language model is compared by its perplexity and its next tokens, and timed with the
    first text as prompt and, if it has a KV cache, with a step.

    In a process group of torch.distributed all ranks call it, each with its share of the data and
    labels; all get the results over all data. Rank 0 measures the latency.

    Args:
        file: the quantized ONNX file.
        model: the float model, as for `quantize`.
        data: batches, in the order of `labels`.
        labels: [samples] class numbers, an array or a list; the first output then holds [samples,
            classes] scores. Or numbers to predict, of the shape of the first output, for MAE, MSE
            and R2.
        function, where, lower_is_better: your own metrics, see `ReportOptions`.
        threads, seconds: conditions of the latency measurement, on the first sample.
        runtime: "onnxruntime" for this machine's (LiteRT for .tflite files); "node" for
            onnxruntime-web's WebAssembly in node, on one thread; "webgpu" for the WebGPU
            provider on a GPU.
        dynamic: see `capture_model`.
        other_model: accept a float model with other weights than the file was made from.
        progress: wraps the iterable of batches, for a progress bar.

    Raises:
        FileError: not an ONNX file, or it cannot be read.
        DataError: no data, data that does not fit, or another number of labels.
        CaptureError: the model cannot be captured.
        VerificationError: a file does not run, or was made from a model with other weights or
            other fixed inputs.
        RanksError: the ranks have different arguments, or one of them failed.
    """
    THREADS.check("threads", threads)
    Range(low=0).check("seconds", seconds)
    table = data
    opened = open_file(file)
    if function is None:
        check_labels_of(labels, data)
    else:
        function, data, labels = over_data(function, data, labels)
    check_fixed_inputs(file, model)
    check_cached(file, model)
    own, data = peek(data, data_module(model))
    first = broadcast_first_batch(current(), own, "evaluation")
    with columns_in_errors(table, model, first):
        captured = capture_model(model, first, dynamic)
    check_cache(file, captured.graph.inputs)
    if not other_model:
        check_same_model(file, captured, model)
    with scratch_folder() as folder:
        baseline = Baseline(captured, folder, opened.target or DEFAULT, opened.suffix)
        return evaluate_files(
            baseline.reference,
            Path(file),
            by_input_name(
                captured.graph, progress(batches(whole_texts(data), data_module(captured)))
            ),
            labels,
            function=function,
            where=where,
            lower_is_better=lower_is_better,
            timed=_to_time(captured.graph, first),
            baseline=baseline,
            threads=threads,
            runtime=runtime,
            seconds=seconds,
            contexts=getattr(data, "contexts", None),
        )


def measure_accuracy(
    reference: FloatGraph,
    target: str,
    file: str | Path,
    data: Iterable[Any],
    labels: ArrayLike | None = None,
    *,
    alone: bool = False,
    progress: Progress = lambda x: x,
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
    named = by_input_name(reference, progress(batches(whole_texts(data), reference.module)))
    if alone:
        return summarize(measure_outputs((Path(file),), named), labels)
    with scratch_folder() as folder:
        plain = write_float(reference, folder / "float.onnx", target)
        return summarize(measure_outputs((plain, Path(file)), named), labels)


def _to_time(graph: FloatGraph, first: Batch) -> tuple[Batch, ...]:
    """Return a sample of a batch, as `qtool.quantize_to_file` times, then the batch."""
    whole = graph.bind(first, 0)
    return tuple(by_input_name(graph, [graph.cut(whole, 1), whole]))


def data_module(model: Model | Captured) -> nn.Module | None:
    """Return the module that batches are arguments of, if it is known before capture."""
    if isinstance(model, Captured):
        return model.graph.module
    return model if isinstance(model, nn.Module) else None


def by_input_name(graph: FloatGraph, data: Iterable[Batch]) -> Iterator[Batch]:
    """Yield batches with their tensors by the names of the graph's inputs."""
    names = [i.name for i in graph.inputs]
    for index, batch in enumerate(data):
        tensors = (t for _, t in graph.bind(batch, index).tensors())
        yield Batch((), dict(zip(names, tensors, strict=True)))
