"""The observers by name: statistic, range estimate and options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from qtool.core.errors import CalibrationError
from qtool.core.observer_options import OPTIONS, Option, options_of
from qtool.core.on_use import OnUse
from qtool.core.option_names import unknown_name
from qtool.core.remedies import CallEdit
from qtool.core.types import Array, ObserverSpec, QType
from qtool.observers import ranges
from qtool.observers.histogram import Histogram
from qtool.observers.min_max import MinMax
from qtool.observers.moving_average import MovingAverage
from qtool.observers.ranges import Range
from qtool.observers.statistic import RangeStatistic, Statistic

Options = Mapping[str, float]
Estimate = Callable[[Any, Options, QType, bool], Range]
"""(statistic, options, type of the codes, whether the range is symmetric) -> range."""


class StatisticType(Protocol):
    """The class of a statistic; its settings are keywords of constructor and `from_state`."""

    def __call__(self, axis: int | None, /, *args: Any, **settings: Any) -> Statistic: ...

    def from_state(
        self, state: Mapping[str, Array], axis: int | None, /, *args: Any, **settings: Any
    ) -> Statistic: ...


@dataclass(frozen=True)
class Observer:
    """One observer.

    Attributes:
        name: its name in recipes and options.
        statistic: the statistic.
        estimate: returns the range of the statistic.
        options: options by name; the first is the main one: `name:value` sets it.
        range_of_values: returns the ranges of rows [C, n] from the values themselves, where that is
            better than the statistic.
    """

    name: str
    statistic: StatisticType
    estimate: Estimate
    options: Mapping[str, Option] = field(default_factory=dict)
    range_of_values: Callable[[torch.Tensor, QType, bool], Range] | None = None

    def settings(self, options: Options) -> dict[str, float]:
        """Return the options that are settings of the statistic."""
        return {k: v for k, v in options.items() if self.options[k].setting}


OBSERVERS: dict[str, Observer] = {}


def register(observer: Observer) -> None:
    """Add an observer. Raises CalibrationError if the name is taken."""
    if observer.name in OBSERVERS:
        raise CalibrationError(
            f"observer {observer.name!r} is registered already", CallEdit("choose another name")
        )
    OBSERVERS[observer.name] = observer
    OPTIONS[observer.name] = observer.options


def _on_use(where: str) -> Callable[..., Range]:
    return OnUse(f"qtool.observers.{where}")


def _without_options(estimate: Callable[[Any, QType, bool], Range]) -> Estimate:
    """Return a range estimate that no option changes."""
    return lambda statistic, _, qtype, symmetric: estimate(statistic, qtype, symmetric)


def _min_max(statistic: RangeStatistic, *_: object) -> Range:
    """Return the extremes, without clipping."""
    return statistic.extent()


def _percentile(statistic: Histogram, options: Options, *_: object) -> Range:
    return ranges.percentile(statistic, options["p"])


for _row in (
    Observer("minmax", MinMax, _min_max),
    Observer("moving_average", MovingAverage, _min_max, OPTIONS["moving_average"]),
    Observer("percentile", Histogram, _percentile, OPTIONS["percentile"]),
    Observer(
        "mse",
        Histogram,
        _without_options(ranges.mse),
        OPTIONS["mse"],
        _on_use("mse:least_error"),
    ),
    Observer(
        "entropy",
        Histogram,
        _without_options(_on_use("entropy:entropy")),
        OPTIONS["entropy"],
    ),
    Observer(
        "gaussian",
        Histogram,
        _without_options(_on_use("gaussian_laplace:gaussian")),
        OPTIONS["gaussian"],
    ),
    Observer(
        "laplace",
        Histogram,
        _without_options(_on_use("gaussian_laplace:laplace")),
        OPTIONS["laplace"],
    ),
):
    register(_row)


def _observer(name: str) -> Observer:
    if name not in OBSERVERS:
        raise CalibrationError(unknown_name("observer", name, OBSERVERS))
    return OBSERVERS[name]


def create(spec: ObserverSpec, axis: int | None) -> Statistic:
    """Return an empty statistic: per tensor, or per channel along `axis` (may be negative).

    Raises CalibrationError as `options_of` does.
    """
    row = _observer(spec.name)
    return row.statistic(axis, **row.settings(options_of(spec)))


def restore(spec: ObserverSpec, axis: int | None, state: Mapping[str, Array]) -> Statistic:
    """Return the statistic of `spec` and `axis` with this state.

    Raises CalibrationError for a damaged state and as `options_of` does.
    """
    row = _observer(spec.name)
    return row.statistic.from_state(state, axis, **row.settings(options_of(spec)))


def range_of(spec: ObserverSpec, statistic: Statistic, qtype: QType, symmetric: bool) -> Range:
    """Return the range `spec` estimates from its statistic: float64, rank 0 per tensor, else [C].

    Raises CalibrationError when the statistic is empty or was not made for `spec`.
    """
    own = create(spec, statistic.axis)
    if type(statistic) is not type(own) or statistic.settings != own.settings:
        raise CalibrationError(
            f"observer {str(spec)!r} cannot read {type(statistic).__name__} statistics "
            f"made with {dict(statistic.settings)}"
        )
    return _observer(spec.name).estimate(statistic, options_of(spec), qtype, symmetric)


def range_of_rows(spec: ObserverSpec, values: torch.Tensor, qtype: QType, symmetric: bool) -> Range:
    """Return the range `spec` estimates of each row of values [C, n]: float64 [C].

    Raises CalibrationError as `range_of` does.
    """
    row = _observer(spec.name)
    if row.range_of_values is not None:
        return row.range_of_values(values, qtype, symmetric)
    statistic = create(spec, 0)
    statistic.update(values)
    return range_of(spec, statistic, qtype, symmetric)
