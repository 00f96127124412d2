"""Conversions by the Python API: each case is the arguments of `qtool.quantize` and `export`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

import qtool
from benchmarks import realdata as trained
from benchmarks.same.examples import EXAMPLES, torchvision_networks

__all__ = ["Case", "digits_model", "examples", "language_model", "realdata", "tflite", "zoo"]

ROOT = Path(__file__).parents[2]
MODES = ("static", "dynamic", "weight-only", "weight-only-int4", "weight-only-int2")
DRAWN = 6
"""Random networks of tests/fuzz that are written as .tflite."""

Case = Callable[[], Mapping[str, Any]]


def examples() -> dict[str, Case]:
    """The examples but for the language model in all modes; digits with all else, too."""
    made = {
        f"{name}-{mode}": lambda n=name, m=mode: {**_example(n), "mode": m}
        for name in ("keywords", "detector", "sentences", "tagger")
        for mode in MODES
    }
    return {**_digits(), **made}


def _digits() -> dict[str, Case]:
    variants: dict[str, dict[str, Any]] = {
        "default": {},
        "fast": {"accuracy": "fast"},
        "best": {"accuracy": "best"},
        "qoperator": {"format": "qoperator"},
        "dynamic": {"mode": "dynamic"},
        "weight-only": {"mode": "weight-only"},
        "int4": {"mode": "weight-only-int4"},
        "int2": {"mode": "weight-only-int2"},
        "histogram": {"observer": "entropy"},
        "without-data": {"data": None},
        "every-step": {
            "recover": [
                "cross-layer-equalization",
                "smooth-quant",
                "gptq",
                "bias-correction",
            ]
        },
        **{f"target-{t}": {"target": t} for t in ("onnxruntime-x86-vnni", "onnxruntime-arm")},
        **{f"target-{t}": {"target": t} for t in ("onnxruntime-web", "openvino", "tensorrt")},
        **{f"target-{t}": {"target": t} for t in ("tflite", "tflite-micro", "qnn")},
    }
    return {f"digits-{n}": lambda v=v: {**digits_model(), **v} for n, v in variants.items()}


def digits_model() -> dict[str, Any]:
    from examples.digits.network import digits_net

    model = digits_net()
    model.load_state_dict(load_file(ROOT / "examples/digits/weights.safetensors"))
    files = sorted((ROOT / "calib_data/digits").glob("*.np[yz]"))
    data = [torch.from_numpy(a) for f in files for a in _arrays(np.load(f))]
    return {"model": model.eval(), "data": data}


def _arrays(loaded: Any) -> list[Any]:
    return [loaded] if hasattr(loaded, "dtype") else [loaded[n] for n in loaded.files]


def _example(name: str) -> dict[str, Any]:
    if name == "tagger":
        return _tagger()
    return EXAMPLES[name]()


def _tagger() -> dict[str, Any]:
    """The example of an operator of one's own, in its Python form."""
    from examples.custom_operator.mgu import python_form, register
    from examples.custom_operator.network import Tagger

    operator = python_form
    register(operator)
    torch.manual_seed(0)
    model = Tagger(operator).eval()
    return {"model": model, "data": [torch.randn(16, 12, 8) for _ in range(4)]}


def language_model() -> dict[str, Case]:
    variants: dict[str, dict[str, Any]] = {
        "static": {},
        "dynamic": {"mode": "dynamic"},
        "weight-only": {"mode": "weight-only"},
        "int4": {"mode": "weight-only-int4"},
        "int4-round": {"mode": "weight-only-int4", "recover": ["gptq"]},
        "int2": {"mode": "weight-only-int2"},
    }
    tasks = {"": None, "-with-cache": "text-generation-with-past"}
    return {
        f"language-model{suffix}-{n}": lambda v=v, t=t: {**_decoder(t), **v}
        for suffix, t in tasks.items()
        for n, v in variants.items()
    }


def _decoder(task: str | None) -> dict[str, Any]:
    trained.let_torchvision_import()
    home = ROOT / "examples/language_model"
    model = qtool.load_model(home / "model", task=task)
    text = home / "calibration.txt"
    data = qtool.load_data(text, 32, model=model, folder=home / "model", max_length=96)
    one_step = task is not None  # nested inputs: `convert` cannot bind the calibration's batch
    return {"model": model, "data": data, "dynamic": data.dynamic, "one_step": one_step}


def tflite() -> dict[str, Case]:
    """The examples, random networks, and those of torchvision where it is installed."""
    makers = {**EXAMPLES, **torchvision_networks()}
    made: dict[str, Case] = {f"tflite-{n}": lambda n=n: _as_tflite(makers[n]()) for n in makers}
    made |= {f"tflite-drawn-{i}": lambda i=i: _drawn(i) for i in range(1, 1 + DRAWN)}
    return made | {"tflite-micro-digits": _micro}


def _as_tflite(made: Mapping[str, Any]) -> dict[str, Any]:
    return {**made, "target": "tflite", "format": "tflite"}


def _micro() -> dict[str, Any]:
    return {**_as_tflite(EXAMPLES["digits"]()), "target": "tflite-micro"}


def _drawn(number: int) -> dict[str, Any]:
    from tests.fuzz.draws import draw_network

    network = draw_network(random.Random(number))  # noqa: S311  # no secret
    data = [network.batch(32, i + 1) for i in range(2)]
    return {"model": network.module(), "data": data, "target": "tflite", "format": "tflite"}


def zoo() -> dict[str, Case]:
    from benchmarks.networks.random_images import TORCHVISION
    from benchmarks.networks.random_text import KNOWN

    rows = {**TORCHVISION, **KNOWN}
    return {f"zoo-{n}": lambda n=n: _zoo_network(rows[n]) for n in rows}


def _zoo_network(network: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = network.build().eval()
    generator = torch.Generator().manual_seed(0)
    data = [network.inputs(4, generator) for _ in range(4)]
    dynamic = {k: dict(v) for k, v in network.dynamic.items()} or None
    return {"model": model, "data": data, "dynamic": dynamic}


def realdata(folder: Path) -> dict[str, Case]:
    def case(name: str) -> dict[str, Any]:
        loaded = trained.load(folder, name)
        return {"model": loaded.model, "data": loaded.calibration, "dynamic": loaded.dynamic}

    return {f"realdata-{n}": lambda n=n: case(n) for n in trained.NETWORKS}
