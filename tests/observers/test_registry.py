"""Observers by name."""

import pytest
import torch

from qtool.core.errors import CalibrationError
from qtool.core.types import INT8, UINT8, ObserverSpec
from qtool.observers import (
    OBSERVERS,
    Histogram,
    MinMax,
    MovingAverage,
    Observer,
    Statistic,
    create,
    options_of,
    parse,
    range_of,
    ranges,
    register,
    restore,
    solve,
)
from tests.observers.differential import assert_same_state, tensor

RANGES = list(OBSERVERS)


def filled(spec: ObserverSpec, axis: int | None = None) -> Statistic:
    statistic = create(spec, axis)
    statistic.update(torch.randn(3, 400, generator=torch.Generator().manual_seed(1)) ** 3)
    return statistic


def test_the_table() -> None:
    made = {name: type(create(ObserverSpec(name), None)) for name in OBSERVERS}
    assert {
        "minmax": MinMax,
        "moving_average": MovingAverage,
        "percentile": Histogram,
        "mse": Histogram,
    }.items() <= made.items()


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("axis", [None, 0])
def test_from_data_to_parameters_and_back_from_a_state(name: str, axis: int | None) -> None:
    spec = ObserverSpec(name)
    statistic = filled(spec, axis)
    lo, hi = range_of(spec, statistic, INT8, True)
    assert lo.shape == hi.shape == (() if axis is None else (3,))
    assert solve(lo, hi, INT8, True, axis).scale.shape == lo.shape
    again = restore(spec, axis, statistic.state())
    assert_same_state(again, statistic)
    assert all(map(torch.equal, range_of(spec, again, INT8, True), (lo, hi)))


def test_each_row_estimates_as_it_says() -> None:
    x = filled(ObserverSpec("mse"))
    assert isinstance(x, Histogram)
    assert range_of(ObserverSpec("mse"), x, UINT8, False) == ranges.mse(x, UINT8, False)
    assert range_of(parse("percentile:90"), x, UINT8, False) == ranges.percentile(x, 90)
    assert range_of(parse("percentile"), x, UINT8, False) == ranges.percentile(x, 99.999)
    assert range_of(parse("percentile:90"), x, UINT8, False) != x.extent()
    y = filled(ObserverSpec("minmax"))
    assert isinstance(y, MinMax)
    assert range_of(ObserverSpec("minmax"), y, UINT8, False) == y.extent() == x.extent()


def test_options_reach_the_statistic() -> None:
    assert create(parse("mse:bins=64"), None).settings == {"bins": 64}
    assert create(parse("moving_average:0.5"), None).settings == {"momentum": 0.5}
    moving = create(parse("moving_average:0"), None)
    assert isinstance(moving, MovingAverage)
    for value in (1.0, 2.0):
        moving.update(tensor([value]))
    assert moving.extent()[0] == 2


PARSED = {
    "minmax": (),
    "moving_average": (),
    "moving_average:0.95": (("momentum", 0.95),),
    "percentile:99.99": (("p", 99.99),),
    "percentile:p=99.99,bins=4096": (("p", 99.99), ("bins", 4096)),
    "percentile:99.9, bins=128": (("p", 99.9), ("bins", 128)),
    "percentile:100": (("p", 100.0),),
    "mse:4096": (("bins", 4096),),
}


@pytest.mark.parametrize(("text", "options"), PARSED.items())
def test_parse(text: str, options: tuple[tuple[str, float], ...]) -> None:
    spec = parse(text)
    assert spec == ObserverSpec(text.partition(":")[0], options)
    assert [type(v) for _, v in spec.options] == [type(v) for _, v in options]


WRONG = {
    "median": "minmax, moving_average, percentile, mse",
    "": "unknown observer ''",
    "minmax:3": "key=value",
    "minmax:p=3": "its options: none",
    "percentile:q=3": "its options: p, bins",
    "percentile:": "must be a number",
    "percentile:high": "must be a number",
    "percentile:nan": "must be a number",
    "percentile:99,98": "key=value",
    "percentile:p=99,p=98": "twice",
    "percentile:101": "between 50 and 100",
    "percentile:bins=2048.5": "must be a whole number",
    "percentile:bins=8": "between 64 and 65536",
    "moving_average:1": "between 0 and",
}


@pytest.mark.parametrize(("text", "message"), WRONG.items())
def test_parse_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        parse(text)


@pytest.mark.parametrize(
    "spec",
    [
        ObserverSpec("median"),
        ObserverSpec("minmax", (("bins", 64),)),
        ObserverSpec("percentile", (("p", 10.0),)),
        ObserverSpec("moving_average", (("momentum", False),)),
    ],
)
def test_a_wrong_spec_is_refused_everywhere(spec: ObserverSpec) -> None:
    for use in (
        lambda: create(spec, None),
        lambda: restore(spec, None, {}),
        lambda: options_of(spec),
        lambda: range_of(spec, MinMax(None), UINT8, False),
    ):
        with pytest.raises(CalibrationError):
            use()


def test_options_of_fills_in_the_defaults() -> None:
    assert options_of(parse("percentile:bins=64")) == {"p": 99.999, "bins": 64}
    assert options_of(parse("minmax")) == {}


def test_a_statistic_of_another_observer_is_refused() -> None:
    for spec, other in (("mse", "minmax"), ("mse", "mse:bins=64"), ("minmax", "mse")):
        with pytest.raises(CalibrationError, match="cannot read"):
            range_of(parse(spec), filled(parse(other)), UINT8, False)


def test_a_name_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in ("OBSERVERS", "OPTIONS"):
        monkeypatch.setattr(f"qtool.observers.registry.{registry}", {})
    row = Observer("mine", MinMax, lambda s, o, q, sym: s.extent())
    register(row)
    with pytest.raises(CalibrationError, match="mine"):
        register(row)
