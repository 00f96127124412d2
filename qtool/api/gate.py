"""The Python API for a decision on a file: `gate`. It needs no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from qtool.backends.formats import open_file
from qtool.core.option_records import keywords_of
from qtool.core.path_arguments import model_file
from qtool.core.progress import no_progress
from qtool.core.types import Progress
from qtool.evaluation.gate.gate import run_gate
from qtool.evaluation.gate.inputs import is_decoder, own_texts
from qtool.evaluation.gate.result import GateResult
from qtool.evaluation.labelled_data import LabelledData, calibrated_columns
from qtool.evaluation.options import GateKeywords, GateOptions
from qtool.metrics.metric import PERPLEXITY
from qtool.metrics.named_metrics import AGREEMENT
from qtool.metrics.vector_output import folders_of, read_pooling

if TYPE_CHECKING:
    from typing_extensions import Unpack


@keywords_of(GateOptions)
def gate(
    file: str | Path,
    against: str | Path,
    data: Iterable[Any] | None = None,
    labels: ArrayLike | None = None,
    *,
    processor: str | Path | None = None,
    progress: Progress = no_progress,
    **keywords: Unpack[GateKeywords],
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
        processor: a folder whose `1_Pooling/config.json` says how the states of tokens become one
            vector for "spearman", "recall@K" and "agreement"; by default those of both files, else
            the mean over the attention mask.
        progress: wraps the iterable of batches, for a progress bar.
        keywords: the fields of `GateOptions`, which explains them: metric, max_drop, min_speedup,
            confidence, lower_is_better, other_model, runtime, threads and seconds.

    Raises:
        DataError: no data, or data that does not fit the float file.
        FileError: not a model file.
        OptionError: an unknown metric, one without its labels, or a number out of its range.
        VerificationError: the float file does not run.

    Example:
        >>> print(qtool.gate("model.int8.onnx", "model.onnx", loader, max_drop=0.01))
    """
    options = GateOptions(**keywords)
    file, against = model_file(file), model_file(against)
    open_file(against)
    if options.metric is None:
        options = replace(options, metric=PERPLEXITY if is_decoder(against) else AGREEMENT)
    data = own_texts(against, labels, progress) if data is None else data
    judged = LabelledData(data, labels, columns=calibrated_columns(file))
    folders = [] if processor is None else [Path(processor)]
    folders += folders_of((file, against))
    pooling = read_pooling(folders if isinstance(options.metric, str) else ())
    return run_gate(file, against, judged, options, pooling, progress)
