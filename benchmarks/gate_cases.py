"""A network with its files and samples, and what benchmarks/gate.py plants in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

Array = np.ndarray
Measure = Callable[[Path], float]
"""File -> by how much its metric is lower than that of the float file, on all samples."""


@dataclass(frozen=True)
class Case:
    """A network with its files and samples.

    Attributes:
        real, file, other: the float file; that of qtool, without its metadata; that of
            onnxruntime.quantization, or a dynamic one of qtool.
        inputs: an array per input, [samples, ...]; of pairs two rows each.
        labels: a row per sample or pair.
        limit: the largest accepted drop.
        draw: number of labels of a run.
        module: the float module; training: images and labels, to train it further.
    """

    name: str
    metric: str
    real: Path
    file: Path
    other: Path
    inputs: dict[str, Array]
    labels: Array
    limit: float
    draw: int
    module: nn.Module
    training: tuple[torch.Tensor, torch.Tensor] | None
    export: Callable[[nn.Module, Path], None]

    @property
    def rows(self) -> int:
        """Samples per label."""
        return len(next(iter(self.inputs.values()))) // len(self.labels)


@dataclass(frozen=True)
class Planted:
    """What a gate is asked about.

    Attributes:
        file, against: the files.
        inputs, labels: changes the samples of a draw.
        drop: on all samples; NaN where it is no question of the metric.
        options: more options of the gate.
        cpu: an emulated processor to run it on; "" for this machine.
        draw: number of labels; 0: that of the case.
    """

    file: Path
    against: Path
    drop: float = float("nan")
    inputs: Callable[[dict[str, Array]], dict[str, Array]] = lambda inputs: inputs
    labels: Callable[[Array], Array] = lambda labels: labels
    options: tuple[tuple[str, Any], ...] = ()
    cpu: str = ""
    draw: int = 0


@dataclass(frozen=True)
class Regression:
    """A kind of regression, and the networks that have it."""

    plant: Callable[[Case, np.random.Generator, Measure], Planted]
    networks: tuple[str, ...]
