"""Recipes: which part of a model is quantized how, as an ordered list of rules.

A file in TOML (or the same in JSON), or the same as Python objects:

    mode = "static"              # what no rule speaks of; one of MODES

    [[rules]]
    select = "classifier.*"      # names as the plan prints them: a glob, or "re:" and a regex
    op = "linear"                # and, or instead: the operator, as the plan prints it
    as = "float"                 # one of FORMS
    observer = "mse"             # of the tensors that the selected nodes compute

Later rules win. A rule that selects nothing is an error, as is any key or value not known here.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qtool import observers
from qtool.errors import CalibrationError, FileError, PlanError
from qtool.types import ObserverSpec

__all__ = ["FORMS", "INPUT", "MODES", "Choice", "Recipe", "Rule"]

FORMS: Mapping[str, str] = MappingProxyType(
    {
        "float": "left in float",
        "static": "int8 with ranges from calibration",
        "dynamic": "int8 weights, the layer's input quantized with the range of each batch",
        "int8-weights": "int8 weights per channel, everything else float",
        "int4-weights": "4-bit weights in blocks of 32, everything else float",
    }
)
MODES: Mapping[str, str] = MappingProxyType(
    {
        "static": "static",
        "dynamic": "dynamic",
        "weight-only": "int8-weights",
        "weight-only-int4": "int4-weights",
    }
)
"""Mode -> the form of every node that no rule speaks of."""

INPUT = "input"
"""The `op` of the model's inputs, which a rule can give an observer and nothing else."""

_KEYS = {"select": "select", "op": "op", "as": "form", "observer": "observer"}  # in files -> here
_REGEX = "re:"


@dataclass(frozen=True)
class Rule:
    """Which nodes, and what becomes of them: at least one of each.

    select: glob over node names (`*` crosses dots), or "re:" and a regex that matches all of one.
    op: operator key as the plan prints it, "input" for the model's inputs.
    form: one of FORMS; `as` in files.
    observer: as for `calibrate`, "percentile:99.99" for example.

    Raises:
        PlanError: an unknown form or observer, a broken regex, or nothing said.
    """

    select: str | None = None
    op: str | None = None
    form: str | None = None
    observer: str | None = None

    def __post_init__(self) -> None:
        for key, name in _KEYS.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise PlanError(f"{key} is {value!r}; it has to be text")
        if self.select is None and self.op is None:
            raise PlanError("it selects nothing; give select, op or both")
        if self.form is None and self.observer is None:
            raise PlanError("it says nothing of what it selects; give as, observer or both")
        if self.form is not None and self.form not in FORMS:
            raise PlanError(f'as = "{self.form}" is unknown; known are {_listed(FORMS)}')
        if self.select is not None and self.select.startswith(_REGEX):
            try:
                re.compile(self.select.removeprefix(_REGEX))
            except re.error as error:
                raise PlanError(f'select = "{self.select}" is no regex: {error}') from error
        if self.observer is not None:
            try:
                observers.parse(self.observer)
            except CalibrationError as error:
                raise PlanError(f'observer = "{self.observer}": {error}') from error

    def selects(self, name: str, op: str) -> bool:
        if self.op not in (None, op) or (op == INPUT and self.form is not None):
            return False
        if self.select is None:
            return True
        if self.select.startswith(_REGEX):
            return re.fullmatch(self.select.removeprefix(_REGEX), name) is not None
        return fnmatchcase(name, self.select)

    @property
    def spec(self) -> ObserverSpec | None:
        """The observer with all of its options."""
        if self.observer is None:
            return None
        found = observers.parse(self.observer)
        return ObserverSpec(found.name, tuple(observers.options_of(found).items()))

    def __str__(self) -> str:
        return ", ".join(
            f'{key} = "{value}"' for key, name in _KEYS.items() if (value := getattr(self, name))
        )


@dataclass(frozen=True)
class Choice:
    """What a recipe says of one node.

    form: one of FORMS. because: the rule or mode, in words. observer: None where no rule names one;
    rank: the number of the rule that did, for a tensor that several nodes make (a fused clamp).
    """

    form: str
    because: str
    observer: ObserverSpec | None = None
    rank: int = 0


@dataclass(frozen=True)
class Recipe:
    """A mode for everything, and rules for what is different. The empty one is static."""

    rules: tuple[Rule, ...] = ()
    mode: str = "static"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise PlanError(f'mode = "{self.mode}" is unknown; known are {_listed(MODES)}')

    @classmethod
    def of(cls, source: Recipe | Any = None, mode: str | None = None) -> Recipe:
        """A recipe from whatever a person gives.

        Args:
            source: a Recipe; the path of a .toml or .json file; what stands in such a file; a list
                of rules (Rule or dict); None for no rules.
            mode: one of MODES, beside a source that names none.

        Raises:
            FileError: no such file, or not TOML or JSON.
            PlanError: an unknown key or value; names the rule and lists what is known.
        """
        if isinstance(source, str | Path):
            return cls._load(Path(source), mode)
        if source is None:
            return cls((), mode or "static")
        if isinstance(source, Recipe):
            named, rules = source.mode if source.mode != "static" else None, source.rules
        elif isinstance(source, Mapping):
            _only(source, ("mode", "rules"), "the recipe")
            named, rules = source.get("mode"), _rules(source.get("rules", ()))
        else:
            named, rules = None, _rules(source)
        if mode is not None and named is not None and mode != named:
            raise PlanError(
                f'the recipe is of mode "{named}", and mode "{mode}" was asked for; give one'
            )
        return cls(rules, mode or named or "static")

    @classmethod
    def _load(cls, path: Path, mode: str | None) -> Recipe:
        try:
            return cls.of(_read(path), mode)
        except PlanError as error:
            raise PlanError(f"{path}: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """What a JSON file of this recipe holds; `Recipe.of` reads it back to an equal one."""
        rules = [
            {key: value for key, name in _KEYS.items() if (value := getattr(rule, name))}
            for rule in self.rules
        ]
        return {"mode": self.mode, "rules": rules}

    def choices(self, nodes: Mapping[str, str]) -> dict[str, Choice]:
        """What becomes of each node.

        Args:
            nodes: name -> operator key, as the plan prints them.

        Raises:
            PlanError: a rule selects none of them; names it, and names that come near.
        """
        usual = Choice(MODES[self.mode], f'mode "{self.mode}"')
        found = dict.fromkeys(nodes, usual)
        for number, rule in enumerate(self.rules, 1):
            selected = [n for n, op in nodes.items() if rule.selects(n, op)]
            if not selected:
                raise PlanError(
                    f"rule {number} of the recipe ({rule}) selects no node; {_hint(rule, nodes)}"
                )
            for name in selected:
                old = found[name]
                because = f"rule {number}: {rule}" if rule.form else old.because
                observer = (rule.spec, number) if rule.observer else (old.observer, old.rank)
                found[name] = Choice(rule.form or old.form, because, *observer)
        return found


def _read(path: Path) -> Any:
    """The file's content. TOML needs Python 3.11 or the package tomli: JSON always works, and a
    dependency for one old version of Python is not worth it."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: the recipe cannot be read ({error})") from error
    if path.suffix == ".json":
        parse: Any = json.loads
    elif path.suffix == ".toml":
        try:
            parse = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli").loads
        except ImportError as error:
            raise FileError(
                f"{path}: reading TOML takes Python 3.11 or `pip install tomli`; the same recipe "
                "can be written as JSON"
            ) from error
    else:
        raise FileError(f"{path}: a recipe is a .toml or a .json file")
    try:
        return parse(text)
    except ValueError as error:
        raise FileError(f"{path}: not {path.suffix.removeprefix('.').upper()} ({error})") from error


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


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _hint(rule: Rule, nodes: Mapping[str, str]) -> str:
    ops = sorted(set(nodes.values()))
    if rule.op is not None and rule.op not in ops:
        return f"the operators of this model are {_listed(ops)}"
    wanted = (rule.select or "").removeprefix(_REGEX)
    if any(n.startswith(f"{wanted}.") for n in nodes):
        return f'to select all of that module write select = "{wanted}.*"'
    near = difflib.get_close_matches(wanted, nodes, n=3, cutoff=0.4)
    return (f"near are {_listed(near)}; " if near else "") + "names are those the plan prints"
