"""Which points a tensor gets where it is read in several types."""

from __future__ import annotations

from qtool.core.types import UINT8, UINT16, Derived, Observed, Requantized
from tests.planning.targets.converted import captured


def types(recipe: list[dict[str, str]], network: str = "residual_concat") -> dict[str, str]:
    """Point -> its type, and how it comes by it, of points that no type of weights concerns."""
    found = {}
    for point in captured(network).plan("qnn", recipe=recipe).points:
        if isinstance(point.spec, Observed) and point.spec.qtype in (UINT8, UINT16):
            found[point.name] = f"{point.spec.qtype}"
        elif isinstance(point.spec, Requantized):
            found[point.name] = f"{point.spec.qtype} from {point.spec.point}"
    return found


def test_one_type_needs_one_point_for_each_tensor() -> None:
    assert set(types([]).values()) == {"uint8"}
    assert set(types([{"select": "*", "activations": "uint16"}]).values()) == {"uint16"}


def test_codes_are_requantized_for_readers_of_another_type() -> None:
    found = types([{"select": "second", "activations": "uint16"}])
    assert {n: t for n, t in found.items() if n.startswith(("relu", "second"))} == {
        "relu": "uint8",
        "relu.uint16": "uint16 from relu",
        "second": "uint16",
        "second.uint8": "uint8 from second",
        "relu_2": "uint8",
    }


def test_a_float_tensor_is_quantized_once_for_each_type() -> None:
    found = types([{"select": "expand", "activations": "uint16"}], "depthwise")
    assert (found["x"], found["x.uint8"]) == ("uint16", "uint8")


def test_a_clamp_left_in_float_has_the_type_of_its_reader() -> None:
    rules = [{"select": "first", "as": "float"}, {"select": "relu", "as": "float"}]
    found = types([*rules, {"select": "second", "activations": "uint16"}])
    assert (found["relu"], found["relu.uint8"]) == ("uint16", "uint8")


def test_a_bias_goes_with_the_type_that_its_layer_reads() -> None:
    rule = {"select": "second", "activations": "uint16"}
    plan = captured("residual_concat").plan("qnn", recipe=[rule])
    assert plan.point("second.bias").spec == Derived("relu.uint16", "second.weight")
