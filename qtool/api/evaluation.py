"""The Python API for a file next to its float model: `evaluate`. It needs no torch for files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from qtool.api.float_source import float_source
from qtool.backends.formats import open_file, open_model
from qtool.core.atomic import scratch_folder
from qtool.core.limits import THREADS, Range
from qtool.core.option_names import NATIVE
from qtool.core.path_arguments import model_file
from qtool.core.progress import no_progress
from qtool.core.types import Progress
from qtool.distributed import collective, current
from qtool.evaluation.evaluate import evaluate_files
from qtool.evaluation.evaluation import Evaluation
from qtool.evaluation.labelled_data import LabelledData, calibrated_columns
from qtool.evaluation.subject import quantized_subject

if TYPE_CHECKING:
    from qtool.frontends.captured_model import Captured, Model


@collective
def evaluate(
    file: str | Path,
    model: Model | Captured | str | Path,
    data: Iterable[Any],
    labels: ArrayLike | None = None,
    *,
    function: Callable[[Any], Any] | None = None,
    where: str = "the evaluation function",
    lower_is_better: Sequence[str] = (),
    threads: int = 1,
    runtime: str = NATIVE,
    seconds: float = 2.0,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    other_model: bool = False,
    progress: Progress = no_progress,
) -> Evaluation:
    """Compare a quantized file with its float model: accuracy, size, latency, integer share.

    A causal language model is compared by its perplexity and its next tokens, and timed with the
    first text as prompt and, if it has a KV cache, with a step.

    In a process group of torch.distributed all ranks call it, each with its share of the data and
    labels; all get the results over all data. Rank 0 measures the latency.

    Args:
        file: the quantized file.
        model: the float model, as for `quantize`, or the path of its file.
        data: batches, in the order of `labels`, or all samples; arrays or tensors. What batches
            have after the inputs, as the labels of an (x, y) loader, is left out, with a note.
        labels: [samples] class numbers, an array or a list; the first output then holds [samples,
            classes] scores. Or numbers to predict, of the shape of the first output, for MAE, MSE
            and R2. Or the name of a column of a DataFrame.
        function, where, lower_is_better: your own metrics, see `ReportOptions`.
        threads, seconds: conditions of the latency measurement, on the first sample.
        runtime: "onnxruntime" for this machine's (LiteRT for .tflite files); "node" for
            onnxruntime-web's WebAssembly in node, on one thread.
        dynamic: see `capture_model`.
        other_model: accept a float model with other weights than the file was made from.
        progress: wraps the iterable of batches, for a progress bar.

    Raises:
        FileError: not a model file, or it cannot be read.
        DataError: no data, data that does not fit, or another number of labels.
        CaptureError: the model cannot be captured.
        InstallError: the model is no file, and torch is not installed.
        VerificationError: a file does not run, or was made from a model with other weights or
            other fixed inputs.
        RanksError: the ranks have different arguments, or one of them failed.

    Example:
        >>> print(qtool.evaluate("model.int8.onnx", model, loader, labels))
    """
    THREADS.check("threads", threads)
    Range(low=0).check("seconds", seconds)
    file = model_file(file)
    opened = open_file(file)  # says why it is malformed
    metrics = labels, function, where, lower_is_better
    judged = LabelledData(data, *metrics, columns=calibrated_columns(file))
    judged.check()
    if function is None and judged.labels is None:
        judged.note_labels(len(open_model(file).inputs))
    with scratch_folder() as folder:
        source = float_source(
            *(file, model, judged, folder),
            dynamic=dynamic,
            other_model=other_model,
            ranks=current(),
        )
        return evaluate_files(
            [source.subject, quantized_subject(opened)],
            source.data or judged,
            threads=threads,
            runtime=runtime,
            seconds=seconds,
            progress=progress,
        )
