"""Small networks converted for each target, each once per process; and the sample network."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from examples.digits.network import digits_net
from qtool import QuantizedModel
from qtool.api.conversion import calibrate, convert
from qtool.frontends.captured_model import Captured, capture_model
from qtool.planning.plan import Execution

ROOT = Path(__file__).parents[3]


class ResidualConcat(nn.Module):
    """A residual block, and a concat of what is read twice with what is read once."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.branch = nn.Conv2d(8, 4, 1)
        self.head = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.first(x))
        x = F.relu(x + self.second(x))
        x = torch.cat([x, F.relu(self.branch(x))], 1)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Depthwise(nn.Module):
    """An inverted residual: pointwise, depthwise, ReLU6, and the input added."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Conv2d(4, 16, 1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.project = nn.Conv2d(16, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu6(self.depthwise(F.relu6(self.expand(x))))
        return x + self.project(y)


class Activations(nn.Module):
    """Functions whose output parameters a runtime may fix, a pool, SiLU and GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 1)
        self.second = nn.Conv2d(8, 8, 1)
        self.third = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8 * 9, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sigmoid(self.first(x))
        x = torch.tanh(self.second(x))
        x = F.relu(F.avg_pool2d(self.third(x), 2))
        return torch.softmax(self.head(x.flatten(1)), 1)


class Swishes(nn.Module):
    """Functions that ONNX Runtime has operators of its own for."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 1)
        self.second = nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.second(F.silu(self.first(x))))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "residual_concat": ResidualConcat,
    "depthwise": Depthwise,
    "activations": Activations,
    "swishes": Swishes,
}


def images(count: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, 4, 6, 6, generator=torch.Generator().manual_seed(seed))


@cache
def samples(name: str) -> torch.Tensor:
    if name != "digits":
        return images(32)
    with np.load(ROOT / "calib_data" / "digits" / "images.npz") as file:
        return torch.from_numpy(file["x"])


@cache
def network(name: str) -> nn.Module:
    torch.manual_seed(3)
    if name != "digits":
        return NETWORKS[name]().eval()
    model = digits_net()
    model.load_state_dict(load_file(ROOT / "examples" / "digits" / "weights.safetensors"))
    return model.eval()


@cache
def captured(name: str) -> Captured:
    return capture_model(network(name), samples(name)[:8])


@cache
def converted(name: str, target: str) -> QuantizedModel:
    data = samples(name)
    calibration = calibrate(captured(name), [data], target=target)
    return convert(captured(name), calibration, sample=data[:16], recover=[])


@cache
def written(name: str, target: str) -> onnx.ModelProto:
    """The QDQ file; not to be changed."""
    return converted(name, target).to_onnx()


def step(model: QuantizedModel, outputs: np.ndarray) -> float:
    """What one code of the first output is worth: its scale, or 1/255 of its range in float."""
    output = next(
        d.output for d in reversed(model.plan.nodes) if d.execution is not Execution.SHAPE
    )
    known = model.parameters.get(output) if output is not None else None
    return float(known.scale) if known is not None else float(np.ptp(outputs)) / 255
