"""Names: of operators, options and values."""

import pytest

from qtool.algorithms.registry import STEPS
from qtool.backends.formats import FORMATS
from qtool.core import option_names, value_names
from qtool.core.observer_options import OPTIONS
from qtool.core.operator_kinds import tensors_that_jump
from qtool.core.value_names import all_unique, unique
from qtool.observers import OBSERVERS
from qtool.planning import targets
from qtool.planning.recipe import ACCURACIES, MODES
from qtool.planning.targets import TARGETS
from qtool.plugins.search.choices import CHOICES
from tests.backends.onnx.export.networks import NETWORKS, model, quantized


def test_a_jump_reaches_to_the_next_quantization() -> None:
    onnx = [
        ("Add", ["x", "y"], ["sum"]),
        ("GreaterOrEqual", ["sum", "x"], ["mask"]),
        ("Where", ["mask", "x", "y"], ["chosen"]),
        ("QuantizeLinear", ["chosen", "scale"], ["codes"]),
        ("DequantizeLinear", ["codes", "scale"], ["again"]),
        ("Relu", ["again"], ["out"]),
    ]
    assert tensors_that_jump(onnx) == {"mask", "chosen", "codes"}


def test_types_of_tflite_are_known_too() -> None:
    tflite = [
        ("GREATER_EQUAL", (0, 1), (2,)),
        ("SELECT_V2", (2, 0, 1), (3,)),
        ("DEQUANTIZE", (3,), (4,)),
        ("ARG_MAX", (4,), (5,)),
    ]
    assert tensors_that_jump(tflite) == {2, 3, 5}


@pytest.mark.parametrize(
    ("wanted", "taken", "given"),
    [
        ("a", set(), "a"),
        ("a", {"a"}, "a_2"),
        ("a", {"a", "a_2", "a_3"}, "a_4"),
        ("层", {"层"}, "层_2"),
        ("", {""}, "_2"),
    ],
)
def test_the_first_name_that_is_free(wanted: str, taken: set[str], given: str) -> None:
    assert unique(wanted, taken) == given


def test_a_name_wanted_once_is_kept_wherever_it_stands() -> None:
    assert all_unique(["a", "a", "a_2"]) == ("a", "a_3", "a_2")


def test_what_is_taken_makes_no_room() -> None:
    assert all_unique(["x", "y"], ["x"]) == ("x_2", "y")


def test_the_tables_are_those_of_the_registries() -> None:
    assert tuple(targets.TARGETS) == option_names.TARGETS
    for name in option_names.TARGETS:
        machines = tuple(sorted(TARGETS[name].machines))
        known = machines if TARGETS[name].runtime == option_names.NATIVE else None
        assert option_names.TARGET_MACHINES.get(name, ()) == known
    formats = {f for name in option_names.TARGETS for f in TARGETS[name].file.formats}
    assert set(option_names.FORMATS) == formats
    assert tuple(OBSERVERS) == tuple(OPTIONS) == option_names.OBSERVERS
    assert set(MODES) == set(option_names.MODES)
    assert tuple(ACCURACIES) == option_names.ACCURACIES
    assert tuple(CHOICES) == option_names.CHOICES
    others = {r.name for used in FORMATS for r in used.other_runtimes}
    assert {option_names.NATIVE, *others} == set(option_names.RUNTIMES)
    assert {s.name for s in STEPS} - {"solve"} == set(option_names.STEPS)


def test_what_is_written_is_what_is_read() -> None:
    assert (
        value_names.operator_of(value_names.helper("layer1.0.add", "Cast", "val_3"), "Cast")
        == "layer1.0.add"
    )
    assert value_names.operator_of("layer1.0.add", "Add") == "layer1.0.add"
    assert value_names.tensor_of(value_names.quantize("conv")) == "conv"
    assert value_names.tensor_of("conv") == "conv"
    assert value_names.base_of(value_names.quantize("conv")) == "conv"
    assert value_names.base_of(value_names.dequantize("conv.weight")) == "conv.weight"
    assert value_names.base_of("conv_output_QuantizeLinear") == "conv_output"
    assert value_names.base_of("conv") is None


@pytest.mark.parametrize("name", ["residual", "conv_transpose", "outputs"])
def test_files_are_named_so(name: str) -> None:
    file, plan = model(name), quantized(name).plan
    nodes = {n.name: n for n in file.graph.node}
    stored = {i.name for i in file.graph.initializer}
    for point in plan:
        root = plan.root(point.name)
        assert value_names.dequantize(point.name) in nodes or root != point.name
        if point.kind == "weight":
            assert {value_names.codes(point.name), value_names.scale(point.name)} <= stored
            assert nodes[value_names.dequantize(point.name)].input[0] == value_names.codes(
                point.name
            )
    assert name in NETWORKS


@pytest.mark.parametrize(
    "layers", [("a.q", "a.k", "a.v"), ("gate", "up"), ("a.b.q", "a.c.k"), ("a.q", "k")]
)
def test_a_joint_layer_is_named_after_its_layers(layers: tuple[str, ...]) -> None:
    points = [f"{name}.weight" for name in layers]
    joint = f"{value_names.joint_layer(layers)}.weight"
    assert value_names.points_of_joint(joint, points) == points
    assert value_names.points_of_joint(joint, points[1:]) == []
    assert value_names.points_of_joint(points[0], points) == []


def test_codes_have_the_name_of_their_point() -> None:
    assert value_names.point_of_codes(value_names.codes("a.weight")) == "a.weight"
    assert value_names.point_of_codes("a.weight") is None
