"""One rule of a recipe: which nodes it selects, and what it changes about them."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any

from qtool.core import observer_options
from qtool.core.errors import CalibrationError, PlanError
from qtool.core.remedies import CallEdit
from qtool.core.schemes import ACTIVATIONS, BLOCK_SIZES, SCHEMES, WEIGHTS, Scales, Scheme
from qtool.core.types import ObserverSpec

INPUT = "input"
"""The `op` of the model's inputs; a rule can only set their observer."""

KEYS = {  # in files -> field of Rule
    "select": "select",
    "op": "op",
    "as": "scheme",
    "weights": "weights",
    "activations": "activations",
    "block": "block",
    "observer": "observer",
    "weight_observer": "weight_observer",
}
_KNOWN: Mapping[str, Collection[Any]] = {
    "as": SCHEMES,
    "weights": WEIGHTS,
    "activations": ACTIVATIONS,
    "block": ("channel", *BLOCK_SIZES),
}
REGEX = "re:"

_PARSER: Any = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
_MAX_VARIABLE_PARTS = 4


@dataclass(frozen=True)
class Rule:
    """Selects nodes and changes how they are quantized. Needs at least one field of each kind.

    Attributes:
        select: glob over node names (`*` crosses dots), or "re:" and a regex for the whole name.
        op: operator key as the plan prints it; "input" for the model's inputs.
        scheme: one of SCHEMES; `as` in files.
        weights: one of WEIGHTS: replaces the weight type of the scheme so far.
        activations: one of ACTIVATIONS: replaces the activation type of the scheme so far.
        block: number of weights per scale, one of BLOCK_SIZES, or "channel": one scale per output.
        observer: observer of the tensors that the nodes compute, as for `calibrate`; for instance
            "percentile:99.99".
        weight_observer: observer of their weights; "minmax" by default.

    Raises:
        PlanError: an unknown value, an invalid regex, no selector, or nothing to change.
    """

    select: str | None = None
    op: str | None = None
    scheme: str | None = None
    weights: str | None = None
    activations: str | None = None
    block: int | str | None = None
    observer: str | None = None
    weight_observer: str | None = None

    def __post_init__(self) -> None:
        for key, value in self.settings.items():
            if key != "block" and (not isinstance(value, str) or not value):
                raise PlanError(f"{key} is {value!r}; it must be a string")
        if self.select is None and self.op is None:
            raise PlanError("it selects nothing", CallEdit("add select, op or both"))
        if not self.settings.keys() - {"select", "op"}:
            keys = comma_separated(k for k in KEYS if k not in ("select", "op"))
            raise PlanError("it changes nothing", CallEdit(f"add one of {keys}"))
        if self.scheme == "float" and self.settings.keys() & {"weights", "activations", "block"}:
            raise PlanError(
                'as = "float" excludes weights, activations and block', CallEdit("remove one")
            )
        for key, known in _KNOWN.items():
            value = self.settings.get(key)
            if value is not None and (isinstance(value, bool | float) or value not in known):
                raise PlanError(
                    f"{key} = {_quoted(value)} is unknown; known are {comma_separated(known)}"
                )
        if self.select is not None and self.select.startswith(REGEX):
            check_regex(self.select)
        _observer_spec("observer", self.observer)
        _observer_spec("weight_observer", self.weight_observer)

    @property
    def settings(self) -> dict[str, Any]:
        """The values that are set, by their keys in files."""
        pairs = ((key, getattr(self, name)) for key, name in KEYS.items())
        return {key: value for key, value in pairs if value is not None}

    @property
    def changes_scheme(self) -> bool:
        return any(key in self.settings for key in _KNOWN)

    def selects(self, name: str, op: str) -> bool:
        """Return whether the rule applies to a node, given its name and operator key."""
        if self.op not in (None, op):
            return False
        if op == INPUT and (self.changes_scheme or self.observer is None):
            return False
        return self.matches_name(name)

    def matches_name(self, name: str) -> bool:
        """Return whether `select` matches a node's name, whatever the operator."""
        if self.select is None:
            return True
        if self.select.startswith(REGEX):
            return re.fullmatch(self.select.removeprefix(REGEX), name) is not None
        return fnmatchcase(name, self.select)

    def apply(self, choice: Choice, number: int) -> Choice:
        """Return `choice` with the changes of this rule, the `number`-th of the recipe."""
        scheme = SCHEMES[self.scheme] if self.scheme is not None else choice.scheme
        changes: dict[str, Any] = {}
        if self.weights is not None:
            changes["weights"] = WEIGHTS[self.weights]
        if self.activations is not None:
            changes["activations"] = ACTIVATIONS[self.activations]
        if self.block is not None:
            changes["scales"] = Scales.CHANNEL if self.block == "channel" else self.block
        observer = _observer_spec("observer", self.observer)
        return Choice(
            replace(scheme, **changes),
            f"rule {number}: {self}" if self.changes_scheme else choice.decided_by,
            observer or choice.observer,
            _observer_spec("weight_observer", self.weight_observer) or choice.weight_observer,
            number if observer is not None else choice.observer_rule,
            choice.is_default and not self.changes_scheme,
        )

    def __str__(self) -> str:
        return ", ".join(f"{key} = {_quoted(value)}" for key, value in self.settings.items())


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _observer_spec(key: str, text: str | None) -> ObserverSpec | None:
    """Parse an observer and fill in all of its options."""
    if text is None:
        return None
    try:
        spec = observer_options.parse(text)
    except CalibrationError as error:
        raise PlanError(f'{key} = "{text}": {error.problem}', *error.remedies) from error
    return ObserverSpec(spec.name, tuple(observer_options.options_of(spec).items()))


@dataclass(frozen=True)
class Choice:
    """What a recipe decides about one node.

    Attributes:
        scheme: the scheme of the node.
        decided_by: the mode or the last rule that set the scheme, in words.
        observer: observer of the node's result; None where no rule sets one.
        weight_observer: observer of its weights; None where no rule sets one.
        observer_rule: number of the rule that set the observer. Where several nodes produce one
            tensor (a fused clamp), the later rule wins.
        is_default: no rule changes the scheme.
    """

    scheme: Scheme
    decided_by: str
    observer: ObserverSpec | None = None
    weight_observer: ObserverSpec | None = None
    observer_rule: int = 0
    is_default: bool = False


def comma_separated(names: Iterable[object]) -> str:
    return ", ".join(map(str, names))


def check_regex(text: str) -> None:
    """Check that a regex is valid and matches in bounded time.

    Python's engine tries every way to divide a name among repetitions, which takes exponential time
    where repetitions are nested or many.

    Args:
        text: the selector of a rule, with the regex behind `REGEX`.

    Raises:
        PlanError: it is invalid, or may take too long.
    """
    pattern = text.removeprefix(REGEX)
    try:
        re.compile(pattern)
        nested, count = _variable_parts(_PARSER.parse(pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise PlanError(f'select = "{text[:60]}" is not a valid regex: {error}') from error
    if nested or count > _MAX_VARIABLE_PARTS:
        why = "a repeated part is variable itself" if nested else f"it has {count} variable parts"
        raise PlanError(
            f'select = "{text[:60]}" could take for ever to match: {why}',
            CallEdit(
                f"use at most {_MAX_VARIABLE_PARTS} of *, +, ? and {{m,n}}, and no | or other "
                "repetition inside them"
            ),
        )


def _variable_parts(pattern: Any) -> tuple[bool, int]:
    """Return whether a repeated part has variable parts, and the number of variable parts."""
    nested, count = False, 0
    for operator, argument in pattern:
        inner = [_variable_parts(p) for p in _subpatterns(argument)]
        inside = sum(c for _, c in inner)
        low, high = argument[:2] if str(operator).endswith("REPEAT") else (1, 1)
        nested = nested or any(n for n, _ in inner) or (high > 1 and inside > 0)
        count += inside + (low != high or str(operator) == "BRANCH")
    return nested, count


def _subpatterns(argument: Any) -> Iterator[Any]:
    """Yield the patterns inside a group, branch or repetition, which hold them in tuples."""
    if isinstance(argument, _PARSER.SubPattern):
        yield argument
    elif isinstance(argument, tuple | list):
        for each in argument:
            yield from _subpatterns(each)
