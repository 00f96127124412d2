"""Metrics of the user's own function, which is called with each file like the float model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qtool.backends.open_files import open_model
from qtool.core.data import Batch, to_batch
from qtool.core.errors import DataError, describe
from qtool.core.option_names import NATIVE
from qtool.core.types import Array
from qtool.core.user_code import user_place
from qtool.evaluation.feeder import Feeder
from qtool.evaluation.metrics import Metric, make_metric


def user_metrics(
    function: Callable[[Any], Any],
    files: Sequence[Path],
    where: str,
    lower_is_better: Sequence[str] = (),
    runtime: str = NATIVE,
) -> tuple[Metric, ...]:
    """Evaluate the user's function on each model.

    Args:
        function: takes a model, which is called with tensors like the float model, and returns a
            number, an array with one number per sample, or a dict of these by name.
        where: name of the function in errors.
        lower_is_better: names of metrics that are errors or losses.
        runtime: see `open_model`.

    Raises:
        DataError: the function raises, returns NaN or a non-number, or other names per model.
    """
    results = [call_metrics(function, file, where, runtime) for file in files]
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
    function: Callable[[Any], Any], file: Path, where: str, runtime: str = NATIVE
) -> dict[str, Array]:
    """Return the metrics of the user's function on one file: a number or [samples], by name.

    Raises:
        DataError: as for `user_metrics`.
    """
    try:
        result = function(FileFunction(file, runtime))
    except (Exception, SystemExit) as error:
        why = f"{describe(error)}{user_place(error)}"
        raise DataError(f"{where} failed on {file.name}: {why}") from error
    if not isinstance(result, Mapping):
        result = {getattr(function, "__name__", "metric"): result}
    if not result:
        raise DataError(f"{where} returned an empty dict; return a number, or numbers by name")
    return {str(name): _number(value, f"{where}, '{name}'") for name, value in result.items()}


def _number(value: Any, where: str) -> Array:
    if value is None:
        raise DataError(f"{where} is None; return a number, or one per sample")
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} is a {type(value).__name__}, not a number") from error
    if array.ndim > 1 or not array.size:
        raise DataError(
            f"{where} has shape {list(array.shape)}; return a number, or one per sample"
        )
    if not np.isfinite(array).all():
        raise DataError(f"{where} is {'NaN' if np.isnan(array).any() else 'infinite'}")
    return array


class FileFunction:
    """An ONNX file that is called like the float model.

    Takes tensors by position or by name, and returns a tensor or a tuple of tensors.
    """

    def __init__(self, file: Path, runtime: str = NATIVE) -> None:
        self.file = file
        self.session = open_model(file, runtime=runtime)
        self.feeder = Feeder(self.session)
        self.calls = itertools.count()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        batch = Batch(to_batch(list(args)).args if args else (), to_batch(kwargs).kwargs)
        arrays = self.feeder.arrays(batch, next(self.calls))
        outputs = tuple(torch.from_numpy(o) for o in self.session.run(arrays))
        return outputs[0] if len(outputs) == 1 else outputs

    def eval(self) -> FileFunction:
        """Return self: evaluation loops call model.eval()."""
        return self
