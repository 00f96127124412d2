"""The target for WebGPU: weights alone, in the operators that its provider runs."""

from pathlib import Path

import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.core.errors import PlanError
from qtool.planning.targets.onnxruntime_webgpu import ONNXRUNTIME_WEBGPU
from tests.plugins.emulators.webgpu_networks import needs_webgpu

TARGET = "onnxruntime-webgpu"


class Net(nn.Module):
    """A table, layers with and without a bias, and a convolution."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.table = nn.Embedding(2000, width)
        self.conv = nn.Conv1d(width, 32, 3, padding=1)
        self.norm = nn.LayerNorm(32)
        self.hidden, self.head = nn.Linear(32, 96), nn.Linear(96, 20, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.conv(self.table(ids).transpose(1, 2)).transpose(1, 2)
        return self.head(F.gelu(self.hidden(self.norm(x))))


@pytest.fixture(scope="module")
def data() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 2000, (8, 12), generator=generator) for _ in range(4)]


def net(width: int = 64) -> Net:
    torch.manual_seed(0)
    return Net(width).eval()


@pytest.fixture(scope="module")
def files(data: list[torch.Tensor], tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("files")
    files = {}
    for bits, mode in ((8, "weight-only"), (4, "weight-only-int4")):
        files[bits] = folder / f"{bits}.onnx"
        qtool.quantize(net(), data, target=TARGET, mode=mode, accuracy="fast").export(files[bits])
    return files


@pytest.mark.parametrize("bits", [8, 4])
def test_weights_are_in_operators_of_the_provider(bits: int, files: dict[int, Path]) -> None:
    nodes = onnx.load(files[bits]).graph.node
    products = [n for n in nodes if n.op_type == "MatMulNBits"]
    widths = [{a.name: a.i for a in n.attribute} for n in products]
    assert [(w["bits"], w["block_size"]) for w in widths] == [(bits, 32)] * 2
    assert sum(n.op_type == "GatherBlockQuantized" for n in nodes) == 1
    assert not [n for n in nodes if "Quantize" in n.op_type and n.domain == ""]


@needs_webgpu
@pytest.mark.parametrize("bits", [8, 4])
def test_no_activation_is_on_the_cpu_provider(
    bits: int, files: dict[int, Path], data: list[torch.Tensor]
) -> None:
    compared = qtool.verify_on_webgpu(files[bits], data[:1])
    assert compared.placement.fallbacks == ()
    assert compared.outputs[0].sqnr_db is not None
    assert compared.outputs[0].sqnr_db >= 120


class Shared(nn.Module):
    """Two lookups in the weight of a layer, as in an encoder with a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Embedding(2000, 64), nn.Embedding(2000, 64)
        self.head = nn.Linear(64, 2000, bias=False)
        self.decoder.weight = self.head.weight = self.encoder.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.encoder(ids)) + self.decoder(ids))


@pytest.mark.parametrize("target", [TARGET, "onnxruntime"])
def test_two_lookups_read_the_codes_of_a_layer(
    target: str, data: list[torch.Tensor], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    quantized = qtool.quantize(
        Shared().eval(), data, target=target, mode="weight-only-int4", accuracy="fast"
    )
    quantized.export(tmp_path / "shared.onnx")
    nodes = onnx.load(tmp_path / "shared.onnx").graph.node
    read = {n.input[0] for n in nodes if n.op_type == "GatherBlockQuantized"}
    assert sum(n.op_type == "GatherBlockQuantized" for n in nodes) == 2
    assert len(read) == 1


def test_an_addition_before_a_norm_stays_an_addition(
    data: list[torch.Tensor], tmp_path: Path
) -> None:
    """The provider has no Sum, which files for the CPU provider have there."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.layer(x) + x)

    batches = [torch.randn(8, 12, 64, generator=torch.Generator().manual_seed(0))]
    quantized = qtool.quantize(
        Residual().eval(), batches, target=TARGET, mode="weight-only", accuracy="fast"
    )
    quantized.export(tmp_path / "residual.onnx")
    assert "Sum" not in {n.op_type for n in onnx.load(tmp_path / "residual.onnx").graph.node}


def test_rows_that_are_no_whole_blocks_stay_in_float(data: list[torch.Tensor]) -> None:
    plan = qtool.capture_model(net(40), data[0]).plan(TARGET, recipe={"mode": "weight-only"})
    (table,) = (d for d in plan.nodes if d.node == "table")
    assert "its rows of 40 are not a multiple of blocks of 32" in str(table)


def test_experts_stay_in_float() -> None:
    """The provider's QMoE does not run them (docs/upstream.md)."""
    assert "experts" not in ONNXRUNTIME_WEBGPU.kernels
    assert ONNXRUNTIME_WEBGPU.no_kernel["experts"].startswith("QMoE refuses the weights")


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_a_mode_that_rounds_activations_is_refused(mode: str, data: list[torch.Tensor]) -> None:
    with pytest.raises(PlanError, match="weight-only"):
        qtool.capture_model(net(), data[0]).plan(TARGET, recipe={"mode": mode})
