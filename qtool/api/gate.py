"""The Python API for a decision on a file: `gate`. It needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from qtool.backends.formats import open_file
from qtool.core.limits import THREADS, Range
from qtool.core.option_names import NATIVE
from qtool.core.path_arguments import model_file
from qtool.core.progress import no_progress
from qtool.core.types import Progress
from qtool.evaluation.gate.gate import run_gate
from qtool.evaluation.gate.inputs import is_decoder, own_texts
from qtool.evaluation.gate.result import CONFIDENCE, GateOptions, GateResult
from qtool.evaluation.labelled_data import LabelledData, calibrated_columns
from qtool.metrics.metric import PERPLEXITY
from qtool.metrics.named_metrics import AGREEMENT, user_metric
from qtool.metrics.vector_output import folders_of, read_pooling


def gate(
    file: str | Path,
    against: str | Path,
    data: Iterable[Any] | None = None,
    labels: ArrayLike | None = None,
    *,
    metric: str | Callable[[Any, Any], Any] | None = None,
    max_drop: float | None = None,
    min_speedup: float | None = None,
    confidence: float = CONFIDENCE,
    lower_is_better: bool = False,
    other_model: bool = False,
    runtime: str = NATIVE,
    threads: int = 1,
    seconds: float = 2.0,
    processor: str | Path | None = None,
    progress: Progress = no_progress,
) -> GateResult:
    """Decide whether a quantized file may take the place of its float file.

    Files of any tool, with and without torch.

    Args:
        file: the quantized file.
        against: the float file.
        data: batches, in the order of `labels`; where torch is not installed, of arrays. None of a
            language model with its KV cache: texts that the float file writes itself.
        labels: what the metric needs, a row per sample in the order of the batches; of "spearman"
            on vectors one per pair of consecutive samples. Of texts that `qtool.load_data` groups
            by length, consecutive ones are those of the data. Or the name of a column of a
            DataFrame.
        metric: "agreement", "top-1", "top-5", "f1", "map", "mae", "mse", "r2", "recall@K",
            "spearman", "wer" or "perplexity"; or a function of outputs and labels, as arrays, which
            returns a number or one per sample. By default the perplexity of a language model with
            its KV cache, else the agreement.
        max_drop: the largest drop that is accepted; by default 0.01, of errors and metrics above 1
            one percent of the float file's.
        min_speedup: the least float latency / quantized latency; None: none is measured.
        confidence: probability that a file at the limit is not decided about wrongly.
        lower_is_better: whether the numbers of a function are errors.
        other_model: accept a float file with other weights than the file was made from.
        runtime, threads, seconds: see `qtool.evaluate`.
        processor: a folder whose `1_Pooling/config.json` says how the states of tokens become one
            vector for "spearman", "recall@K" and "agreement"; by default those of both files, else
            the mean over the attention mask.
        progress: wraps the iterable of batches, for a progress bar.

    Raises:
        DataError: no data, or data that does not fit the float file.
        FileError: not a model file.
        OptionError: an unknown metric, one without its labels, or a number out of its range.
        VerificationError: the float file does not run.

    Example:
        >>> print(qtool.gate("model.int8.onnx", "model.onnx", loader, max_drop=0.01))
    """
    Range(low=0).check("max_drop", max_drop, optional=True)
    Range(low=0, low_open=True).check("min_speedup", min_speedup, optional=True)
    Range(0.5, 1, low_open=True, high_open=True).check("confidence", confidence)
    Range(low=0).check("seconds", seconds)
    THREADS.check("threads", threads)
    file, against = model_file(file), model_file(against)
    open_file(against)
    if metric is None:
        metric = PERPLEXITY if is_decoder(against) else AGREEMENT
    name = metric if isinstance(metric, str) else getattr(metric, "__name__", "metric")
    chosen = metric if isinstance(metric, str) else user_metric(metric, name, not lower_is_better)
    data = own_texts(against, labels, progress) if data is None else data
    judged = LabelledData(data, labels, columns=calibrated_columns(file))
    folders = [] if processor is None else [Path(processor)]
    folders += folders_of((file, against))
    options = GateOptions(
        chosen,
        max_drop,
        min_speedup,
        confidence,
        other_model,
        runtime,
        threads,
        seconds,
        read_pooling(folders if isinstance(metric, str) else ()),
    )
    return run_gate(file, against, judged, options, progress)
