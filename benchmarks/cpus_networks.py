"""Networks and samples of benchmarks/cpus.py: trained ones, and random ones of many kinds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks" / "unseen")]

from measure import estimate_norms, wake  # noqa: E402 - of benchmarks/unseen
from own_images import OWN_IMAGES  # noqa: E402
from own_others import OWN_OTHERS  # noqa: E402
from own_sequences import OWN_SEQUENCES  # noqa: E402

from benchmarks import networks as trained  # noqa: E402
from benchmarks.zoo.networks import NETWORKS as ZOO  # noqa: E402
from benchmarks.zoo.networks import smooth  # noqa: E402

__all__ = ["NETWORKS", "Case", "Made", "take"]

CALIBRATION, BATCH, SIZE = 6, 16, 64
Batch = Any


@dataclass(frozen=True)
class Case:
    """A network with its data.

    Attributes:
        model: the float module.
        calibration: batches to convert it with.
        data: batches to run.
        dynamic: input -> {dimension: name}, for `qtool.capture_model`.
    """

    model: nn.Module
    calibration: Sequence[Batch]
    data: Sequence[Batch]
    dynamic: Mapping[str, Mapping[int, str]] | None = None


@dataclass(frozen=True)
class Made:
    """How a case is made, from the number of samples and the folder of trained networks.

    Attributes:
        group: of the table.
        make: makes it.
    """

    group: str
    make: Callable[[int, Path | None], Case]


def take(batches: Iterable[Batch], samples: int) -> list[Batch]:
    """Return the first samples of batches, the last batch cut."""
    found, left = [], samples
    for batch in batches:
        if left <= 0:
            break
        if isinstance(batch, Mapping):
            count = len(next(iter(batch.values())))
            found.append({k: v[:left] for k, v in batch.items()})
        else:
            count = len(batch)
            found.append(batch[:left])
        left -= count
    return found


def _trained(name: str, samples: int, folder: Path | None) -> Case:
    if folder is None:
        raise SystemExit(f"{name} is a trained network: name their folder with --trained")
    network = trained.load(folder, name)
    data = take(network.data, samples)
    return Case(network.model, network.calibration, data, network.dynamic)


def _digits(samples: int, folder: Path | None) -> Case:
    from examples.digits.network import digits_net

    model = digits_net()
    model.load_state_dict(load_file(ROOT / "examples/digits/weights.safetensors"))
    with np.load(ROOT / "calib_data/digits/images.npz") as file:
        calibration = torch.from_numpy(file["x"]).split(32)
    with np.load(ROOT / "examples/digits/eval.npz") as file:
        data = torch.from_numpy(file["x"]).split(32)
    return Case(model.eval(), calibration, take(data, samples))


def _detector(samples: int, folder: Path | None) -> Case:
    from examples.detector.network import detector
    from examples.detector.scenes import calibration, evaluation

    model = detector()
    model.load_state_dict(load_file(ROOT / "examples/detector/weights.safetensors"))
    return Case(model.eval(), calibration(), take(evaluation(), samples))


def _sentences(samples: int, folder: Path | None) -> Case:
    from qtool.frontends.data.load_data import load_data
    from qtool.frontends.load_model import load_model

    place = ROOT / "examples/sentence_encoder"
    model = load_model(str(place / "model"))
    calibration, data = (
        load_data(str(place / f"{part}.txt"), 16, model=model, folder=place / "model")
        for part in ("calibration", "evaluation")
    )
    return Case(model, list(calibration), take(data, samples), calibration.dynamic)


def _random(
    build: Callable[[], nn.Module],
    inputs: Callable[[int, torch.Generator], dict[str, torch.Tensor]],
    dynamic: Mapping[str, Mapping[int, str]] | None,
    samples: int,
    folder: Path | None,
) -> Case:
    """Random weights; BatchNorms have the statistics of their inputs."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    calibration = [inputs(BATCH, generator) for _ in range(CALIBRATION)]
    data = [inputs(BATCH, generator) for _ in range(-(-samples // BATCH))]
    model = build().eval()
    if isinstance(model, nn.Sequential):  # whose argument is called so
        calibration, data = ([_renamed(b) for b in each] for each in (calibration, data))
    wake(model)
    estimate_norms(model, calibration)
    return Case(model, calibration, take(data, samples), dynamic or None)


def _renamed(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    (only,) = batch.values()
    return {"input": only}


def _unseen(name: str) -> Made:
    network = (OWN_IMAGES | OWN_SEQUENCES | OWN_OTHERS)[name]
    make = partial(_random, network.build, network.inputs, network.dynamic)
    return Made("random weights", make)


def _images(name: str, argument: str) -> Made:
    """A network of the zoo on small images, so that emulation takes no hours."""

    def inputs(count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
        return {argument: smooth((count, 3, SIZE, SIZE), generator)}

    return Made("random weights", partial(_random, ZOO[name].build, inputs, None))


def _tokens(name: str) -> Made:
    network = ZOO[name]
    make = partial(_random, network.build, network.inputs, network.dynamic)
    return Made("random weights", make)


NETWORKS: Mapping[str, Made] = {
    **{name: Made("trained", partial(_trained, name)) for name in trained.NETWORKS},
    "digits": Made("trained", _digits),
    "detector": Made("trained", _detector),
    "sentence_encoder": Made("trained", _sentences),
    **{
        name: _unseen(name)
        for name in ("unettranspose", "senet", "fpn", "crnn", "tcn", "multitask")
    },
    **{name: _images(name, "x") for name in ("resnet18", "mobilenet_v2", "shufflenet_v2_x1_0")},
    "hf_vit": _images("hf_vit", "pixel_values"),
    "bert": _tokens("bert"),
}
