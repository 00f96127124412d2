"""Recipes: which part of a model is quantized how, as an ordered list of rules.

A file in TOML (or the same in JSON), or the same as Python objects:

    mode = "static"              # what no rule speaks of; one of MODES
    accuracy = "balanced"        # how much the conversion does for it; one of ACCURACIES
    recover = ["round"]          # or: the steps that it takes, by name, and no others

    [[rules]]
    select = "classifier.*"      # names as the plan prints them: a glob, or "re:" and a regex
    op = "linear"                # and, or instead: the operator, as the plan prints it
    as = "float"                 # a scheme by its name
    weights = "int4"             # and, or instead: single parts of the scheme,
    activations = "uint16"
    block = 32
    observer = "mse"             # and the observer of the tensors that the selected nodes compute,
    weight_observer = "mse"      # and of their weights

Later rules win. A rule that selects nothing is an error, as is any key or value not known here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qtool import observers
from qtool.core.errors import CalibrationError, PlanError
from qtool.core.schemes import ACTIVATIONS, BLOCKS, SCHEMES, WEIGHTS, Scales, Scheme
from qtool.core.types import ObserverSpec
from qtool.planning.recipe.recipe_text import read, toml
from qtool.planning.recipe.safe_regex import check_regex

MODES: Mapping[str, str] = MappingProxyType(
    {
        "static": "static",
        "dynamic": "dynamic",
        "weight-only": "int8-weights",
        "weight-only-int4": "int4-weights",
    }
)
"""Mode -> the scheme of every node that no rule speaks of."""

ACCURACIES: Mapping[str, int] = MappingProxyType({"fast": 0, "balanced": 1, "best": 2})
"""Accuracy -> its level: the steps of a conversion up to that level are taken."""

USUAL_ACCURACY = "balanced"
"""Where nobody says it: also of a recipe's file in which it does not stand."""

INPUT = "input"
"""The `op` of the model's inputs, which a rule can give an observer and nothing else."""

_KEYS = {  # in files -> here
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
    "block": ("channel", *BLOCKS),
}
_REGEX = "re:"


@dataclass(frozen=True)
class Rule:
    """Which nodes, and what becomes of them: at least one of each.

    select: glob over node names (`*` crosses dots), or "re:" and a regex that matches all of one.
    op: operator key as the plan prints it, "input" for the model's inputs.
    scheme: one of SCHEMES; `as` in files.
    weights, activations: a type, one of WEIGHTS and of ACTIVATIONS: changes that part of the scheme
        of earlier rules, or of this one.
    block: how many weights share a scale, one of BLOCKS, or "channel": all of an output.
    observer: of the tensors that the nodes compute; as for `calibrate`, "percentile:99.99" say.
    weight_observer: of their weights; by default "minmax".

    Raises:
        PlanError: an unknown value, a broken regex, or nothing said.
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
        for key, value in self.said.items():
            if key != "block" and (not isinstance(value, str) or not value):
                raise PlanError(f"{key} is {value!r}; it has to be text")
        if self.select is None and self.op is None:
            raise PlanError("it selects nothing; give select, op or both")
        if not self.said.keys() - {"select", "op"}:
            keys = _listed(k for k in _KEYS if k not in ("select", "op"))
            raise PlanError(f"it says nothing of what it selects; give one of {keys}")
        if self.scheme == "float" and self.said.keys() & {"weights", "activations", "block"}:
            raise PlanError('as = "float" leaves no types to choose; give one or the other')
        for key, known in _KNOWN.items():
            value = self.said.get(key)
            if value is not None and (isinstance(value, bool | float) or value not in known):
                raise PlanError(f"{key} = {_quoted(value)} is unknown; known are {_listed(known)}")
        if self.select is not None and self.select.startswith(_REGEX):
            check_regex("select", self.select, self.select.removeprefix(_REGEX))
        _full_spec("observer", self.observer)
        _full_spec("weight_observer", self.weight_observer)

    @property
    def said(self) -> dict[str, Any]:
        """What this rule says, by the keys that files have."""
        pairs = ((key, getattr(self, name)) for key, name in _KEYS.items())
        return {key: value for key, value in pairs if value is not None}

    @property
    def changes_scheme(self) -> bool:
        return any(key in self.said for key in _KNOWN)

    def selects(self, name: str, op: str) -> bool:
        if self.op not in (None, op):
            return False
        if op == INPUT and (self.changes_scheme or self.observer is None):
            return False
        return self.fits(name)

    def fits(self, name: str) -> bool:
        """Whether a node's name is among those that it selects, whatever the operator."""
        if self.select is None:
            return True
        if self.select.startswith(_REGEX):
            return re.fullmatch(self.select.removeprefix(_REGEX), name) is not None
        return fnmatchcase(name, self.select)

    def over(self, choice: Choice, number: int) -> Choice:
        """What becomes of a node that this rule selects; `number`: its place in the recipe."""
        scheme = SCHEMES[self.scheme] if self.scheme is not None else choice.scheme
        changes: dict[str, Any] = {}
        if self.weights is not None:
            changes["weights"] = WEIGHTS[self.weights]
        if self.activations is not None:
            changes["activations"] = ACTIVATIONS[self.activations]
        if self.block is not None:
            changes["scales"] = Scales.CHANNEL if self.block == "channel" else self.block
        observer = _full_spec("observer", self.observer)
        return Choice(
            replace(scheme, **changes),
            f"rule {number}: {self}" if self.changes_scheme else choice.because,
            observer or choice.observer,
            _full_spec("weight_observer", self.weight_observer) or choice.weight_observer,
            number if observer is not None else choice.rank,
            choice.usual and not self.changes_scheme,
        )

    def __str__(self) -> str:
        return ", ".join(f"{key} = {_quoted(value)}" for key, value in self.said.items())


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _full_spec(key: str, text: str | None) -> ObserverSpec | None:
    """The observer with all of its options."""
    if text is None:
        return None
    try:
        found = observers.parse(text)
    except CalibrationError as error:
        raise PlanError(f'{key} = "{text}": {error}') from error
    return ObserverSpec(found.name, tuple(observers.options_of(found).items()))


@dataclass(frozen=True)
class Choice:
    """What a recipe says of one node.

    because: the last rule or the mode that says something of the scheme, in words.
    observer, weight_observer: None where no rule names one.
    rank: the number of the rule that named the observer, for a tensor that several nodes make (a
        fused clamp).
    usual: whether no rule says anything of the scheme.
    """

    scheme: Scheme
    because: str
    observer: ObserverSpec | None = None
    weight_observer: ObserverSpec | None = None
    rank: int = 0
    usual: bool = False


@dataclass(frozen=True)
class Recipe:
    """A mode for everything, and rules for what is different. The empty one is static."""

    rules: tuple[Rule, ...] = ()
    mode: str = "static"
    accuracy: str = USUAL_ACCURACY
    recover: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        named: Any = (("mode", self.mode, MODES), ("accuracy", self.accuracy, ACCURACIES))
        for what, value, known in named:
            if not isinstance(value, str) or value not in known:
                raise PlanError(f'{what} = "{value}" is unknown; known are {_listed(known)}')
        steps: Any = self.recover
        if steps is not None and not (
            isinstance(steps, tuple) and all(isinstance(name, str) for name in steps)
        ):
            raise PlanError(f"recover is {steps!r}; it has to be a list of names of steps")

    @classmethod
    def of(
        cls,
        source: Recipe | Any = None,
        mode: str | None = None,
        accuracy: str | None = None,
        recover: Iterable[str] | None = None,
    ) -> Recipe:
        """A recipe from whatever a person gives.

        Args:
            source: a Recipe; the path of a .toml or .json file; what stands in such a file; a list
                of rules (Rule or dict); None for no rules.
            mode, accuracy, recover: beside a source that does not name them: one of MODES, one of
                ACCURACIES, names of steps.

        Raises:
            FileError: no such file, or not TOML or JSON.
            PlanError: an unknown key or value; names the rule and lists what is known.
        """
        if isinstance(source, str | Path):
            return cls._load(Path(source), mode, accuracy, recover)
        if isinstance(source, Recipe):
            source = source.to_json()
        if not isinstance(source, Mapping):
            source = {"rules": () if source is None else source}
        _only(source, ("mode", "accuracy", "recover", "rules"), "the recipe")
        steps = source.get("recover")
        return cls(
            _rules(source.get("rules", ())),
            _one("mode", source.get("mode"), mode, "static"),
            _one("accuracy", source.get("accuracy"), accuracy, USUAL_ACCURACY),
            _one("recover", _names(steps), _names(recover), None),
        )

    @classmethod
    def _load(cls, path: Path, *asked: Any) -> Recipe:
        try:
            return cls.of(read(path), *asked)
        except PlanError as error:
            raise PlanError(f"{path}: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """What a JSON file of this recipe holds; `Recipe.of` reads it back to an equal one."""
        return {**self._head(), "rules": [rule.said for rule in self.rules]}

    def to_toml(self) -> str:
        """The same as the text of a TOML file."""
        tables = [self._head(), *(rule.said for rule in self.rules)]
        lines = ("".join(f"{key} = {toml(v)}\n" for key, v in t.items()) for t in tables)
        return "\n[[rules]]\n".join(lines)

    def _head(self) -> dict[str, Any]:
        """What stands above the rules."""
        found: dict[str, Any] = {"mode": self.mode, "accuracy": self.accuracy}
        if self.recover is not None:
            found["recover"] = list(self.recover)
        return found

    def choices(
        self, nodes: Mapping[str, str], layers: Mapping[str, str] | None = None
    ) -> dict[str, Choice]:
        """What becomes of each node.

        Args:
            nodes: name -> operator key, as the plan prints them.
            layers: given where they are a part of a model, of which a rule may select nothing:
                nodes that a layer was split into -> the layer, whose name rules know.

        Raises:
            PlanError: a rule selects none of them; names it, and names that come near.
        """
        usual = Choice(SCHEMES[MODES[self.mode]], f'mode "{self.mode}"', usual=True)
        found, known = dict.fromkeys(nodes, usual), layers or {}
        for number, rule in enumerate(self.rules, 1):
            selected = [n for n, op in nodes.items() if rule.selects(known.get(n, n), op)]
            if not selected and layers is None:
                raise PlanError(f"{self._said(number)} selects no node; {_hint(rule, nodes)}")
            for name in selected:
                found[name] = rule.over(found[name], number)
        return found

    def check_names(self, names: Iterable[str]) -> None:
        """Of a whole model whose operators are not known yet.

        Raises:
            PlanError: what a rule selects is no name of these; names it, and those that come near.
        """
        nodes = dict.fromkeys(names, "")
        for number, rule in enumerate(self.rules, 1):
            if not any(map(rule.fits, nodes)):
                why = _hint(replace(rule, op=None), nodes)
                raise PlanError(f"{self._said(number)} selects no node; {why}")

    def unused(self, nodes: Collection[tuple[str, str]]) -> tuple[str, ...]:
        """Which rules select none of these (name, operator key), each in a sentence."""
        return tuple(
            f"{self._said(number)} selects no node"
            for number, rule in enumerate(self.rules, 1)
            if not any(rule.selects(*node) for node in nodes)
        )

    def _said(self, number: int) -> str:
        return f"rule {number} of the recipe ({self.rules[number - 1]})"


def _names(given: Any) -> Any:
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else given


def _one(what: str, named: Any, asked: Any, usual: Any) -> Any:
    """What a recipe names or a person asks for beside it."""
    if asked is not None and named not in (None, usual, asked):
        raise PlanError(
            f'the recipe is of {what} "{named}", and {what} "{asked}" was asked for; give one'
        )
    return asked if asked is not None else usual if named is None else named


def _rules(given: Any) -> tuple[Rule, ...]:
    if isinstance(given, Mapping | Rule) or not isinstance(given, Iterable):
        raise PlanError("the rules of a recipe are a list; in TOML each begins with [[rules]]")
    return tuple(_rule(number, each) for number, each in enumerate(given, 1))


def _rule(number: int, given: Any) -> Rule:
    if isinstance(given, Rule):
        return given
    if not isinstance(given, Mapping):
        raise PlanError(f"rule {number} is {given!r}; a rule is a table with {_listed(_KEYS)}")
    _only(given, _KEYS, f"rule {number}")
    try:
        return Rule(**{_KEYS[key]: value for key, value in given.items()})
    except PlanError as error:
        raise PlanError(f"rule {number}: {error}") from error


def _only(given: Mapping[Any, Any], known: Iterable[str], where: str) -> None:
    for key in given:
        if key not in known:
            raise PlanError(f"{where} has the key '{key}'; known are {_listed(known)}")


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(str, names))


def _hint(rule: Rule, nodes: Mapping[str, str]) -> str:
    ops = sorted(set(nodes.values()))
    if rule.op is not None and rule.op not in ops:
        return f"the operators of this model are {_listed(ops)}"
    wanted = (rule.select or "").removeprefix(_REGEX)
    if any(n.startswith(f"{wanted}.") for n in nodes):
        return f'to select all of that module write select = "{wanted}.*"'
    near = difflib.get_close_matches(wanted, nodes, n=3, cutoff=0.4)
    return (f"near are {_listed(near)}; " if near else "") + "names are those the plan prints"
