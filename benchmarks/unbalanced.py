"""SQNR of networks whose channels are rescaled by factors of hundreds.

    python benchmarks/unbalanced.py FOLDER [--networks resnet20,kws] [--forms module,onnx]

Each network of the folder (see networks.py) is rescaled: where a convolution or linear layer
follows a BatchNorm, through a ReLU or not, without other readers between, every channel of the norm
is multiplied by exp(U(-2.5, 2.5)) and the weights that read it are divided by it. Through ReLU6
this goes as far as the bound allows on all data. The float network stays what it was to 1e-4; it is
converted with default settings, from a module and from an ONNX file, and both files run in ONNX
Runtime on the evaluation data.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import networks
import torch
from torch import fx, nn
from torch.nn import functional as F

import qtool
from qtool.frontends.onnx import load_onnx

NETWORKS = ("resnet20", "resnet56", "mobilenetv2_w05", "densenet40", "kws")
SPREAD = 2.5  # of the factors' logarithms, to either side
SAME = 1e-4  # of the outputs' range: how far the float networks may differ
BELOW = 1.02  # how far under its bound the largest value of a rescaled channel stays

CLAMPS = {nn.ReLU: None, nn.ReLU6: 6.0, F.relu: None, F.relu6: 6.0}
BETWEEN = (nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, F.avg_pool2d, F.adaptive_avg_pool2d)

Pair = tuple[str, str, float | None]
"""The names of a norm and of the layer that reads it, and the upper bound between them."""


def unbalanced(net: nn.Module, data: Sequence[torch.Tensor], seed: int = 0) -> nn.Module:
    """A twin of a network with rescaled channels.

    Args:
        data: batches on which no bound may be reached that was not before.
    """
    twin, generator = copy.deepcopy(net), torch.Generator().manual_seed(seed)
    pairs = list(_pairs(net))
    largest = _largest(net, [norm for norm, _, bound in pairs if bound is not None], data)
    for norm, layer, bound in pairs:
        written, read = twin.get_submodule(norm), twin.get_submodule(layer)
        factors = torch.empty(len(written.weight)).uniform_(-SPREAD, SPREAD, generator=generator)
        factors = factors.exp()
        if bound is not None:
            room = bound / (largest[norm].clamp(min=1e-9) * BELOW)
            factors = torch.where(largest[norm] < bound / BELOW, torch.minimum(factors, room), 1.0)
        with torch.no_grad():
            written.weight *= factors
            written.bias *= factors
            channels = (-1, 1) if getattr(read, "groups", 1) > 1 else (1, -1)  # groups: depthwise
            read.weight /= factors.reshape(*channels, *[1] * (read.weight.dim() - 2))
    return twin


def twin_of(network: networks.Network) -> nn.Module:
    """A twin of a network of the folder; in transformers it is the heads that are rescaled."""
    if network.name == "minilm":
        return unbalanced_heads(network.model)
    return unbalanced(network.model, [*network.calibration, *network.data]).eval()


def unbalanced_heads(net: nn.Module, seed: int = 0) -> nn.Module:
    """A twin of a BERT whose channels inside of the heads are rescaled: what values are multiplied
    with the layer behind is divided by, and queries and keys make up for each other."""
    twin, generator = copy.deepcopy(net), torch.Generator().manual_seed(seed)
    for name, layer in twin.named_modules():
        if not name.endswith("attention"):
            continue
        own, (size, _) = layer.self, layer.self.value.weight.shape
        values, keys = torch.empty(2, size).uniform_(-SPREAD, SPREAD, generator=generator).exp()
        with torch.no_grad():
            for written, factors in ((own.value, values), (own.query, keys), (own.key, 1 / keys)):
                written.weight *= factors[:, None]
                written.bias *= factors
            layer.output.dense.weight /= values
    return twin.eval()


def _pairs(net: nn.Module) -> Iterator[Pair]:
    traced = fx.symbolic_trace(net)
    modules = dict(traced.named_modules())

    def kind(node: fx.Node) -> Any:
        return type(modules[node.target]) if node.op == "call_module" else node.target

    for norm in traced.graph.nodes:
        if kind(norm) is not nn.BatchNorm2d or len(norm.users) != 1:
            continue
        (reader,) = norm.users
        bound = CLAMPS.get(kind(reader))
        if kind(reader) in CLAMPS and len(reader.users) == 1:
            (reader,) = reader.users
        while (kind(reader) in BETWEEN or reader.target == "flatten") and len(reader.users) == 1:
            (reader,) = reader.users
        if kind(reader) in (nn.Conv2d, nn.Linear):
            yield str(norm.target), str(reader.target), bound


def _largest(
    net: nn.Module, norms: Sequence[str], data: Sequence[torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The largest value of each channel behind norms."""
    found: dict[str, torch.Tensor] = {}
    handles = []
    for name in norms:

        def see(module: nn.Module, args: Any, result: torch.Tensor, name: str = name) -> None:
            high = result.amax((0, 2, 3))
            found[name] = torch.maximum(found.get(name, high), high)

        handles.append(net.get_submodule(name).register_forward_hook(see))
    with torch.inference_mode():
        for batch in data:
            net(batch)
    for handle in handles:
        handle.remove()
    return {name: high.clone() for name, high in found.items()}


def _difference(net: nn.Module, twin: nn.Module, data: Sequence[torch.Tensor]) -> float:
    """The largest difference of outputs over their range."""
    with torch.inference_mode():
        pairs = [(net(x), twin(x)) for x in data]
    span = max(float(a.max() - a.min()) for a, _ in pairs)
    return max(float((a - b).abs().max()) for a, b in pairs) / span


def _sqnr(model: nn.Module, network: networks.Network, folder: Path) -> tuple[float, float]:
    """SQNR in dB of the exported file on the evaluation data; share of MACs in integers."""
    captured = qtool.capture_model(model, network.calibration[0], network.dynamic)
    file = folder / "int8.onnx"
    checked = qtool.quantize(captured, network.calibration, accuracy="balanced").export(file)
    found = qtool.evaluate(file, captured, network.data, network.labels, seconds=0.1)
    return found.sqnr_db, checked.coverage.share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--forms", default="module,onnx")
    options = parser.parse_args()
    print(f"{'network':>16}  {'form':>8}  {'float differs':>13}  {'SQNR dB':>7}  integer MACs")
    for name in options.networks.split(","):
        network = networks.load(options.folder, name)
        seen = [*network.calibration, *network.data]
        twin = unbalanced(network.model, seen).eval()
        differs = _difference(network.model, twin, network.data)
        if differs > SAME:
            raise SystemExit(f"{name}: the twin's outputs differ by {differs:.1e} of their range")
        with tempfile.TemporaryDirectory() as made:
            folder, file = Path(made), Path(made) / "float.onnx"
            captured = qtool.capture_model(twin, network.calibration[0], network.dynamic)
            captured.export_float(file)
            models = {"balanced": network.model, "module": twin, "onnx": load_onnx(file)}
            for form in ("balanced", *options.forms.split(",")):
                sqnr, share = _sqnr(models[form], network, folder)
                off = f"{differs:.1e}" if form != "balanced" else ""
                print(f"{name:>16}  {form:>8}  {off:>13}  {sqnr:7.2f}  {share:.2%}", flush=True)


if __name__ == "__main__":
    main()
