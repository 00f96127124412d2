"""Every target is a table that can be planned, written and run.

Those for weights alone refuse these networks in mode static, and have tests of their own.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from qtool.backends.onnxruntime.session import run, session
from qtool.backends.runtimes import runs_here, runtime
from qtool.core.schemes import Scales
from qtool.core.types import Derived, Fixed, Observed
from qtool.planning.plan import Kind
from qtool.planning.targets import DEFAULT, TARGETS
from tests.needs import HAS_VNNI
from tests.planning.targets.converted import captured, converted, network, samples, step, written

OTHERS = [name for name in TARGETS if name != DEFAULT]
PAIRS = [("residual_concat", name) for name in OTHERS]
PAIRS += [("activations", "openvino"), ("activations", "tflite")]
PAIRS += [("depthwise", "openvino"), ("depthwise", "tensorrt"), ("swishes", "openvino")]
FACTS = {  # activation, symmetric, integer bias, own operators, judged on this machine
    "onnxruntime": ("uint8", False, True, True, True),
    "onnxruntime-x86-vnni": ("uint8", False, True, True, True),
    "onnxruntime-arm": ("int8", False, True, True, False),
    "onnxruntime-web": ("uint8", False, True, True, True),
    "openvino": ("uint8", False, False, False, False),
    "tensorrt": ("int8", True, False, False, False),
    "tflite": ("int8", False, True, False, False),
    "tflite-micro": ("int8", False, True, False, False),
    "qnn": ("uint8", False, True, False, False),
}


def test_the_targets_are_those_that_are_documented() -> None:
    assert set(TARGETS) == set(FACTS)
    page = (Path(__file__).parents[3] / "docs" / "targets.md").read_text()
    assert all(f"`{name}`" in page for name in TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_a_plan_has_the_types_of_its_target(name: str) -> None:
    activation, symmetric, integer_bias, _, _ = FACTS[name]
    plan = captured("residual_concat").plan(name)
    specs = [p.spec for p in plan if p.kind is Kind.ACTIVATION and isinstance(p.spec, Observed)]
    assert specs
    assert {(s.qtype.name, s.symmetric) for s in specs} == {(activation, symmetric)}
    for point in plan:
        decision = plan.decision(point.edges[0].user) if point.kind is Kind.WEIGHT else None
        if decision is not None:
            usual = TARGETS[name].schemes(decision.op)[0]
            axis = None if usual.scales is Scales.TENSOR else 0
            assert (point.spec.qtype.name, point.spec.axis) == ("int8_narrow", axis)
    assert any(isinstance(p.spec, Derived) for p in plan) is integer_bias


def numbers(file: onnx.ModelProto, folder: Path, optimise: bool, x: torch.Tensor) -> np.ndarray:
    path = folder / "model.onnx"
    onnx.save(file, path)
    return run(session(path, optimise), [x.numpy()])[0]


@pytest.mark.parametrize(("name", "made_for"), PAIRS)
def test_a_converted_file_is_well_formed_and_runs(name: str, made_for: str, tmp_path: Path) -> None:
    model, x, file = converted(name, made_for), samples(name)[:16], written(name, made_for)
    onnx.checker.check_model(file, full_check=True)
    with torch.no_grad():
        fake, real = model(x).numpy(), network(name)(x).numpy()
    code = step(model, fake)
    # As written the same float operations on the same grids: a code where a value ties. Optimised,
    # each integer kernel may round otherwise, and the few layers behind carry it on.
    assert np.abs(fake - numbers(file, tmp_path, False, x)).max() < 2.5 * code
    if HAS_VNNI or made_for == DEFAULT:  # else sums of other targets' codes saturate here
        assert np.abs(fake - numbers(file, tmp_path, True, x)).max() < 6 * code
    assert np.abs(real - fake).max() < 24 * code


@pytest.mark.parametrize("name", TARGETS)
def test_only_onnx_runtime_gets_operators_of_its_own(name: str) -> None:
    assert TARGETS[name].file.contrib is FACTS[name][3]


@pytest.mark.parametrize("name", [DEFAULT, "openvino"])
def test_silu_and_gelu_are_written_for_the_target(name: str) -> None:
    domains = {n.domain for n in written("swishes", name).graph.node}
    assert ("com.microsoft" in domains) is TARGETS[name].file.contrib


@pytest.mark.parametrize("name", TARGETS)
def test_verification_says_what_was_not_looked_at(name: str, tmp_path: Path) -> None:
    path, here = tmp_path / "model.onnx", FACTS[name][4] and (HAS_VNNI or "vnni" not in name)
    onnx.save(written("residual_concat", name), path)
    found = converted("residual_concat", name).verify(path)
    assert found.passed
    assert (found.exactness is not None) is here
    asked = runtime(TARGETS[name].runtime)
    known = asked is not None and asked.installed
    known = known and (asked.name != "onnxruntime" or runs_here(TARGETS[name]))
    assert (found.parity.optimised is not None) is known
    assert (f"as planned for {name}, not audited on this machine" in found.details()) is not known
    assert ("cannot be compared on this machine" in found.details()) is not here
    share = found.coverage.share
    assert (share == 1.0) is (name != "onnxruntime-web")  # convolutions with few terms are float
    assert found.to_json()["coverage"]["integer_mac_share"] == share


def test_fixed_parameters_are_not_calibrated() -> None:
    plan = captured("activations").plan("tflite")
    fixed = {p.name for p in plan if isinstance(p.spec, Fixed)}
    assert fixed == {"sigmoid", "tanh", "softmax"}
    assert fixed.isdisjoint(p.name for p in plan.observed())
