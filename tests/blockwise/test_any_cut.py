"""Where a conversion by blocks is cut only schedules: the bytes of the file are the same."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

import qtool
from examples.keywords.network import keyword_net
from examples.keywords.sounds import calibration
from qtool.blockwise import quantize
from qtool.core.graph import edit
from qtool.frontends.huggingface import meta_init
from qtool.planning.speed import slow_layers

WIDTH = 32


@pytest.fixture(autouse=True, scope="module")
def large() -> Iterator[None]:
    """What is small here counts as large, and no layer is split."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meta_init, "MIN_META_ELEMENTS", 500)
        patch.setattr(edit, "SMALL", 10)
        patch.setattr(quantize, "split", lambda *_: ({}, set()))
        yield


def conv(inputs: int, outputs: int, kernel: int = 3, **options: Any) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False, **options)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU())


class Convolutional(nn.Module):
    """BatchNorms to fold and one that is not, sums, and a concat with what it joins."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depthwise = conv(3, 16), conv(16, 16, groups=16)
        self.down, self.inner = conv(16, WIDTH, 1, stride=2), conv(WIDTH, WIDTH)
        self.free, self.branch = nn.BatchNorm2d(WIDTH), conv(WIDTH, WIDTH)
        self.joined, self.head = conv(2 * WIDTH, WIDTH, 1), nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.down(self.depthwise(self.stem(x)))
        x = torch.relu(x + self.inner(x))
        x = self.joined(torch.cat([x, self.branch(torch.relu(self.free(x)))], 1))
        return self.head(x.mean((2, 3)))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.packed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.packed(self.before(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.behind(x))))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(100, WIDTH), nn.Sequential(Layer(), Layer())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(self.words(ids)))[:, 0])


def data_of(net: type[nn.Module]) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    if net is Convolutional:
        return [torch.randn(16, 3, 12, 12, generator=random) for _ in range(3)]
    return [torch.randint(0, 100, (16, 12), generator=random) for _ in range(3)]


def filled(net: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    model = net().eval()
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.running_mean.normal_(0, 0.3)
        norm.running_var.uniform_(0.5, 2)
    return model


def content(path: Path) -> dict[str, Any]:
    """The whole file, with its weights in it."""
    model = onnx.load(path)
    properties = {p.key: p.value for p in model.metadata_props}
    # of the model in memory the weights are read, too
    kept = {k: v for k, v in properties.items() if k not in ("qtool_origin", "qtool_self_test")}
    return {"graph": model.graph.SerializeToString(), **kept}


def by_blocks(folder: Path, path: Path, block: int, data: Any, **how: Any) -> tuple[int, bytes]:
    """Return the number of blocks, and the bytes of the file and its weights."""
    path.parent.mkdir(exist_ok=True)
    found = qtool.quantize_by_blocks(folder, data, path, block=block, **how)
    return len(found.blocks), b"".join(f.read_bytes() for f in sorted(path.parent.iterdir()))


CUTS: dict[type[nn.Module], dict[int, int]] = {
    Convolutional: {1 << 30: 1, 20_000: 5},
    Encoder: {1 << 30: 1, 34_000: 5},
}
"""Network -> size of a block -> number of blocks."""


@pytest.mark.parametrize(
    ("net", "mode"),
    [(Convolutional, "static"), (Encoder, "static"), (Encoder, "weight-only-int4")],
)
def test_a_file_has_the_same_bytes_for_any_cut(
    net: type[nn.Module], mode: str, tmp_path: Path
) -> None:
    """Rounded by gptq; without that they are also those of the model in memory."""
    save_file(filled(net).state_dict(), tmp_path / "model.safetensors")
    files, counts = set[bytes](), list[int]()
    how: dict[str, Any] = {"mode": mode, "memory": 0, "data": data_of(net)}
    for block in CUTS[net]:
        with qtool.init_empty_weights():
            model = net()
        path = tmp_path / str(block) / "net.onnx"
        count, written = by_blocks(tmp_path, path, block, model=model, recover=["gptq"], **how)
        counts.append(count)
        files.add(written)
    assert counts == list(CUTS[net].values())
    assert len(files) == 1
    path, one = tmp_path / "nearest" / "net.onnx", tmp_path / "one.onnx"
    by_blocks(tmp_path, path, min(CUTS[net]), model=model, recover=[], **how)
    in_memory = qtool.quantize(filled(net), data_of(net), mode=mode, recover=[])
    in_memory.export(one, verify=False, external_data=True)
    assert content(path) == content(one)


class Sides(nn.Module):
    """A sum of a deep side and a shallow one, which is computed last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.shallow = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        deep = self.second(torch.relu(self.first(x)))
        return torch.relu(deep + self.shallow(x))


def test_a_layer_waits_for_what_its_result_is_added_to(tmp_path: Path) -> None:
    save_file(filled(Sides).state_dict(), tmp_path / "model.safetensors")
    data = [torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(5))]
    how: dict[str, Any] = {"mode": "weight-only-int4", "memory": 0, "recover": ["gptq"]}
    written = [
        by_blocks(
            tmp_path, tmp_path / str(block) / "net.onnx", block, data, model=filled(Sides), **how
        )
        for block in (1 << 30, 5000)
    ]
    assert [count for count, _ in written] == [1, 3]
    assert written[0][1] == written[1][1]


def check_as_in_memory(
    network: nn.Module, batch: torch.Tensor, block: int, folder: Path, **how: Any
) -> qtool.QuantizedModel:
    """Check that blocks give the file of the model in memory, and return that model."""
    save_file(network.state_dict(), folder / "model.safetensors")
    path, one = folder / "blocks" / "net.onnx", folder / "one.onnx"
    count, _ = by_blocks(folder, path, block, [batch], model=network, memory=0, **how)
    assert count > 1
    in_memory = qtool.quantize(network, [batch], **how)
    in_memory.export(one, verify=False, external_data=True)
    assert content(path) == content(one)
    return in_memory


def test_layers_that_are_faster_in_float_are_those_of_the_model_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_layers, "LEAST_TIME", 0)
    network, (batch, *_) = keyword_net(), calibration()
    made = check_as_in_memory(network, batch, 6_000, tmp_path, mode="static", recover=[])
    assert any(d.reason.startswith(slow_layers.REASON) for d in made.plan.nodes)


def test_channels_of_zeros_are_those_of_the_model_in_memory(tmp_path: Path) -> None:
    """A block whose cut is inside a set of channels has none; the file has them all."""
    parts: list[nn.Module] = [nn.Conv2d(3, 24, 1)]
    for _ in range(3):
        parts += [nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.ReLU(), nn.Conv2d(24, 24, 1)]
    batch = torch.rand(32, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    how: dict[str, Any] = {"recover": [], "recipe": {"slow_layers": "integer"}}
    made = check_as_in_memory(nn.Sequential(*parts).eval(), batch, 4_000, tmp_path, **how)
    assert [d.channels for d in made.plan.nodes if d.channels] == [32, 32, 32]
