"""Inputs of a conversion: the captured model, its first batch, and synthetic data."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from qtool import observers
from qtool.calibration.calibration import Calibration
from qtool.calibration.data_free import SyntheticData, synthesize_data
from qtool.calibration.strip_padding import strip_padding
from qtool.core.conversion_options import DynamicSizes
from qtool.core.data import AHEAD, Batch, batches, to_tensor
from qtool.core.data.named_tensors import nested_arguments
from qtool.core.data.subset import first_samples
from qtool.core.errors import DataError
from qtool.core.frame_columns import input_columns
from qtool.core.graph import FloatGraph
from qtool.core.graph.finite_outputs import check_outputs, check_weights
from qtool.core.leaf_names import LABELS
from qtool.core.log import unlogged
from qtool.core.random_inputs import is_cache, random_inputs
from qtool.core.remedies import Argument
from qtool.core.types import UINT8
from qtool.core.user_code import uncompiled
from qtool.distributed import current
from qtool.distributed.first_batch import broadcast_first_batch
from qtool.frontends.captured_model import Captured, Model, capture_model
from qtool.frontends.huggingface.returned_cache import cache_note
from qtool.frontends.own_models import FileNetwork
from qtool.frontends.torch.example_inputs import is_default, varying_sizes
from qtool.metrics.labels import classes_in

BLANK_SAMPLES = 2  # of a batch that is only used for its sizes
EXAMPLE_SAMPLES = 4  # of a conversion without data
_RANDOM_NOTE = (
    "there is no data: no step recovers accuracy, and SQNR is that of random inputs; check "
    "accuracy on real data"
)


def capture_data(
    model: Model | Captured,
    data: Iterable[Any] | None,
    dynamic: DynamicSizes | None,
    samples: int | None = None,
    is_calibrated: Callable[[Captured], bool] = lambda _: True,
) -> tuple[Captured, Any, Iterable[Any]]:
    """Capture the model; return it, the first batch of all ranks, and this rank's data from its
    start, distilled if there is none.

    Args:
        model, data, dynamic, samples: as for `quantize`.
        is_calibrated: whether the conversion of the model needs data; if not, none is distilled.
    """
    if isinstance(model, nn.Module):
        check_weights(model)  # first: a decoder's cache in the data comes from them
    if data is None:
        return _capture_without_data(model, dynamic, is_calibrated)
    module = data_module(model)
    few = data if samples is None else first_samples(data, samples, module)
    stream = batches(few, module)
    # the next item of a one-shot iterator may be the same memory with other values
    ahead = list(itertools.islice(stream, 1 if isinstance(data, Iterator) else AHEAD))
    if ahead:
        ahead[0].check_finite(0)
    first = broadcast_first_batch(current(), ahead[0] if ahead else None)
    captured = capture_model(model, first, sizes_of_data(model, ahead, dynamic))
    with unlogged():  # who measures with the labels says how they are numbered
        labels = labelled_classes(data, len(_arguments(model)))
    captured.graph = replace(captured.graph, labels=labels, columns=input_columns(data))
    _check_outputs(captured)
    return captured, first, itertools.chain(ahead, stream)


def sizes_of_data(
    model: Model | Captured, ahead: Sequence[Batch], dynamic: DynamicSizes | None
) -> DynamicSizes | None:
    """Return the dynamic sizes that a user chose, or those of a module's inputs that differ between
    batches; None where none does, a file names its own, or other ranks have other batches."""
    if not isinstance(model, nn.Module) or isinstance(model, FileNetwork):
        return dynamic
    if dynamic is not None or current().is_distributed:
        return dynamic
    return varying_sizes(model, ahead)


def data_module(model: Model | Captured) -> nn.Module | None:
    """Return the module that batches are arguments of, if it is known before capture."""
    if isinstance(model, Captured):
        return model.graph.module
    return model if isinstance(model, nn.Module) else None


def labelled_classes(data: Any, arguments: int) -> int:
    """Return how many classes the labels of data show: whole numbers for each sample, in `labels`
    or in the batches of a list or the samples of a loader; 0 without.

    Args:
        data: as for `quantize`.
        arguments: number of arguments of the model; 0: not known.
    """
    try:
        labels = getattr(data, "labels", None)
        if labels is None:
            labels = _extra(data[0] if isinstance(data, list) else data.dataset[0], arguments)
    except Exception:  # noqa: BLE001  # the user's code; its errors show when it is read
        return 0
    return classes_in(labels)


def _extra(item: Any, arguments: int) -> Any:
    """Return what an item of data has besides the inputs, if it is one thing; None otherwise."""
    if isinstance(item, Mapping):
        rest = [value for key, value in item.items() if key in LABELS]
    else:
        rest = list(item[arguments:]) if isinstance(item, list | tuple) and arguments else []
    return rest[0] if len(rest) == 1 else None


def _capture_without_data(
    model: Model | Captured,
    dynamic: DynamicSizes | None,
    is_calibrated: Callable[[Captured], bool],
) -> tuple[Captured, Any, Iterable[Any]]:
    """Capture a model of known input sizes; see `capture_data`."""
    if isinstance(model, nn.Module) and not isinstance(model, FileNetwork):
        raise DataError(
            "there is no data, and the sizes of the model's inputs are not known",
            Argument("--data", text="give data"),
            Argument("--shape", text="give them with {}"),
        )
    example = model.zero_batch(BLANK_SAMPLES) if isinstance(model, FileNetwork) else None
    captured = capture_model(model, example, dynamic)
    if not is_calibrated(captured):
        batch = _random_batch(captured.graph, model)
        return captured, batch, SyntheticData((batch,), (_RANDOM_NOTE,))
    synthetic, ranks = synthesize_data(captured.unfolded or captured.graph), current()
    own = SyntheticData(synthetic.batches[ranks.rank :: ranks.size], synthetic.notes)
    return captured, synthetic.batches[0], own


def _random_batch(graph: FloatGraph, model: Model | Captured) -> Batch:
    """Return reproducible random inputs, to verify a file with."""
    arrays = random_inputs(graph.inputs, EXAMPLE_SAMPLES, np.random.default_rng(0), {})
    named = {i.name: to_tensor(a) for i, a in zip(graph.inputs, arrays, strict=True)}
    return Batch((), nested_arguments(named, _arguments(model)))


def _check_outputs(captured: Captured) -> None:
    """Check that the outputs on the example are finite; those at padded tokens are not used.

    Raises:
        DataError: they are not.
    """
    try:
        captured.check_outputs()
    except DataError:
        graph = captured.graph
        for part in strip_padding(graph, Batch(*graph.example)):
            with torch.no_grad():
                outputs = pytree.tree_leaves(graph.module(*part.args, **part.kwargs))
            check_outputs(graph, part, outputs, 0)


def capture_notes(
    captured: Captured, model: Model | Captured, data: Iterable[Any], dynamic: DynamicSizes | None
) -> tuple[str, ...]:
    """Return notes on input sizes (ranges only if they were not chosen), distilled data, caches."""
    graph = captured.graph
    chosen = not is_default(dynamic) or not isinstance(model, nn.Module)
    # a file may fix its batch, and what else is fixed is in the conditions
    chosen |= isinstance(model, FileNetwork) and not graph.any_batch_size
    sizes = graph.size_conditions if chosen else graph.restrictions()
    synthetic = data.notes if isinstance(data, SyntheticData) else ()
    cache = cache_note(model)
    sizes += graph.largest_sizes()
    return (*captured.notes, *sizes, *synthetic, *([cache] if cache else []))


def dynamic_sizes(calibration: Calibration, model: Model | Captured) -> DynamicSizes:
    """Return the dynamic dimensions of the calibrated inputs, by the argument that has them."""
    arguments, sizes = _arguments(model), dict[str, dict[int, str]]()
    for each in calibration.inputs:
        outer = each.name.partition(".")[0]
        named = {axis: size for axis, size in enumerate(each.shape) if isinstance(size, str)}
        sizes.setdefault(outer if outer in arguments else each.name, {}).update(named)
    return sizes


def example_batch(calibration: Calibration, model: Model | Captured) -> Batch:
    """Return inputs of a calibrated model, nested as it takes them.

    They are samples of the calibration, or random ones in its ranges if it stores none.
    """
    # A kernel with a cache may take several samples only for a prompt or a single token.
    samples = 1 if any(map(is_cache, calibration.inputs)) else EXAMPLE_SAMPLES
    stored = calibration.kept_samples.batches(samples, samples, holdout=None)
    tensors = stored[-1] if stored else _random_tensors(calibration, samples)
    named = {i.name: t for i, t in zip(calibration.inputs, tensors, strict=True)}
    return Batch((), nested_arguments(named, _arguments(model)))


def _random_tensors(calibration: Calibration, samples: int) -> list[torch.Tensor]:
    """Return reproducible inputs in the calibrated ranges."""
    ranges: dict[str, tuple[float, float]] = {}
    for each in calibration.inputs:
        if each.dtype.startswith("float"):
            ranges[each.name] = (0.0, 1.0)
        if (statistic := calibration.statistics.get(each.name)) is not None:
            low, high = observers.range_of(calibration.specs[each.name], statistic, UINT8, False)
            ranges[each.name] = (float(low), float(high))
    generator = np.random.default_rng(0)
    arrays = random_inputs(calibration.inputs, samples, generator, ranges)
    return [to_tensor(array) for array in arrays]


def _arguments(model: Model | Captured) -> frozenset[str]:
    """Return the names of a module's arguments."""
    if not isinstance(model, nn.Module):
        return frozenset()
    return frozenset(inspect.signature(uncompiled(model).forward).parameters)
