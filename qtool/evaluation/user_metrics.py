"""Metrics of the user's own function: of each file, called like the float model, or of its outputs
and the labels of the data."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from qtool.backends.formats import open_like, open_model
from qtool.core.array_batches import is_array, whole_arrays, whole_texts
from qtool.core.errors import DataError, describe
from qtool.core.leaf_names import LABELS
from qtool.core.option_names import NATIVE
from qtool.core.remedies import CallEdit
from qtool.core.torch_package import has_torch
from qtool.core.types import Array
from qtool.core.user_code import user_place
from qtool.distributed import current
from qtool.evaluation.feeder import Feeder
from qtool.metrics.metric import Metric, make_metric


def user_metrics(
    function: Callable[[Any], Any],
    files: Sequence[Path],
    where: str,
    lower_is_better: Sequence[str] = (),
    runtime: str = NATIVE,
) -> tuple[Metric, ...]:
    """Evaluate the user's function on each model.

    Args:
        function: takes a model, which is called with tensors like the float model, without torch
            with arrays, and returns a number, an array with one number per sample, or a dict of
            these by name.
        where: name of the function in errors.
        lower_is_better: names of metrics that are errors or losses.
        runtime: see `open_model`.

    Raises:
        DataError: the function raises, returns NaN or a non-number, or other names per model.
    """
    results = [call_metrics(function, file, where, runtime, files[0]) for file in files]
    names = list(results[0])
    if different := next(
        (set(names) ^ set(other) for other in results if set(other) != set(names)), None
    ):
        raise DataError(f"{where} does not return '{min(different)}' for every model")
    if unknown := set(lower_is_better) - set(names):
        raise DataError(
            f"{where} returns no metric '{min(unknown)}'; it returns {', '.join(names)}"
        )
    return tuple(
        make_metric(n, [r[n] for r in results], "user", higher_is_better=n not in lower_is_better)
        for n in names
    )


def call_metrics(
    function: Callable[[Any], Any],
    file: Path,
    where: str,
    runtime: str = NATIVE,
    like: Path | None = None,
) -> dict[str, Array]:
    """Return the metrics of the user's function on one file: a number or [samples], by name.

    The file is called in the order of the inputs and outputs of `like`, if it has the same names.

    Raises:
        DataError: as for `user_metrics`.
    """
    try:
        result = function(FileFunction(file, runtime, like))
    except (Exception, SystemExit) as error:
        why = f"{describe(error)}{user_place(error)}"
        raise DataError(f"{where} failed on {file.name}: {why}") from error
    if not isinstance(result, Mapping):
        result = {getattr(function, "__name__", "metric"): result}
    if not result:
        raise DataError(
            f"{where} returned an empty dict", CallEdit("return a number, or numbers by name")
        )
    return {str(name): _number(value, f"{where}, '{name}'") for name, value in result.items()}


def _number(value: Any, where: str) -> Array:
    if value is None:
        raise DataError(f"{where} is None", CallEdit("return a number, or one per sample"))
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} is a {type(value).__name__}, not a number") from error
    if array.ndim > 1 or not array.size:
        raise DataError(
            f"{where} has shape {list(array.shape)}", CallEdit("return a number, or one per sample")
        )
    if not np.isfinite(array).all():
        raise DataError(f"{where} is {'NaN' if np.isnan(array).any() else 'infinite'}")
    return array


def over_data(
    function: Callable[..., Any], data: Iterable[Any], labels: Any
) -> tuple[Callable[[Any], Any], Iterable[Any], Any]:
    """Return a function of outputs and labels as one of a model, data that can be read again, and
    no labels, since the function has them; of a function of a model all as it is.

    Args:
        function: takes a model; or, if it has two required arguments, the outputs for all data and
            its labels: each a tensor, without torch an array, with the samples of all batches; of
            several outputs a tuple of these, of batches of different shapes a list.
        data: batches.
        labels: labels of all samples; None: those of the batches, what a tuple has after the inputs
            and a dict under usual names.

    Raises:
        DataError: the function is none, or the data is shared between ranks.
    """
    if not callable(function):
        raise DataError(
            f"the evaluation function is a {type(function).__name__}",
            CallEdit("give the function itself, not what it returns"),
        )
    if not _takes_outputs(function):
        return function, data, labels
    if current().is_distributed:
        raise DataError("a function of outputs and labels needs all data in one process")
    batches = whole_texts(data)
    batches = list(batches) if iter(batches) is batches else batches

    def metric(model: FileFunction) -> Any:
        outputs, own = model.outputs_and_labels(batches)
        known = own if labels is None else _tensor(np.asarray(labels))
        if known is None:
            raise DataError(
                "the data has no labels",
                CallEdit("pass them, or batches of inputs and labels such as (images, masks)"),
            )
        return function(outputs, known)

    metric.__name__ = getattr(function, "__name__", "metric")
    return metric, batches, None


def _takes_outputs(function: Callable[..., Any]) -> bool:
    """Return whether a function has two required arguments, rather than a model alone."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.kind in positional and p.default is p.empty]
    return len(required) == len(("outputs", "labels"))


class FileFunction:
    """An ONNX file that is called like the float model.

    Takes tensors by position or by name, and returns a tensor or a tuple of tensors; without torch
    arrays.
    """

    def __init__(self, file: Path, runtime: str = NATIVE, like: Path | None = None) -> None:
        self.file = file
        first = open_model(like or file, runtime=runtime)
        self.session = open_like(first, file, runtime=runtime)
        self.feeder = Feeder(self.session)
        self.calls = itertools.count()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = SimpleNamespace(args=args, kwargs=kwargs)  # as a `Batch`, which needs torch
        arrays = self.feeder.arrays(call, next(self.calls))
        outputs = tuple(map(_tensor, self.session.run(arrays)))
        return outputs[0] if len(outputs) == 1 else outputs

    def outputs_and_labels(self, data: Iterable[Any]) -> tuple[Any, Any]:
        """Return the outputs for all data and its labels, see `over_data`; None without labels."""
        labels: list[Any] = []

        def items() -> Iterator[Any]:
            for item in whole_arrays(data, self.feeder.takes):
                labels.append(_labels_of(item, self.feeder.names))
                yield item

        runs = [self.session.run(arrays) for arrays in Feeder(self.session, items())]
        outputs = tuple(_joined([_tensor(o) for o in each]) for each in zip(*runs, strict=True))
        known = None if any(each is None for each in labels) else _joined(labels)
        return outputs[0] if len(outputs) == 1 else outputs, known

    def eval(self) -> FileFunction:
        """Return self: evaluation loops call model.eval()."""
        return self


def _labels_of(item: Any, inputs: Sequence[str]) -> Any:
    """Return what a batch has besides the inputs; None without."""
    if isinstance(item, Mapping):
        labels = {k: v for k, v in item.items() if k in LABELS and k not in inputs}
        return next(iter(labels.values())) if len(labels) == 1 else labels or None
    rest = item[len(inputs) :] if isinstance(item, tuple | list) else ()
    return rest[0] if len(rest) == 1 else tuple(rest) or None


def _joined(parts: Sequence[Any]) -> Any:
    """Return the values of all batches as one: tensors by their samples, others in a list."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {key: _joined([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(_joined(each) for each in zip(*parts, strict=True))
    tensors = [_tensor(part) for part in parts]
    if all(is_array(t) and t.ndim for t in tensors):
        same = len({tuple(t.shape[1:]) for t in tensors}) == 1
        return _concatenated(tensors) if same else tensors
    return [value for part in parts for value in (part if isinstance(part, list) else [part])]


def _tensor(value: Any) -> Any:
    """Return an array as a tensor, where torch is installed; anything else is as it is."""
    if not has_torch():
        return value
    from qtool.core.data import to_tensor

    return to_tensor(value)


def _concatenated(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    from torch import cat

    return cat(list(parts))
