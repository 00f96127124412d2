"""TFLite files from quantized models: equal to the integer engine in every code."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qtool
from qtool.core.errors import ExportError, FileError, OptionError, VerificationError
from qtool.frontends.onnx.onnx_file import load_onnx
from qtool.plugins.tflite import litert, tflm
from qtool.plugins.tflite.file import load
from qtool.plugins.tflite.tflite_file import TfliteFile
from qtool.plugins.tflite.verification import compare_litert_codes
from tests.needs import needs_litert, needs_tflm
from tests.passes.differential import Function
from tests.planning.targets.converted import converted, images, samples


def kinds(path: Path) -> Counter[str]:
    return Counter(op.name for op in load(path).operators)


@pytest.mark.parametrize("name", ["residual_concat", "depthwise", "activations"])
def test_a_file_computes_the_plan(name: str, tmp_path: Path) -> None:
    """With LiteRT each code is compared with it, else with the engine alone."""
    path, model = tmp_path / "model.tflite", converted(name, "tflite")
    result = model.export(path)
    assert result.passed
    assert result.parity.steps.compared > 5
    if litert.version() is not None:
        assert result.exactness.exact
        assert result.exactness.float_steps == 0
    else:
        assert "LiteRT is not installed" in str(result)
    assert kinds(path)["TRANSPOSE"] == 0


def test_a_file_does_not_run_on_emulated_processors(tmp_path: Path) -> None:
    converted("residual_concat", "tflite").export(tmp_path / "model.tflite")
    with pytest.raises(FileError, match=r"on the device itself checks a \.tflite file"):
        qtool.verify_on(tmp_path / "model.tflite", "haswell")


@needs_litert
def test_a_wrong_scale_is_found(tmp_path: Path) -> None:
    """The engine computes a file whose bytes have changed since it was read."""
    path = tmp_path / "model.tflite"
    converted("residual_concat", "tflite").export(path, verify=False)
    file, batch = TfliteFile(path), [samples("residual_concat")[:8].numpy()]
    assert compare_litert_codes(file, [batch]).exact
    data = path.read_bytes()
    layers = (op for op in file.model.operators if op.name == "CONV_2D")
    made = (file.model.tensors[op.outputs[0]] for op in layers)
    scales = {t.name: t.quantization.scale for t in made if t.quantization is not None}
    name, scale = next((n, s) for n, s in scales.items() if data.count(s.tobytes()) == 1)
    path.write_bytes(data.replace(scale.tobytes(), (scale * np.float32(1.1)).tobytes()))
    result = compare_litert_codes(file, [batch])
    assert not result.passed
    assert result.first == name


LAYOUTS = {
    "nhwc": ((0, 2, 3, 1), "float", 0),
    "nchw": ((0, 1, 2, 3), "float", 1),
    "codes": ((0, 2, 3, 1), "int8", 0),
}


@pytest.mark.parametrize(("order", "interface", "moved"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_the_interface_is_what_was_asked_for(
    order: tuple[int, ...], interface: str, moved: int, tmp_path: Path
) -> None:
    path, layout = tmp_path / "model.tflite", "nhwc" if order[1] == 2 else "nchw"
    model = converted("residual_concat", "tflite")
    model.export(path, layout=layout, interface=interface)
    file = TfliteFile(path)
    assert file.inputs[0].order == order
    assert file.inputs[0].dtype == ("int8" if interface == "int8" else "float32")
    assert file.inputs[0].shape[0] == -1
    assert kinds(path)["TRANSPOSE"] == moved
    assert kinds(path)["QUANTIZE"] == (0 if interface == "int8" else 1)
    x = samples("residual_concat")[:4]
    program = file.program("tflite")
    (result,) = file.engine_codes(program, [x.numpy()])
    with torch.no_grad():
        expected = model(x).numpy()
    params = file.outputs[0].params
    real = result if params is None else params.dequantize(result)
    assert np.abs(real - expected).max() < 0.1 * np.abs(expected).max()


class Normalized(nn.Module):
    """Images of 0 to 255, normalized in the network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.register_buffer("mean", torch.tensor([0.5, 0.4, 0.3]).view(1, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.conv((x.float() / 255 - self.mean) / 0.25).mean((2, 3))
        return scores


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_the_interface_of_a_network_that_normalizes_its_images(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    images = torch.randint(0, 256, (32, 3, 8, 8)).to(dtype)
    model = qtool.quantize(Normalized().eval(), [images], target="tflite", accuracy="fast")
    for layout, order in (("nhwc", (0, 2, 3, 1)), ("nchw", (0, 1, 2, 3))):
        result = model.export(tmp_path / "model.tflite", layout=layout)
        assert TfliteFile(tmp_path / "model.tflite").inputs[0].order == order
        assert result.passed
        assert result.fidelity.worst > 30


def test_a_microcontroller_takes_bytes_and_normalizes_them_in_integers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    images = torch.randint(0, 256, (32, 3, 8, 8), dtype=torch.uint8)
    model = qtool.quantize(Normalized().eval(), [images], target="tflite-micro", accuracy="fast")
    path = tmp_path / "model.tflite"
    result = model.export(path)
    assert result.passed
    assert result.fidelity.worst > 30
    expected = Counter(QUANTIZE=1, DEPTHWISE_CONV_2D=1, CONV_2D=1, MEAN=1, RESHAPE=1)
    assert kinds(path) == expected
    assert TfliteFile(path).inputs[0].dtype == "uint8"
    assert qtool.verify(path, [images]).passed


def test_a_microcontroller_takes_the_mean_of_a_signal(tmp_path: Path) -> None:
    class Signal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.head(self.norm(self.conv(x)).relu().mean(-1))
            return scores

    data = [torch.randn(32, 3, 20, generator=torch.Generator().manual_seed(0))]
    model = qtool.quantize(Signal().eval(), data, target="tflite-micro", accuracy="fast")
    result = model.export(tmp_path / "model.tflite")
    assert result.passed
    assert "MEAN" in kinds(tmp_path / "model.tflite")


class Gated(nn.Module):
    """A normalisation of vectors, parts of the input, and gates of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.gate = nn.BatchNorm1d(8), nn.Linear(8, 16), nn.Linear(8, 16)
        self.last = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(torch.cat([x[:, :3] / 4 - 1, x[:, 3:].clamp(-2, 2)], 1))
        gate = F.hardsigmoid(self.gate(x))
        y = self.first(x)
        h = y.relu() * (1 - gate) - gate + y
        scores: torch.Tensor = self.last(h.square() * 0.5 + 1)
        return scores


def test_a_microcontroller_computes_with_numbers_in_integers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = qtool.quantize(
        Gated().eval(), [torch.randn(64, 8)], target="tflite-micro", accuracy="fast"
    )
    result = model.export(tmp_path / "model.tflite")
    assert result.passed
    assert result.coverage.share == 1
    assert not {"DIV", "SUB", "NEG", "DEQUANTIZE"} & set(kinds(tmp_path / "model.tflite"))


def test_other_names_of_layouts_and_targets_are_refused(tmp_path: Path) -> None:
    model = converted("residual_concat", "tflite")
    with pytest.raises(OptionError, match="unknown layout 'hwcn'"):
        model.export(tmp_path / "model.tflite", layout="hwcn")
    with pytest.raises(OptionError, match="unknown interface 'int4'"):
        model.export(tmp_path / "model.tflite", interface="int4")
    with pytest.raises(ExportError, match="does not support format 'tflite'"):
        converted("residual_concat", "openvino").export(tmp_path / "model.tflite")
    with pytest.raises(ExportError, match="holds its weights itself"):
        model.export(tmp_path / "model.tflite", external_data=True)
    assert not (tmp_path / "model.tflite").exists()


def test_a_flattened_image_moves_the_columns_of_the_next_layer(tmp_path: Path) -> None:
    """No TRANSPOSE and no GATHER: [N, H, W, C] is flattened as it lies."""
    network = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10))
    path = tmp_path / "model.tflite"
    result = qtool.quantize(network.eval(), [images(16)], target="tflite", accuracy="fast").export(
        path
    )
    assert result.passed
    assert kinds(path) == Counter(QUANTIZE=1, CONV_2D=1, RESHAPE=1, FULLY_CONNECTED=1, DEQUANTIZE=1)


@needs_tflm
def test_a_microcontroller_computes_the_same_codes(tmp_path: Path) -> None:
    path, model = tmp_path / "model.tflite", converted("digits", "tflite-micro")
    result = model.export(path)
    assert result is not None
    assert "identical to the integer engine" in str(result)
    assert "arena" in str(result)
    assert tflm.arena(path).total > 10_000


@pytest.mark.parametrize("interface", ["float", "int8"])
def test_a_microcontroller_computes_a_small_last_layer_once(interface: str, tmp_path: Path) -> None:
    """The parts of its result would be added in float."""
    path = tmp_path / "model.tflite"
    result = converted("digits", "tflite-micro").export(path, interface=interface)
    assert result.passed
    assert kinds(path)["DEQUANTIZE"] == (interface == "float")


def test_microcontrollers_take_no_float(tmp_path: Path) -> None:
    network = Function(lambda x, a, b: b(torch.exp(a(x))), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1))
    model = qtool.quantize(network.eval(), [images(8)], target="tflite-micro", accuracy="fast")
    with pytest.raises(ExportError, match=r"'exp' \(EXP\) stays in float"):
        model.export(tmp_path / "model.tflite")


@needs_litert
def test_litert_refuses_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    converted("residual_concat", "tflite").export(path, verify=False)
    image = np.zeros((1, 6, 6, 4), np.float32)
    with pytest.raises(VerificationError, match="takes 1 inputs, not 2"):
        litert.run_reference(path, [image] * 2)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(VerificationError, match="LiteRT"):
        litert.run_reference(path, [image])


class Kernels(nn.Module):
    """One call of every operator that has a kernel on codes, with convolutions between them."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(4, 4, 1) for _ in range(13)])
        self.grouped = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1)
        self.slopes = nn.PReLU(4)
        self.head = nn.Linear(4 * 36, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        c = iter(self.convs)
        y = F.hardswish(next(c)(x))
        y = F.gelu(next(c)(F.silu(next(c)(y))))
        y = self.slopes(next(c)(y)) + F.leaky_relu(next(c)(x), 0.2)
        y = next(c)(torch.sigmoid(next(c)(y))) * torch.tanh(next(c)(y))
        y = self.up(F.relu(self.grouped(y)))
        y = F.max_pool2d(next(c)(y), 3, 2, 1)
        y = F.avg_pool2d(next(c)(F.interpolate(y, scale_factor=2)), 3, 1, 1)
        y = next(c)(F.pad(y[:, :, 1:], (0, 0, 1, 0)))
        rows = next(c)(y).flatten(2)
        attended = torch.softmax(rows @ rows.transpose(1, 2), -1) @ rows
        y = torch.cat([next(c)(attended.reshape(y.shape)), y], 1)
        return self.head(F.hardtanh(y[:, :4] + y[:, 4:], 0, 4).flatten(1))


class Floats(nn.Module):
    """Parts in float between layers: norms, attention with masks, lookups, decompositions."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.first = nn.Embedding(20, 8), nn.Linear(8, 8)
        self.norms = nn.ModuleList([nn.LayerNorm(8), nn.GroupNorm(2, 6), nn.RMSNorm(8)])
        self.last = nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        samples = torch.arange(ids.shape[0])[:, None, None, None]
        columns = torch.arange(6)[None, None, None, :]
        allowed = mask[samples, columns] > 0
        x = self.norms[0](self.first(self.table(ids)))
        heads = x.unflatten(2, (2, 4)).transpose(1, 2)
        x = x + F.scaled_dot_product_attention(heads, heads, heads, allowed).transpose(
            1, 2
        ).flatten(2)
        heads = heads * 0.5
        x = x + F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)[:, 0].repeat(
            1, 1, 2
        )
        x = self.norms[2](self.norms[1](x)) + F.softplus(x) - F.elu(x) * F.mish(x).clamp(-1, 1)
        kept = ids > 4
        mean = (x * kept[..., None]).sum(1) / kept.sum(1, keepdim=True).clamp(min=1)
        return self.last(x + mean[:, None])


@needs_litert
def test_every_kernel_on_codes_is_exact(tmp_path: Path) -> None:
    path, model = (
        tmp_path / "model.tflite",
        qtool.quantize(Kernels().eval(), [images(16)], target="tflite", recover=[]),
    )
    result = model.export(path)
    assert result.passed
    assert result.exactness.exact
    kernels = "HARD_SWISH GELU PRELU LEAKY_RELU LOGISTIC TANH TRANSPOSE_CONV SOFTMAX BATCH_MATMUL"
    integer = {r.op for r in result.coverage.rows if r.integer}
    assert set(kernels.split()) <= integer
    assert result.coverage.share == 1.0


@needs_litert
def test_float_parts_are_written_between_codes(tmp_path: Path) -> None:
    ids = torch.randint(0, 20, (16, 6), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(6)[None] < torch.arange(16)[:, None] % 6 + 1).long()
    model = qtool.quantize(Floats().eval(), [(ids, mask)], target="tflite", accuracy="fast")
    result = model.export(tmp_path / "model.tflite")
    assert result.passed
    assert result.exactness.exact
    assert result.exactness.float_steps > 20


class Codebook(nn.Module):
    """Nearest vectors, in float, before a layer whose kernel fixes the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Conv2d(4, 8, 3, 3, 1), nn.ConvTranspose2d(8, 4, 3, 3)
        self.table = nn.Embedding(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.encoder(x).permute(0, 2, 3, 1)[..., None, :]
        nearest = (rows - self.table.weight).square().sum(-1).argmin(-1)
        return self.decoder(self.table(nearest).permute(0, 3, 1, 2))


@needs_litert
def test_float_parts_of_a_file_of_one_sample_are_compared_on_one(tmp_path: Path) -> None:
    model = qtool.quantize(Codebook().eval(), [images(16)], target="tflite", accuracy="fast")
    result = model.export(tmp_path / "model.tflite")
    assert result.passed
    assert result.exactness.exact


class Filled(nn.Module):
    """What sentence encoders do: rows of types by zeros and ones, and a division by a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.types = nn.Embedding(20, 8), nn.Embedding(2, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.types(torch.zeros_like(ids)) + self.types(torch.ones_like(ids))
        scores: torch.Tensor = self.last(self.words(ids) + rows)
        return scores / scores.norm(dim=1, keepdim=True).clamp(min=1e-6)


@needs_litert
def test_the_ends_of_a_sentence_encoder_can_be_written(tmp_path: Path) -> None:
    ids = torch.randint(0, 20, (16, 6), generator=torch.Generator().manual_seed(0))
    path = tmp_path / "model.tflite"
    result = qtool.quantize(Filled().eval(), [ids], target="tflite", accuracy="fast").export(path)
    assert result.passed
    assert kinds(path)["ZEROS_LIKE"] == 2


class Normed(nn.Module):
    """A norm that torch makes of an operator with several results."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(5, 2), nn.InstanceNorm1d(2, affine=True)
        self.last = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.norm(self.first(x).transpose(1, 2))
        scores: torch.Tensor = self.last(normed)
        return scores


def test_operators_of_several_results_are_refused_in_a_sentence(tmp_path: Path) -> None:
    x = torch.randn(16, 6, 5, generator=torch.Generator().manual_seed(1))
    model = qtool.quantize(Normed().eval(), [x], target="tflite", accuracy="fast")
    with pytest.raises(ExportError, match="has no TFLite operator that qtool writes"):
        model.export(tmp_path / "model.tflite")


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(5, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.cell(x)[0])
        return scores


class Sorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(self.first(x).sort(-1)[0])
        return scores


def kept_from_a_file(folder: Path) -> nn.Module:
    model = onnx.parser.parse_model(
        """<ir_version: 11, opset_import: ["" : 23]>
        g (float[N,6,5] x) => (float[N,6,3] y)
        <float[5] g = {1, 2, 1, 2, 1}, float[5,3] m = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6}>
        { norm = RMSNormalization (x, g) y = MatMul (norm, m) }"""
    )
    onnx.save(model, folder / "kept.onnx")
    return load_onnx(folder / "kept.onnx")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda _: Recurrent(), "cell: lstm has no TFLite.*give a model of one step"),
        (lambda _: Sorted(), "sort: aten::sort has no TFLite"),
        (kept_from_a_file, "norm: the ONNX operator RMSNormalization, in a form .* has no TFLite"),
    ],
    ids=["lstm", "sort", "kept"],
)
def test_operators_without_a_tflite_form_are_named_before_the_calibration(
    tmp_path: Path, make: Callable[[Path], nn.Module], said: str
) -> None:
    def data() -> Iterator[torch.Tensor]:
        yield torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(1))
        raise AssertionError("the calibration has begun")

    model = make(tmp_path).eval()
    with pytest.raises(ExportError, match=said):
        qtool.quantize(model, data(), target="tflite", format="tflite", accuracy="fast")
    late = qtool.quantize(
        model, list(itertools.islice(data(), 1)), target="tflite", accuracy="fast"
    )
    with pytest.raises(ExportError, match=said):
        late.export(tmp_path / "model.tflite")


class Pairs(nn.Module):
    """A sum over pairs of samples: two sizes follow the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(16, 4)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(a + b)
        return scores


def test_a_product_of_batches_is_refused_in_a_sentence(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    batch = torch.randn(16, 3, 1, 1, generator=generator), torch.randn(16, 16, generator=generator)
    model = qtool.quantize(Pairs().eval(), [batch], target="tflite", accuracy="fast")
    with pytest.raises(ExportError, match="several sizes"):
        model.export(tmp_path / "model.tflite")


def test_a_file_without_integers_is_refused(tmp_path: Path) -> None:
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    model = qtool.quantize(
        nn.Linear(8, 4).eval(), [x], target="tflite", mode="weight-only", accuracy="fast"
    )
    with pytest.raises(ExportError, match=r"would hold no integers.*use mode='static'"):
        model.export(tmp_path / "model.tflite")
    assert list(tmp_path.iterdir()) == []


# --- what the model says of its file -----------------------------------------------------------


@needs_litert
@pytest.mark.parametrize(
    "options", [{}, {"layout": "nchw"}, {"interface": "int8"}], ids=["plain", "nchw", "int8"]
)
def test_the_model_verifies_its_file(options: dict[str, str], tmp_path: Path) -> None:
    model, path = converted("residual_concat", "tflite"), tmp_path / "model.tflite"
    exported = model.export(path, **options)
    again = model.verify(path)
    assert exported is not None
    assert again.passed
    assert again.exactness == exported.exactness
    assert again.parity == exported.parity
    checked = model.check_file(path)
    assert (checked.parity, checked.exactness) == (exported.parity, exported.exactness)


@needs_litert
def test_coverage_and_verification_are_those_of_the_last_export(tmp_path: Path) -> None:
    x = images(4)
    net = nn.Sequential(nn.Conv2d(4, 8, 1), nn.ReLU()).eval()
    model = qtool.quantize(net, [x], **TFLITE)
    fresh = model.verify()  # nothing was exported: the target's runtime decides
    assert fresh.coverage.runtime.startswith("LiteRT")
    assert fresh.passed
    assert "as planned" in str(model.coverage)
    exported = model.export(tmp_path / "model.tflite")
    assert model.coverage is exported.coverage
    on_onnx = model.export(tmp_path / "model.onnx")
    assert model.coverage is on_onnx.coverage
    assert model.verify().coverage.runtime == on_onnx.coverage.runtime
    assert model.verify(tmp_path / "model.tflite").coverage == exported.coverage


@needs_litert
def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    converted("residual_concat", "tflite").export(tmp_path / "other.tflite")
    with pytest.raises(VerificationError, match=r"other\.tflite is not a file of this model"):
        converted("depthwise", "tflite").verify(tmp_path / "other.tflite")


@needs_litert
def test_a_file_of_other_weights_does_not_pass(tmp_path: Path) -> None:
    first, second = (
        qtool.quantize(nn.Sequential(nn.Linear(8, 8)).eval(), [torch.randn(16, 8)], **TFLITE)
        for _ in range(2)
    )
    first.export(tmp_path / "model.tflite")
    assert not second.verify(tmp_path / "model.tflite").passed


TFLITE = {"target": "tflite", "accuracy": "fast"}


@needs_litert
@pytest.mark.parametrize("name", ["residual_concat", "depthwise"])
def test_the_integer_program_of_an_exported_file_gives_its_codes(name: str, tmp_path: Path) -> None:
    """Inputs and outputs in the layout of the network; LiteRT is the oracle."""
    model, x = converted(name, "tflite"), samples(name)[:8]
    path = tmp_path / "model.tflite"
    model.export(path, interface="int8", layout="nchw")
    program, file = model.integer(), TfliteFile(path)
    (codes,) = program(x)
    expected = litert.run_reference(path, file.arrays([x.numpy()]))
    real = (
        codes if codes.is_floating_point() else program.params[program.outputs[0]].dequantize(codes)
    )
    (port,) = file.outputs
    apart = np.abs(port.params.quantize(real.numpy()).astype(int) - expected[0])
    assert apart.max() <= (0 if name == "depthwise" else 1)
