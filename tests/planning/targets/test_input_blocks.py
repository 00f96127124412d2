"""Which layers with integer weights alone round their input: the simulation against runtimes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qtool.api.conversion import quantize
from qtool.backends.onnxruntime.session import optimised_graph, run, session
from qtool.backends.openvino.runtime import OPENVINO
from qtool.core.sqnr import sqnr
from qtool.planning.input_rounding import RoundedInput, insert_input_rounding
from tests.backends.onnxruntime.kernels.oracle import VNNI

AGREEMENT_DB = 75.0
"""Of simulation and runtime, which add floats in another order: a sum at a tie is rounded to the
other code. Where one of them does not round an input it is below 55."""

Rule = dict[str, Any]
ROWS, WIDTH = 16, 40
STORED = [{"select": "*", "as": "int8-weights"}]


class Network(nn.Module):
    """A function of the network and its input, with layers."""

    def __init__(self, body: Callable[..., torch.Tensor], bias: bool, outputs: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(WIDTH, outputs, bias=bias)
        self.b = nn.Linear(WIDTH, WIDTH)
        self.c = nn.Linear(31, 31)  # narrower than a block
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self, x)


def case(
    layers: int,
    body: Callable[..., torch.Tensor],
    bias: bool = True,
    shape: tuple[int, ...] = (ROWS, WIDTH),
    recipe: list[Rule] = STORED,
    outputs: int = WIDTH,
) -> Any:
    return layers, body, bias, shape, recipe, outputs


def mixed(**schemes: str) -> list[Rule]:
    return [*STORED, *({"select": name, "as": scheme} for name, scheme in schemes.items())]


def parallel(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.cat([m.a(x).relu(), m.b(x).relu()], -1)


def read_twice(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.a(x).relu()
    z: torch.Tensor = m.b(y) + y
    return z


ONNXRUNTIME = {
    "two layers": case(2, lambda m, x: m.b(F.gelu(m.a(x)))),
    "several dimensions": case(2, lambda m, x: m.b(F.gelu(m.a(x))), shape=(4, 6, WIDTH)),
    "one output": case(1, lambda m, x: m.a(x), outputs=1),
    "a ReLU between": case(1, lambda m, x: m.b(m.a(x).relu())),
    "a clamp between": case(1, lambda m, x: m.b(m.a(x).clamp(min=-0.5)), shape=(4, 6, WIDTH)),
    "a ReLU at the end": case(1, lambda m, x: m.a(x).relu()),
    "a ReLU with two readers": case(2, read_twice),
    "ReLUs before a concat": case(0, parallel),
    "a weight of two layers": case(0, lambda m, x: F.linear(m.a(x), m.a.weight)),
    "a layer that is called twice": case(0, lambda m, x: m.a(F.gelu(m.a(x)))),
    "a transpose in front": case(0, lambda m, x: m.b(x.t()), shape=(WIDTH, WIDTH)),
    "the same without a bias": case(1, lambda m, x: m.a(x.t()), False, (WIDTH, WIDTH)),
    "a transpose of some dimensions": case(1, lambda m, x: m.b(x.mT), shape=(2, WIDTH, WIDTH)),
    "a transpose behind": case(1, lambda m, x: m.a(x).t(), False),
    "a residual": case(0, lambda m, x: m.a(x) + x, False),
    "a residual with a bias": case(1, lambda m, x: m.a(x) + x),
    "a residual of several dimensions": case(1, lambda m, x: m.a(x) + x, False, (4, 6, WIDTH)),
    "a broadcast residual": case(1, lambda m, x: m.a(x) + x[None], False),
    "a number added": case(1, lambda m, x: m.a(x) + 1, False),
    "static in front": case(1, lambda m, x: m.b(m.a(x)), recipe=mixed(a="static")),
    "static behind": case(0, lambda m, x: m.b(m.a(x)), recipe=mixed(b="static")),
    "dynamic behind": case(1, lambda m, x: m.b(m.a(x)), recipe=mixed(b="dynamic")),
}
"""Name -> case; `layers` is how many of its inputs are rounded."""

OPENVINO_TOO = {
    "two layers": case(2, lambda m, x: m.b(F.gelu(m.a(x)))),
    "several dimensions": case(2, lambda m, x: m.b(m.a(x).relu()), shape=(4, 6, WIDTH)),
    "one output": case(0, lambda m, x: m.a(x), outputs=1),
    "a narrow input": case(1, lambda m, x: m.a(F.pad(m.c(x[:, :31]), (0, 9)))),
    "a residual": case(1, lambda m, x: m.a(x) + x, False),
    "a weight of two layers": case(2, lambda m, x: F.linear(m.a(x), m.a.weight)),
    "static behind": case(1, lambda m, x: m.b(m.a(x)), recipe=mixed(b="static")),
}


def simulated_and_run(
    network: nn.Module,
    shape: tuple[int, ...],
    recipe: list[Rule],
    target: str,
    path: Path,
    runtime: Callable[[Path, Any], Any],
) -> tuple[int, float | None]:
    """Return how many inputs the simulation rounds, and its SQNR against the runtime."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    model = quantize(network.eval(), [x], target=target, recipe=recipe, accuracy="fast")
    model.export(path, verify=False)
    insert_input_rounding(model.module, model.plan)
    rounded = sum(isinstance(m, RoundedInput) for m in model.module.modules())
    with torch.no_grad():
        return rounded, sqnr(np.asarray(runtime(path, x.numpy())), model(x).numpy())


@VNNI
@pytest.mark.parametrize("name", ONNXRUNTIME)
def test_onnxruntime(name: str, tmp_path: Path) -> None:
    layers, body, bias, shape, recipe, outputs = ONNXRUNTIME[name]
    path = tmp_path / "model.onnx"
    rounded, agreement = simulated_and_run(
        Network(body, bias, outputs),
        shape,
        recipe,
        "onnxruntime",
        path,
        lambda file, x: run(session(file), [x])[0],
    )
    executed = [node.op_type for node in optimised_graph(path).graph.node]
    assert rounded == layers == executed.count("MatMulNBits")
    assert agreement is None or agreement > AGREEMENT_DB


@VNNI
@pytest.mark.parametrize("name", OPENVINO_TOO)
def test_openvino(name: str, tmp_path: Path) -> None:
    pytest.importorskip(
        "openvino", reason="OpenVINO is not installed: install the package openvino"
    )
    layers, body, bias, shape, recipe, outputs = OPENVINO_TOO[name]
    rounded, agreement = simulated_and_run(
        Network(body, bias, outputs),
        shape,
        recipe,
        "openvino",
        tmp_path / "model.onnx",
        lambda file, x: OPENVINO.run(file, (x,))[0],
    )
    assert rounded == layers
    assert agreement is None or agreement > AGREEMENT_DB
