"""The options of the observers by name, for recipes and descriptions of files, which need no torch.

`qtool.observers` has what the names mean: statistics and estimates of ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qtool.core.errors import CalibrationError
from qtool.core.option_names import unknown_name
from qtool.core.types import ObserverSpec


@dataclass(frozen=True)
class Option:
    """A number that users can set.

    Attributes:
        default: its type is the type of the option.
        low: lowest value.
        high: highest value.
        setting: it is a setting of the statistic, not of the range estimate.
    """

    default: float
    low: float
    high: float
    setting: bool = False

    def check(self, where: str, value: object) -> float:
        """Return `value` (a number, or its text) as the default's type; raise CalibrationError."""
        number = _number(type(self.default), value)
        if number is None:
            word = "a whole number" if isinstance(self.default, int) else "a number"
            raise CalibrationError(f"{where} must be {word}, not {value!r}")
        if not self.low <= number <= self.high:
            raise CalibrationError(
                f"{where} must lie between {self.low:g} and {self.high:g}, not {value!r}"
            )
        return number


def _number(kind: type[float], value: object) -> float | None:
    """Return `value` as an int or a float without loss, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return kind(value) if kind(value) == float(value) else None
    except (ValueError, OverflowError):
        return None


_BINS = Option(2048, 64, 65536, setting=True)
_MOMENTUM = Option(0.9, 0.0, 0.9999, setting=True)

OPTIONS: dict[str, Mapping[str, Option]] = {
    "minmax": {},
    "moving_average": {"momentum": _MOMENTUM},
    "percentile": {"p": Option(99.999, 50, 100), "bins": _BINS},
    **{name: {"bins": _BINS} for name in ("mse", "entropy", "gaussian", "laplace")},
}
"""Observer -> its options; the first is the main one: `name:value` sets it."""


def _options(name: str) -> Mapping[str, Option]:
    if name not in OPTIONS:
        raise CalibrationError(unknown_name("observer", name, OPTIONS))
    return OPTIONS[name]


def options_of(spec: ObserverSpec) -> dict[str, float]:
    """Return all options of an observer, checked, with defaults, in the order of its row.

    Raises:
        CalibrationError: unknown observer or option, or a value out of bounds.
    """
    known = _options(spec.name)
    for key, _ in spec.options:
        if key not in known:
            names = ", ".join(known) or "none"
            raise CalibrationError(
                f"observer {spec.name!r} has no option {key!r}; its options: {names}"
            )
    values = dict(spec.options)
    if len(values) < len(spec.options):
        raise CalibrationError(f"observer {str(spec)!r} sets an option twice")
    return {
        key: option.check(_where(spec.name, key), values.get(key, option.default))
        for key, option in known.items()
    }


def _where(name: str, key: str) -> str:
    return f"option {key!r} of observer {name!r}"


def parse(text: str) -> ObserverSpec:
    """Return a checked spec of `name`, `name:value` (the main option) or `name:key=value,...`.

    Raises CalibrationError as `options_of` does.
    """
    name, colon, rest = text.strip().partition(":")
    options = _options(name)
    pairs: list[tuple[str, float | str]] = []
    for part in rest.split(",") if colon else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            if pairs or not options:
                raise CalibrationError(
                    f"cannot read {part!r} in observer {text!r}: expected key=value"
                )
            key, value = next(iter(options)), key
        known = options.get(key)
        pairs.append((key, known.check(_where(name, key), value) if known else value))
    spec = ObserverSpec(name, tuple(pairs))
    options_of(spec)
    return spec
