"""Goals and options of a report. Imports nothing heavy: commands take their defaults from here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypedDict

from qtool.core.limits import DAY, THREADS, Range
from qtool.core.option_names import NATIVE
from qtool.core.option_records import OptionRecord, option

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_COUNT = Range(low=1, whole=True)


@dataclass(frozen=True)
class Goals(OptionRecord):
    """Goals of a report. Without one the verdict uses a default, which does not count as missed. A
    command exits with 1 where a goal is missed.

    Attributes:
        drop: the largest loss of the first metric (0.01 of top-1 accuracy is one point).
        speedup: the least speed-up over the reference.
        coverage: the least share of the MACs (0 to 1) in integer kernels.

    Raises:
        OptionError: a goal is NaN, infinite or out of its range.
    """

    drop: float | None = option(None, "max-drop", range=Range())  # negative: it has to gain
    speedup: float | None = option(None, "min-speedup", range=Range(low=0, low_open=True))
    coverage: float | None = option(None, "min-coverage", range=Range(low=0, high=1))


@dataclass(frozen=True, eq=False)
class ReportOptions(OptionRecord):
    """What a report measures, and how precisely.

    Attributes:
        title: heading of the report; by default the name of its file, or else of its folder.
        labels: [samples] class numbers, or numbers to predict, of the shape of the first output; or
            the name of a column of a DataFrame.
        function: the user's metrics, see `user_metrics` and `over_data` of
            `qtool.evaluation.user_metrics`: of a model, or of outputs and labels.
        where: name of the function in errors.
        lower_is_better: name of a metric of your function for which lower is better.
        batch_sizes: batch sizes to benchmark, for example 1,32.
        threads: numbers of threads to benchmark with, for example 1,4.
        seconds: time limit for each benchmark.
        samples: measure the sensitivity of the layers on this many samples, the first ones.
        budget: time limit for measuring the layers, in runs of the float model.
        goals: goals of the verdict.

    Raises:
        OptionError: a number is NaN, infinite or out of its range.
    """

    title: str = ""
    labels: ArrayLike | None = None
    function: Callable[[Any], Any] | None = None
    where: str = "the evaluation function"
    lower_is_better: tuple[str, ...] = option((), "minimize", repeated=True, metavar="NAME")
    batch_sizes: tuple[int, ...] = option((1, 32), kind="counts", range=_COUNT)
    threads: tuple[int, ...] = option((1,), kind="counts", range=THREADS)
    seconds: float = option(2.0, range=Range(0, DAY, low_open=True))
    samples: int = option(512, "layer-samples", kind="count", range=_COUNT)
    budget: float = option(3.5, range=Range(low=2.5))
    goals: Goals = field(default_factory=Goals)

    def titled(self, title: str) -> ReportOptions:
        """Return the options with a title, if they have none."""
        return self if self.title else replace(self, title=title)

    @property
    def metrics(self) -> tuple[ArrayLike | None, Callable[..., Any] | None, str, tuple[str, ...]]:
        """What `LabelledData` takes after the batches."""
        return self.labels, self.function, self.where, self.lower_is_better


@dataclass(frozen=True)
class GateOptions(OptionRecord):
    """What a gate asks for: the keywords of `qtool.gate`.

    In Python the metric is also a function of outputs and labels, as arrays, which returns a number
    or one per sample.

    Attributes:
        metric: agreement (of the answers, without labels), top-1, top-5, f1, map, mae, mse, r2,
            recall@K, spearman, wer, perplexity, or MODULE:FUNCTION of outputs and labels; by
            default perplexity of a language model with its KV cache, else agreement.
        max_drop: largest drop of the metric that is accepted; by default 0.01 (one point), of
            errors and metrics above 1 one percent of the float file's.
        min_speedup: smallest speed-up that is accepted; without it nothing is timed.
        confidence: probability that a file at the limit is not decided about wrongly.
        lower_is_better: the numbers of MODULE:FUNCTION are errors.
        other_model: accept a float file with other weights than the file was made from.
        runtime: see `qtool.evaluate`.
        threads: number of threads to time with.
        seconds: time limit for the benchmark.

    Raises:
        OptionError: a number is NaN, infinite or out of its range.
    """

    metric: str | Callable[[Any, Any], Any] | None = option(None)
    max_drop: float | None = option(None, range=Range(0))
    min_speedup: float | None = option(None, range=Range(0, low_open=True))
    confidence: float = option(0.95, range=Range(0.5, 1, low_open=True, high_open=True))
    lower_is_better: bool = option(False)
    other_model: bool = False
    runtime: str = NATIVE
    threads: int = option(1, range=THREADS)
    seconds: float = option(2.0, range=Range(0, DAY))


class GateKeywords(TypedDict, total=False):
    """The fields of `GateOptions` as keywords, for type checkers."""

    metric: str | Callable[[Any, Any], Any] | None
    max_drop: float | None
    min_speedup: float | None
    confidence: float
    lower_is_better: bool
    other_model: bool
    runtime: str
    threads: int
    seconds: float


@dataclass(frozen=True)
class GenerationOptions(OptionRecord):
    """How a text is continued.

    Attributes:
        tokens: most new tokens; a token that ends texts is the last, or the context of the model.
        temperature: divides the logits; 0 takes the most likely token.
        top_k: number of tokens to choose from; 0 for all.
        top_p: probability of the smallest set of tokens to choose from.
        seed: seed of the random numbers.
        threads: threads of ONNX Runtime; 0 lets it choose.

    Raises:
        OptionError: a number is out of its range.
    """

    tokens: int = option(64, kind="count", range=_COUNT)
    temperature: float = option(0.0, range=Range(0))
    top_k: int = option(0, range=Range(0, whole=True))
    top_p: float = option(1.0, range=Range(0, 1, low_open=True))
    seed: int = option(0, range=Range(0, whole=True))
    threads: int = option(0, range=Range(0, 1024, whole=True))


class GenerationKeywords(TypedDict, total=False):
    """The fields of `GenerationOptions` as keywords, for type checkers."""

    tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    threads: int
