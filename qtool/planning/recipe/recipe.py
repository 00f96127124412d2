"""Recipes: a mode and an ordered list of rules, from TOML, JSON or Python objects.

    mode = "static"              # for everything that no rule selects; one of MODES
    accuracy = "balanced"        # how much the conversion does for it; one of ACCURACIES
    recover = ["gptq"]           # or: exactly these steps
    slow_layers = "integer"      # also layers that are better in float; "float" by default
    parts = ["stem", "layer3"]   # where the parts begin that are trained one by one
    outputs = ["y=numbers"]      # what an output is, where nothing in the model says so

    [[rules]]
    select = "classifier.*"      # names as the plan prints them: a glob, or "re:" and a regex
    op = "linear"                # and, or instead: the operator, as the plan prints it
    as = "float"                 # a scheme by its name
    weights = "int4"             # and, or instead: single parts of the scheme,
    activations = "uint16"
    block = 32
    observer = "mse"             # and the observer of the tensors that the selected nodes compute,
    weight_observer = "mse"      # and of their weights

Later rules win. A rule that selects nothing is an error, as is any unknown key or value.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from qtool.core.errors import PlanError
from qtool.core.remedies import CallEdit
from qtool.core.schemes import SCHEMES
from qtool.core.text_files import read_toml_or_json
from qtool.planning.recipe.rule import KEYS, REGEX, Choice, Rule, comma_separated

MODES: Mapping[str, str] = MappingProxyType(
    {
        "static": "static",
        "dynamic": "dynamic",
        "weight-only": "int8-weights",
        "weight-only-int4": "int4-weights",
        "weight-only-int2": "int2-weights",
    }
)
"""Mode -> the scheme of every node that no rule selects."""

ACCURACIES: Mapping[str, int] = MappingProxyType({"fast": 0, "balanced": 1, "best": 2})
"""Accuracy -> its level: the conversion runs the steps up to that level."""

FLOAT_LAYERS, INTEGER_LAYERS = "float", "integer"
SLOW_LAYERS: Mapping[str, str] = MappingProxyType(
    {
        FLOAT_LAYERS: "they compute in float",
        INTEGER_LAYERS: "they compute in integers, as all other layers do",
    }
)
"""What happens to layers that are better in float: convolutions that are slower in integers by the
target's table of costs, and the sources of most of the error (step `sensitive-layers`)."""

DEFAULT_ACCURACY = "balanced"
"""The accuracy where neither the recipe nor the caller sets one."""

OPERATOR = "op:"
"""In front of an operator among the nodes to ignore."""

OUTPUT_KINDS = ("class", "token", "pixel", "threshold", "detection", "cosine", "numbers")
"""What an output may be called; `qtool.metrics.output_kind` says what each is."""

_RECIPE_KEYS = ("mode", "accuracy", "recover", "slow_layers", "parts", "outputs", "rules")


@dataclass(frozen=True)
class Recipe:
    """A mode for the whole model, and rules for the exceptions. The empty recipe is static.

    Attributes:
        rules: exceptions in order; later ones win.
        mode: one of MODES.
        accuracy: one of ACCURACIES.
        recover: names of the conversion steps to run; None for those of `accuracy`.
        slow_layers: one of SLOW_LAYERS.
        parts: names of the nodes that the parts of the network begin with which a block-wise
            conversion trains one by one; () for its blocks.
        outputs: what outputs are, as "NAME=KIND" with one of `OUTPUT_KINDS`, by which they are
            judged.
    """

    JSON_FORM: ClassVar[str] = "a recipe, as in a .json recipe file"

    rules: tuple[Rule, ...] = ()
    mode: str = "static"
    accuracy: str = DEFAULT_ACCURACY
    recover: tuple[str, ...] | None = None
    slow_layers: str = FLOAT_LAYERS
    parts: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        named: Any = (
            ("mode", self.mode, MODES),
            ("accuracy", self.accuracy, ACCURACIES),
            ("slow_layers", self.slow_layers, SLOW_LAYERS),
        )
        for what, value, known in named:
            if not isinstance(value, str) or value not in known:
                raise PlanError(
                    f'{what} = "{value}" is unknown; known are {comma_separated(known)}'
                )
        steps: Any = self.recover
        if steps is not None and not (
            isinstance(steps, tuple) and all(isinstance(name, str) for name in steps)
        ):
            raise PlanError(f"recover is {steps!r}; it must be a list of step names")
        object.__setattr__(self, "parts", _names("parts", self.parts))
        object.__setattr__(self, "outputs", _names("outputs", self.outputs))
        for each in self.outputs:
            name, _, kind = each.rpartition("=")
            if not name or kind not in OUTPUT_KINDS:
                raise PlanError(
                    f"outputs has {each!r}; each is NAME=KIND, with one of "
                    f"{comma_separated(OUTPUT_KINDS)}"
                )

    @classmethod
    def of(
        cls,
        source: Recipe | Any = None,
        mode: str | None = None,
        accuracy: str | None = None,
        recover: Iterable[str] | None = None,
        ignore: Iterable[str] | None = None,
        *,
        default_mode: str = "static",
    ) -> Recipe:
        """Return a recipe from a file, Python objects or nothing.

        Args:
            source: a Recipe; the path of a .toml or .json file; the content of such a file; a list
                of rules (Rule or dict); None for no rules.
            mode: one of MODES, if `source` sets none.
            accuracy: one of ACCURACIES, if `source` sets none.
            recover: names of steps, if `source` sets none.
            ignore: nodes that stay in float, by further rules: names or globs, "re:" and a regex,
                or "op:" and an operator.
            default_mode: the mode if neither sets one.

        Raises:
            FileError: no such file, or invalid TOML or JSON.
            PlanError: an unknown key or value; names the rule and lists the known ones.
        """
        if isinstance(source, str | Path):
            return cls._load(Path(source), default_mode, mode, accuracy, recover, ignore)
        if isinstance(source, Recipe):
            source = source.to_json()
        if not isinstance(source, Mapping):
            source = {"rules": () if source is None else source}
        _check_keys(source, _RECIPE_KEYS, "the recipe")
        return cls(
            (*_rules(source.get("rules", ())), *_ignored(ignore)),
            _resolve("mode", source.get("mode"), mode, default_mode),
            _resolve("accuracy", source.get("accuracy"), accuracy, DEFAULT_ACCURACY),
            _resolve("recover", _step_names(source.get("recover")), _step_names(recover), None),
            source.get("slow_layers", FLOAT_LAYERS),
            source.get("parts", ()),
            source.get("outputs", ()),
        )

    @classmethod
    def _load(cls, path: Path, default_mode: str, *options: Any) -> Recipe:
        try:
            source = read_toml_or_json(path, "recipe")
            return cls.of(source, *options, default_mode=default_mode)
        except PlanError as error:
            raise PlanError(f"{path}: {error.problem}", *error.remedies) from error

    def to_json(self) -> dict[str, Any]:
        """Return the content of a JSON file; `Recipe.of` turns it back into an equal recipe."""
        return {**self._header(), "rules": [rule.settings for rule in self.rules]}

    def to_toml(self) -> str:
        """Return the text of a TOML file."""
        tables = [self._header(), *(rule.settings for rule in self.rules)]
        lines = ("".join(f"{key} = {_toml_value(v)}\n" for key, v in t.items()) for t in tables)
        return "\n[[rules]]\n".join(lines)

    def _header(self) -> dict[str, Any]:
        header: dict[str, Any] = {"mode": self.mode, "accuracy": self.accuracy}
        if self.recover is not None:
            header["recover"] = list(self.recover)
        if self.slow_layers != FLOAT_LAYERS:
            header["slow_layers"] = self.slow_layers
        if self.parts:
            header["parts"] = list(self.parts)
        if self.outputs:
            header["outputs"] = list(self.outputs)
        return header

    @property
    def output_kinds(self) -> dict[str, str]:
        """Output -> what the user calls it."""
        return {name: kind for name, _, kind in (each.rpartition("=") for each in self.outputs)}

    def choices(
        self, nodes: Mapping[str, str], layers: Mapping[str, str] | None = None
    ) -> dict[str, Choice]:
        """Return the choice for each node.

        Args:
            nodes: name -> operator key, as the plan prints them.
            layers: node that a layer was split into -> the layer's name, which rules match; of a
                part of a model, in which a rule may select nothing.

        Raises:
            PlanError: a rule selects no node; names it.
        """
        default = Choice(SCHEMES[MODES[self.mode]], f'mode "{self.mode}"', is_default=True)
        choices, layer_names = dict.fromkeys(nodes, default), layers or {}
        for number, rule in enumerate(self.rules, 1):
            selected = [n for n, op in nodes.items() if rule.selects(layer_names.get(n, n), op)]
            if not selected and layers is None:
                raise PlanError(
                    f"{self._describe_rule(number)} selects no node; {_hint(rule, nodes)}"
                )
            for name in selected:
                choices[name] = rule.apply(choices[name], number)
        return choices

    @property
    def low_bits(self) -> bool:
        """Whether weights of the mode or of a rule have fewer than 8 bits."""
        default = Choice(SCHEMES[MODES[self.mode]], "")
        choices = [default, *(rule.apply(default, 1) for rule in self.rules)]
        return any(c.scheme.weights is not None and c.scheme.weights.bits < 8 for c in choices)

    def check_names(self, names: Iterable[str]) -> None:
        """Check that each rule's `select` matches a name of a model with unknown operators.

        Raises:
            PlanError: a rule matches none; names it.
        """
        nodes = dict.fromkeys(names, "")
        for number, rule in enumerate(self.rules, 1):
            if not any(map(rule.matches_name, nodes)):
                hint = _hint(replace(rule, op=None), nodes)
                raise PlanError(f"{self._describe_rule(number)} selects no node; {hint}")

    def unused(self, nodes: Collection[tuple[str, str]]) -> tuple[str, ...]:
        """Return a sentence for each rule that selects none of these (name, operator key)."""
        return tuple(
            f"{self._describe_rule(number)} selects no node"
            for number, rule in enumerate(self.rules, 1)
            if not any(rule.selects(*node) for node in nodes)
        )

    def _describe_rule(self, number: int) -> str:
        return f"rule {number} of the recipe ({self.rules[number - 1]})"


def with_output_kinds(source: Any, kinds: Sequence[str]) -> Any:
    """Return the content of a recipe with what outputs are besides; without any the recipe itself.

    Args:
        source: as for `Recipe.of`.
        kinds: as `Recipe.outputs`.
    """
    if not kinds:
        return source
    if isinstance(source, str | Path):
        content = read_toml_or_json(Path(source), "recipe")
    else:
        content = {} if source is None else Recipe.of(source).to_json()
    return {**content, "outputs": [*content.get("outputs", ()), *kinds]}


def _step_names(value: Any) -> Any:
    """Return a list of steps as a tuple; anything else as it is."""
    is_list = isinstance(value, Iterable) and not isinstance(value, str)
    return tuple(value) if is_list else value


def _names(key: str, value: Any) -> tuple[str, ...]:
    """Return a list of names as a tuple.

    Raises:
        PlanError: it is none, or has a name twice.
    """
    listed = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    if not listed or len(set(value)) < len(value):
        raise PlanError(f"{key} is {value!r}; it must be a list of different names")
    return tuple(value)


def _resolve(what: str, in_recipe: Any, option: Any, default: Any) -> Any:
    """Return the value of the recipe or of the caller, which may not contradict each other."""
    if option is not None and in_recipe not in (None, default, option):
        raise PlanError(
            f'the recipe sets {what} "{in_recipe}", but {what} "{option}" was passed',
            CallEdit("remove one"),
        )
    return option if option is not None else default if in_recipe is None else in_recipe


def _rules(values: Any) -> tuple[Rule, ...]:
    if isinstance(values, Mapping | Rule) or not isinstance(values, Iterable):
        raise PlanError("the rules of a recipe must be a list; in TOML, start each with [[rules]]")
    return tuple(_rule(number, value) for number, value in enumerate(values, 1))


def _ignored(nodes: Any) -> tuple[Rule, ...]:
    """Return a rule for each node, pattern or operator that stays in float."""
    if isinstance(nodes, str) or not isinstance(nodes, Iterable | None):
        raise PlanError(f"ignore is {nodes!r}", CallEdit("give a list of names and patterns"))
    return tuple(
        Rule(op=node.removeprefix(OPERATOR), scheme="float")
        if str(node).startswith(OPERATOR)
        else Rule(node, scheme="float")
        for node in nodes or ()
    )


def _rule(number: int, value: Any) -> Rule:
    if isinstance(value, Rule):
        return value
    if not isinstance(value, Mapping):
        raise PlanError(
            f"rule {number} is {value!r}; it must be a table with {comma_separated(KEYS)}"
        )
    _check_keys(value, KEYS, f"rule {number}")
    try:
        return Rule(**{KEYS[key]: each for key, each in value.items()})
    except PlanError as error:
        raise PlanError(f"rule {number}: {error.problem}", *error.remedies) from error


def _check_keys(table: Mapping[Any, Any], known: Iterable[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise PlanError(f"{where} has the key '{key}'; known are {comma_separated(known)}")


def _hint(rule: Rule, nodes: Mapping[str, str]) -> str:
    ops = sorted(set(nodes.values()))
    if rule.op is not None and rule.op not in ops:
        return f"the operators of this model are {comma_separated(ops)}"
    pattern = (rule.select or "").removeprefix(REGEX)
    if any(n.startswith(f"{pattern}.") for n in nodes):
        return f'to select the whole module, use select = "{pattern}.*"'
    return "the plan lists all names"


def _toml_value(value: str | int | list[str]) -> str:
    """Return a value as TOML: JSON, but DEL must be escaped, too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
