"""Recipes: what they select, what they refuse, and what the plan makes of them."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import qtool
from qtool.api.conversion import calibrate, convert, quantize
from qtool.core.errors import CalibrationError, PlanError
from qtool.core.schemes import ACTIVATIONS, BLOCK_SIZES, SCHEMES, WEIGHTS, Scales, Scheme, When
from qtool.core.types import INT4, INT8_NARROW, UINT4, UINT16, Observed, ObserverSpec
from qtool.frontends.captured_model import capture_model
from qtool.planning.plan import Execution
from qtool.planning.recipe import MODES, Choice, Recipe, Rule

NODES = {
    "x": "input",
    "stem.0": "conv",
    "stem.1": "relu",
    "layer1.fc": "linear",
    "layer2.fc": "linear",
    "layer2.softmax": "softmax.int",
}
SELECTED: dict[str, tuple[dict[str, str], list[str]]] = {
    "a name": ({"select": "stem.0"}, ["stem.0"]),
    "a glob crosses dots": ({"select": "*"}, [n for n in NODES if n != "x"]),
    "a glob is no regex": ({"select": "layer?.fc"}, ["layer1.fc", "layer2.fc"]),
    "a regex": ({"select": r"re:layer[12]\..*"}, ["layer1.fc", "layer2.fc", "layer2.softmax"]),
    "a regex of alternatives": (
        {"select": r"re:(layer1|layer2)\.f?c{1}"},
        ["layer1.fc", "layer2.fc"],
    ),
    "a regex matches all of a name": ({"select": "re:.*fc"}, ["layer1.fc", "layer2.fc"]),
    "an operator": ({"op": "linear"}, ["layer1.fc", "layer2.fc"]),
    "an operator of ATen": ({"op": "softmax.int"}, ["layer2.softmax"]),
    "both": ({"select": "layer2.*", "op": "linear"}, ["layer2.fc"]),
}
BAD: dict[str, tuple[Any, str]] = {
    "unknown key": ([{"selct": "a", "as": "float"}], r"rule 1 has the key 'selct'; known are sel"),
    "second rule": ([{"op": "conv", "as": "float"}, {"as": "float"}], "rule 2: it selects noth"),
    "nothing said": ([{"op": "conv"}], "rule 1: it changes nothing"),
    "unknown scheme": (
        [{"op": "conv", "as": "int8"}],
        r"as = \"int8\" is unknown; known are float",
    ),
    "unknown weights": ([{"op": "conv", "weights": "int3"}], r"weights = \"int3\".*uint4, uint2"),
    "unknown activations": ([{"op": "conv", "activations": "fp8"}], "known are uint8, int8"),
    "unknown block": ([{"op": "conv", "block": 33}], "block = 33.* known are channel, 16"),
    "a block that is no number": ([{"op": "conv", "block": True}], "block = True is unknown"),
    "types of a float": (
        [{"op": "conv", "as": "float", "weights": "int4"}],
        'as = "float" excludes',
    ),
    "unknown weight observer": (
        [{"op": "conv", "weight_observer": "max"}],
        r"weight_observer = \"max\".*There are",
    ),
    "unknown observer": ([{"op": "conv", "observer": "max"}], r"observer = \"max\".*There are"),
    "bad observer option": ([{"op": "conv", "observer": "percentile:3"}], "percentile:3"),
    "broken regex": ([{"select": "re:(", "as": "float"}], "is not a valid regex"),
    "a regex of too many": (
        [{"select": "re:a{99999999999}", "as": "float"}],
        "is not a valid regex",
    ),
    "a regex too deep": (
        [{"select": f"re:{'(' * 5000}{')' * 5000}", "as": "float"}],
        "valid regex",
    ),
    **{
        f"a regex for ever: {pattern}": ([{"select": f"re:{pattern}", "as": "float"}], "for ever")
        for pattern in (
            "([a-z0-9.]+)+!",
            "(.*)*X",
            "(a|aa)+b",
            "(a?){50}b",
            "(?:a+){20}",
            "((a*)b)*",
            "(?=(a+)+b).*",
            ".*.*.*.*.*X",
        )
    },
    "a number": ([{"select": 3, "as": "float"}], "select is 3; it must be a string"),
    "no list": ({"rules": {"op": "conv", "as": "float"}}, r"a list; in TOML, .*\[\[rules\]\]"),
    "no table": (["conv"], "rule 1 is 'conv'"),
    "unknown mode": ({"mode": "fast"}, r"mode = \"fast\" is unknown; known are static"),
    "unknown top key": ({"rule": []}, "has the key 'rule'; known are mode, accuracy, recover"),
    "unknown accuracy": ({"accuracy": "high"}, r'accuracy = "high" is unknown; known are fast'),
    "steps that are none": ({"recover": [1]}, "recover is .*a list of step names"),
}
TOML = """
mode = "dynamic"

[[rules]]
select = "layer2.*"
as = "float"

[[rules]]
op = "conv"
observer = "mse"
"""


class Net(nn.Module):
    """A convolution, a clamp, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(self.stem(x).mean((2, 3)))))


def batch() -> torch.Tensor:
    return torch.randn(16, 3, 6, 6)


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


def form_of(plan: qtool.QuantPlan, node: str) -> str:
    found = plan.decision(node)
    return found.execution.value


@pytest.mark.parametrize(("rule", "expected"), SELECTED.values(), ids=SELECTED.keys())
def test_a_rule_selects(rule: dict[str, str], expected: list[str]) -> None:
    choices = Recipe.of([{**rule, "as": "float"}]).choices(NODES)
    assert [n for n, c in choices.items() if c.scheme == SCHEMES["float"]] == expected


def test_later_rules_win_and_keep_what_they_do_not_speak_of() -> None:
    rules = [
        {"op": "linear", "as": "dynamic", "observer": "mse"},
        {"select": "layer2.*", "as": "float"},
        {"select": "x", "observer": "minmax"},
    ]
    found = Recipe.of(rules).choices(NODES)
    mse = ObserverSpec("mse", (("bins", 2048),))
    assert found["stem.0"] == Choice(Scheme(), 'mode "static"', is_default=True)
    assert found["layer1.fc"].scheme == Scheme(When.DYNAMIC)
    assert found["layer1.fc"].observer == mse
    assert found["layer2.fc"] == Choice(
        Scheme(When.FLOAT), 'rule 2: select = "layer2.*", as = "float"', mse, observer_rule=1
    )
    assert found["x"].observer == ObserverSpec("minmax")


@pytest.mark.parametrize(("given", "message"), BAD.values(), ids=BAD.keys())
def test_what_is_not_known_is_refused(given: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Recipe.of(given)


HINTS = {
    "a typing error": (
        {"select": "stem.O"},
        r"rule 1 of the recipe \(select = .*the plan lists all names",
    ),
    "a module": ({"select": "stem"}, r'to select the whole module, use select = "stem\.\*"'),
    "an operator": ({"op": "lstm"}, "the operators of this model are conv, input, linear"),
}


@pytest.mark.parametrize(("rule", "message"), HINTS.values(), ids=HINTS.keys())
def test_a_rule_that_selects_nothing_is_refused(rule: dict[str, str], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Recipe.of([{**rule, "as": "float"}]).choices(NODES)


def test_a_file_says_the_same_in_toml_and_json(tmp_path: Path) -> None:
    toml, other = tmp_path / "r.toml", tmp_path / "r.json"
    toml.write_text(TOML)
    rules = [{"select": "layer2.*", "as": "float"}, {"op": "conv", "observer": "mse"}]
    other.write_text(json.dumps({"mode": "dynamic", "rules": rules}))
    expected = Recipe(
        (Rule("layer2.*", scheme="float"), Rule(op="conv", observer="mse")), "dynamic"
    )
    assert Recipe.of(toml) == Recipe.of(str(other)) == Recipe.of(expected) == expected
    assert Recipe.of(None, "dynamic") == Recipe((), "dynamic")


def test_every_mode_is_a_scheme() -> None:
    assert set(MODES.values()) < set(SCHEMES)


PARTS: dict[str, tuple[list[dict[str, Any]], Scheme]] = {
    "a type of weights": ([{"weights": "int4"}], Scheme(weights=INT4)),
    "a type of activations": ([{"activations": "uint16"}], Scheme(activations=UINT16)),
    "a scheme and a part of it": (
        [{"as": "int4-weights", "block": 128}],
        Scheme(When.NEVER, weights=UINT4, scales=128),
    ),
    "parts add up": (
        [{"weights": "int8"}, {"activations": "uint16"}, {"block": "channel"}],
        Scheme(When.STATIC, UINT16, INT8_NARROW, Scales.CHANNEL),
    ),
    "a scheme is all of it": ([{"weights": "int4"}, {"as": "dynamic"}], Scheme(When.DYNAMIC)),
}


@pytest.mark.parametrize(("rules", "expected"), PARTS.values(), ids=PARTS.keys())
def test_a_rule_may_change_a_part_of_a_scheme(
    rules: list[dict[str, Any]], expected: Scheme
) -> None:
    found = Recipe.of([{"op": "conv", **rule} for rule in rules]).choices(NODES)["stem.0"]
    assert found.scheme == expected
    assert found.decided_by.startswith(f"rule {len(rules)}: ")


def test_a_scheme_of_inputs_cannot_be_chosen() -> None:
    found = Recipe.of([{"select": "*", "weights": "int4", "observer": "mse"}]).choices(NODES)
    assert found["x"] == Choice(Scheme(), 'mode "static"', is_default=True)


RULES = st.builds(
    Rule,
    select=st.text(st.characters(exclude_categories=["Cs"]), min_size=1).map(lambda t: f"a{t}"),
    op=st.none() | st.just("conv"),
    scheme=st.none() | st.sampled_from([s for s in SCHEMES if s != "float"]),
    weights=st.sampled_from(list(WEIGHTS)),
    activations=st.none() | st.sampled_from(list(ACTIVATIONS)),
    block=st.none() | st.sampled_from(["channel", *BLOCK_SIZES]),
    observer=st.none() | st.just("percentile:99.9"),
    weight_observer=st.none() | st.just("mse"),
)
RECIPES = st.builds(
    Recipe,
    st.lists(RULES, max_size=3).map(tuple),
    st.sampled_from(list(MODES)),
    st.sampled_from(["fast", "balanced"]),
    st.sampled_from([None, (), ("gptq", "bias-correction")]),
)


@settings(deadline=None, derandomize=True, database=None, max_examples=100)
@given(RECIPES)
def test_what_is_written_reads_back(recipe: Recipe) -> None:
    with TemporaryDirectory() as folder:
        toml, other = Path(folder) / "r.toml", Path(folder) / "r.json"
        toml.write_text(recipe.to_toml(), "utf-8", newline="")
        other.write_text(json.dumps(recipe.to_json()), "utf-8")
        assert Recipe.of(toml) == Recipe.of(other) == recipe


def test_a_node_left_in_float_says_which_rule() -> None:
    captured = capture_model(net(), batch())
    plan = captured.plan(recipe=[{"select": "body", "as": "float"}])
    found = plan.decision("body")
    assert found.execution is Execution.FLOAT
    assert found.reason == ('left in float by the recipe (rule 1: select = "body", as = "float")')
    assert form_of(plan, "head") == "integer"
    assert form_of(captured.plan(), "body") == "integer"


def test_a_clamp_left_in_float_is_not_fused() -> None:
    plan = capture_model(net(), batch()).plan(recipe=[{"select": "stem.1", "as": "float"}])
    assert form_of(plan, "stem.1") == "float"
    assert "stem.0" in plan
    assert Execution.FUSED not in {d.execution for d in plan.nodes if d.node == "stem.1"}


def test_an_observer_is_that_of_the_tensors_a_node_computes() -> None:
    rules = [{"select": "stem.0", "observer": "mse"}, {"op": "input", "observer": "minmax"}]
    plan = capture_model(net(), batch()).plan(recipe=rules)
    found = {p.name: p.spec.observer.name for p in plan if isinstance(p.spec, Observed)}
    assert found["x"] == "minmax"
    assert found["stem.1"] == "mse"  # the clamp is fused into stem.0, whose result is its
    assert {v for k, v in found.items() if k not in ("x", "stem.1") and "weight" not in k} == {
        "percentile"
    }


def test_a_calibration_that_does_not_fit_the_recipe_is_refused() -> None:
    model, data = net(), [batch()]
    less = calibrate(model, data, recipe=[{"op": "conv", "as": "float"}])
    with pytest.raises(CalibrationError, match=r"another recipe or mode .it lacks 'x'"):
        convert(model, less, mode="static")
    with pytest.raises(CalibrationError, match=r"recipe observes 'x' with mse.*calibrate again"):
        convert(model, calibrate(model, data), recipe=[{"op": "input", "observer": "mse"}])


def test_conversion_takes_the_recipe_of_the_calibration(tmp_path: Path) -> None:
    recipe = [{"op": "conv", "as": "float"}, {"op": "input", "observer": "mse"}]
    calibrate(net(), [batch()], recipe=recipe).save(tmp_path / "made.calib")
    found = convert(net(), tmp_path / "made.calib")
    assert found.plan == quantize(net(), [batch()], recipe=recipe).plan
    assert form_of(found.plan, "stem.0") == "float"


def test_a_recipe_may_leave_more_in_float_than_the_calibration() -> None:
    model, data = net(), [batch()]
    found = convert(model, calibrate(model, data), recipe=[{"op": "conv", "as": "float"}])
    assert form_of(found.plan, "stem.0") == "float"
    assert form_of(found.plan, "head") == "integer"


def test_nothing_to_calibrate_is_refused() -> None:
    with pytest.raises(CalibrationError, match=r"nothing to calibrate.*qtool\.quantize"):
        calibrate(net(), [batch()], mode="weight-only", accuracy="fast")


def test_ignored_nodes_stay_in_float() -> None:
    rules = ({"select": "a.*", "as": "float"}, {"select": "re:b\\d", "as": "float"})
    expected = Recipe.of([*rules, {"op": "conv", "as": "float"}])
    assert Recipe.of(ignore=["a.*", "re:b\\d", "op:conv"]) == expected
    assert Recipe.of(ignore=()) == Recipe.of(ignore=None) == Recipe()


def test_ignored_nodes_come_after_the_rules(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('mode = "dynamic"\nrules = [{select = "*", weights = "int4"}]')
    recipe = Recipe.of(tmp_path / "r.toml", ignore=["head"])
    assert (recipe.mode, recipe.rules[-1]) == ("dynamic", Rule("head", scheme="float"))
    choices = recipe.choices({"body": "linear", "head": "linear"})
    assert choices["head"].scheme == SCHEMES["float"]
    assert choices["body"].scheme != SCHEMES["float"]


@pytest.mark.parametrize("ignore", ["head", 3])
def test_ignore_is_a_list(ignore: Any) -> None:
    with pytest.raises(PlanError, match=f"ignore is {ignore!r}; give a list of names and patterns"):
        Recipe.of(ignore=ignore)


def test_all_calls_take_nodes_to_ignore(tmp_path: Path) -> None:
    data, how = [batch()], {"accuracy": "fast", "ignore": ["head"]}
    plans = [quantize(net(), data, **how).plan, convert(net(), calibrate(net(), data, **how)).plan]
    settings = qtool.QuantizeOptions(accuracy="fast", ignore=("head",))
    untimed = qtool.FileOptions(timing=0)
    file = qtool.quantize_to_file(net(), data, tmp_path / "m.onnx", settings, untimed)
    for plan in (*plans, file.model.plan):
        decision = plan.decision("head")
        assert decision is not None
        assert (
            decision.reason == 'left in float by the recipe (rule 1: select = "head", as = "float")'
        )
    with pytest.raises(PlanError, match="selects no node"):
        quantize(net(), data, ignore=["no"])
