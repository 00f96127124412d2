"""The sets of networks, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks import realdata
from benchmarks.networks.random_inputs import Network, like_trained
from benchmarks.networks.subject import Arrays, Places, Split, Subject
from benchmarks.networks.tasks import classes, pairs_in_order

__all__ = ["SETS"]

TOKENS = 64
"""Length that texts of the trained encoder are padded to: a file of samples has one."""


def _packaged() -> dict[str, Subject]:
    from benchmarks.networks.packaged import ROWS

    return {row.name: row for row in ROWS}


# --- random weights ------------------------------------------------------------------------------


def _random(source: str, tables: str, timed: tuple[int, ...] = (1,)) -> dict[str, Subject]:
    """Networks of tables, "module.NAME": libraries are imported where a set is asked for."""
    rows: dict[str, Network] = {}
    for table in tables.split():
        module, _, name = table.partition(".")
        rows |= getattr(import_module(f"benchmarks.networks.random_{module}"), name)

    def subject(name: str, network: Network) -> Subject:
        return Subject(
            name,
            network.group,
            _of_inputs(network),
            source=source,
            build=lambda _: like_trained(network),
            dynamic=network.dynamic,
            new=32,
            timed=timed,
        )

    return {name: subject(name, network) for name, network in rows.items()}


def _of_inputs(network: Network) -> Split:
    def split(_: Places, count: int, new: int) -> tuple[Arrays, Arrays]:
        parts = []
        for seed, number in ((2, count), (3, new)):
            made = network.inputs(number, torch.Generator().manual_seed(seed))
            parts.append({name: tensor.numpy() for name, tensor in made.items()})
        return parts[0], parts[1]

    return split


# --- trained networks of a folder ----------------------------------------------------------------


def _realdata() -> dict[str, Subject]:
    return {name: _trained(name) for name in realdata.NETWORKS}


def _trained(name: str) -> Subject:
    def build(places: Places) -> nn.Module:
        return realdata.load(places.realdata, name).model

    if name == "minilm":
        split, task, needs, inputs = _sentences, pairs_in_order(), "minilm", realdata.MINILM_INPUTS
    else:
        folder = "kws" if name == "kws" else "cifar10"
        split, task, needs, inputs = partial(_labelled, name), classes(), folder, ()
    dynamic = {n: {1: "sequence"} for n in inputs}
    return Subject(
        *(name, "trained", split, task, "trained", needs, build, dynamic), new=2000, timed=(1, 8)
    )


def _labelled(name: str, places: Places, count: int, new: int) -> tuple[Arrays, Arrays]:
    """Evenly spaced calibration samples, and evenly spaced ones of the evaluation."""
    network = realdata.load(places.realdata, name)
    samples, data = (torch.cat(list(p)).numpy() for p in (network.calibration, network.data))
    chosen = _evenly(len(data), new)
    labels = np.asarray(network.labels)[chosen]
    return {"x": samples[_evenly(len(samples), count)]}, {"x": data[chosen], "label": labels}


def _sentences(places: Places, count: int, new: int) -> tuple[Arrays, Arrays]:
    """Sentences in pairs; the label of both is what people say of the pair."""
    rows, tokenizer = realdata.sentence_pairs(places.realdata)
    rows = [rows[i] for i in _evenly(len(rows), (count + new) // 2)]
    texts = [text for row in rows for text in row[:2]]
    options: dict[str, Any] = {"padding": "max_length", "max_length": TOKENS, "truncation": True}
    made = tokenizer(texts, return_tensors="np", **options)
    arrays = {name: made[name].astype(np.int64) for name in realdata.MINILM_INPUTS}
    labels = np.repeat([row[2] for row in rows], 2)
    rest = {name: a[count // 2 * 2 :] for name, a in arrays.items()}
    first = {name: a[:count] for name, a in arrays.items()}
    return first, {**rest, "label": labels[count // 2 * 2 :]}


def _evenly(total: int, count: int) -> list[int]:
    return np.linspace(0, total - 1, min(count, total)).astype(int).tolist()


SETS: dict[str, Callable[[], dict[str, Subject]]] = {
    "packaged": cache(_packaged),
    "realdata": cache(_realdata),
    "usual": cache(partial(_random, "torchvision, timm", "images.USUAL", (1, 8))),
    "torchvision": cache(partial(_random, "torchvision", "images.TORCHVISION")),
    "timm": cache(partial(_random, "timm", "images.TIMM")),
    "transformers": cache(partial(_random, "transformers", "text.KNOWN text.TEXT others.OTHERS")),
}
"""Trained: `packaged`, the files of public packages; `realdata`, of a folder with labels. With
random weights: `usual`, in the sizes in which they are used; the others, by library."""
