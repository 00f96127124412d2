"""The data that files are judged on: the user's batches with their labels and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from qtool.backends.formats import open_file
from qtool.backends.session import Session
from qtool.core.array_batches import ArrayBatches, is_frame, samples_in, whole_arrays
from qtool.core.errors import DataError
from qtool.core.frame_columns import in_column_order, split_labels
from qtool.core.log import log_note
from qtool.core.option_names import NATIVE
from qtool.core.progress import no_progress
from qtool.core.remedies import DataEdit
from qtool.core.types import Progress
from qtool.evaluation.feeder import Arrays, Feeder
from qtool.evaluation.user_metrics import over_data, user_metrics
from qtool.metrics.labels import check_labels, check_no_names
from qtool.metrics.metric import Metric, check_drop

if TYPE_CHECKING:
    from qtool.frontends.data.sample_names import SampleNames


@dataclass(frozen=True, eq=False)
class LabelledData:
    """The user's data, from its first batch on.

    Attributes:
        batches: batches, or all samples; a column of labels is none of a DataFrame.
        labels: [samples] class numbers, or numbers to predict, of the shape of the first output;
            None without. A name is that of a column of a DataFrame, and becomes its values.
        function: the user's metrics of a model; of outputs and labels it becomes one. None without.
        where: name of the function in errors.
        lower_is_better: names of its metrics that are errors or losses.
        bind: makes batches with the names of the inputs of the float model of them; by default they
            are as the user has them.
        columns: names of the columns that a table is brought to, see `calibrated_columns`.

    Raises:
        DataError: there is no such column, or the function is none.
    """

    batches: Iterable[Any]
    labels: ArrayLike | None = None
    function: Callable[..., Any] | None = None
    where: str = "the evaluation function"
    lower_is_better: Sequence[str] = ()
    bind: Callable[[Iterable[Any]], Iterable[Any]] = lambda batches: batches
    columns: InitVar[Iterable[Sequence[str]]] = ()

    def __post_init__(self, columns: Iterable[Sequence[str]]) -> None:
        batches, labels, function = self.batches, self.labels, self.function
        if is_frame(batches):
            batches, labels = split_labels(batches, labels)
        if is_frame(batches) or isinstance(batches, ArrayBatches):
            for each in columns:
                batches = in_column_order(batches, each)
        if function is not None:
            function, batches, labels = over_data(function, batches, labels)
        for name, value in (("batches", batches), ("labels", labels), ("function", function)):
            object.__setattr__(self, name, value)

    @property
    def whole(self) -> Iterable[Any]:
        """The batches in the form that accuracy is measured on, see `whole_texts`. Whole arrays
        stay: `Feeder` cuts them by the inputs of its file."""
        own: Any = self.batches
        whole: Iterable[Any] = own.whole_texts() if hasattr(own, "whole_texts") else own
        return whole

    @property
    def sample_names(self) -> SampleNames | None:
        """Names and thumbnails of the samples; None of data that has none."""
        return self.batches.sample_names() if hasattr(self.batches, "sample_names") else None

    def arrays(self, model: Session, progress: Progress = no_progress) -> Iterator[Arrays]:
        """Iterate over the batches as arrays in the order of a model's inputs; see `Feeder`."""
        return iter(Feeder(model, self.bind(self.whole), progress))

    def metrics(self, files: Sequence[Path], runtime: str = NATIVE) -> tuple[Metric, ...]:
        """Return the user's metrics of files; () without a function."""
        if self.function is None:
            return ()
        return user_metrics(self.function, files, self.where, self.lower_is_better, runtime)

    def check(self, max_drop: float | None = None) -> None:
        """Check labels before the work: that they are numbers, one per sample where the data has a
        known length, and in its order where both have an index of pandas.

        Args:
            max_drop: a goal for the first metric.

        Raises:
            DataError: they are not.
            OptionError: the goal for top-1 cannot be missed.
        """
        if self.labels is None:
            return
        if self.function is None and np.asarray(self.labels).dtype.kind in "biu":
            check_drop(max_drop, percent=True)
        _check_order(self.labels, getattr(self.batches, "index", None))
        samples = whole_arrays(self.whole)
        count = getattr(samples, "sample_count", None)
        if isinstance(samples, list | tuple):
            count = sum(samples_in(item) for item in samples)
        check_labels(self.labels, count)
        check_no_names(self.labels)

    def note_labels(self, inputs: int) -> None:
        """Note that batches of a list or a loader have more than the inputs, which may be labels.

        Args:
            inputs: number of inputs of the model.
        """
        own = self.batches
        items = own if isinstance(own, list | tuple) else getattr(own, "dataset", ())
        try:
            item = items[0]
        except Exception:  # noqa: BLE001  # the user's code; its errors show when it is read
            return
        if isinstance(item, list | tuple) and len(item) > inputs:
            more = f"{inputs} of {len(item)} entries" if inputs > 1 else "the first entry alone"
            log_note(f"batches give {more} to the model; pass labels to measure accuracy with them")


def calibrated_columns(*files: str | Path) -> Iterator[Sequence[str]]:
    """Yield the columns of the table that each file was calibrated on, see `in_column_order`."""
    for conversion in (open_file(file).conversion() for file in files):
        if conversion is not None:
            yield conversion.info.columns


def _check_order(labels: Any, own: Any) -> None:
    """Check that labels and a frame with an index have the same rows in one order; rows of other
    names are taken in the order that they have."""
    other: Any = getattr(labels, "index", None)
    if not hasattr(own, "equals") or not hasattr(other, "equals") or own.equals(other):
        return
    if len(own) == len(other) and set(own) == set(other):
        at = next(i for i, (a, b) in enumerate(zip(own, other, strict=True)) if a != b)
        raise DataError(
            f"the labels have the rows of the data in another order (row {at + 1} is {own[at]} "
            f"in the data, {other[at]} in the labels)",
            DataEdit("give labels.loc[data.index]"),
            DataEdit("give labels.to_numpy() if they are in the order of the data"),
        )
