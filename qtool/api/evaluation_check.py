"""Checks evaluation data and labels before the model is captured and calibrated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn
from torch.utils import _pytree as pytree

from qtool.api.conversion_inputs import data_module
from qtool.core.argument_names import argument
from qtool.core.data import Batch, batches, whole_texts
from qtool.core.errors import CaptureError, DataError
from qtool.core.log import unlogged
from qtool.evaluation.labelled_data import LabelledData
from qtool.frontends.torch.export_errors import eager_problem, run_error
from qtool.metrics.labels import check_classes


def check_evaluation_data(
    model: Any, data: Iterable[Any] | None, evaluation: Iterable[Any], labels: ArrayLike | None
) -> None:
    """Check labels, and that a model that runs on the calibration data runs on the evaluation data.

    Only data that can be read again is read; a model in training mode is not run.

    Args:
        model: as for `quantize`.
        data: batches for calibration; None without, or if they are the evaluation data.
        evaluation: batches, in the order of the labels.
        labels: as for `evaluate`.

    Raises:
        DataError, CaptureError: they do not fit; the message names the evaluation data.
    """
    if labels is not None:
        LabelledData(evaluation, labels).check()
    module = data_module(model)
    if module is None or module.training:
        return
    with unlogged(), evaluation_in_errors():
        first = _first(evaluation, module)
    if first is None:
        return
    problem = eager_problem(module, first)
    if problem is None:
        _check_classes(module, first, labels)
        return
    with unlogged():
        other = _first(data, module)
    if other is None or eager_problem(module, other) is not None:
        return  # it may be the model
    with evaluation_in_errors():
        raise run_error(module, first, problem)


@contextmanager
def evaluation_in_errors(named: bool = True) -> Iterator[None]:
    """Say in errors of data that it is the evaluation data.

    Args:
        named: whether it is not the calibration data, too.

    Raises:
        DataError, CaptureError: the error inside.
    """
    try:
        yield
    except (CaptureError, DataError) as error:
        if not named:
            raise
        where = f"in {argument('--eval-data')}, "
        raise type(error)(f"{where}{error.problem}", *error.remedies) from error


def _first(data: Any, module: nn.Module) -> Batch | None:
    """Return the first batch of data that can be read again; None of other data."""
    if data is None or isinstance(data, Iterator):
        return None
    first = next(batches(whole_texts(data), module), None)
    return None if first is None else first.to_float32()


def _check_classes(module: nn.Module, batch: Batch, labels: ArrayLike | None) -> None:
    """Check that labels, one per sample, number the classes that the first output scores."""
    if labels is None or (numbers := np.asarray(labels)).size != len(numbers):
        return
    with torch.no_grad():
        outputs = pytree.tree_leaves(module(*batch.args, **batch.kwargs))
    first = next(iter(outputs), None)
    if not isinstance(first, torch.Tensor) or first.dim() != 2 or not first.is_floating_point():
        return
    if len(first) == batch.size and first.shape[1] > 1:
        check_classes(numbers.reshape(-1), first.shape[1])
