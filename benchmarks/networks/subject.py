"""What a row of the harness is measured on: a network, its samples and its task."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import nn

from benchmarks.networks.tasks import Task

__all__ = ["Arrays", "Places", "Split", "Subject", "drawn"]

Arrays = dict[str, np.ndarray]
"""Samples [samples, ...] by the names of inputs."""
PACKAGES, REALDATA = "BENCHMARK_PACKAGES", "BENCHMARK_REALDATA"


@dataclass(frozen=True)
class Places:
    """Folders with files of networks.

    Attributes:
        packages: of packages that pip has unpacked.
        realdata: as benchmarks/realdata.py reads it.
    """

    packages: Path
    realdata: Path

    def environment(self) -> dict[str, str]:
        """Return variables that processes read the folders from."""
        return {PACKAGES: str(self.packages), REALDATA: str(self.realdata)}

    @staticmethod
    def of_environment() -> Places:
        """Return the folders of the process that started this one."""
        return Places(Path(os.environ[PACKAGES]), Path(os.environ[REALDATA]))


Split = Callable[[Places, int, int], tuple[Arrays, Arrays]]
"""(folders, number of calibration samples, number of new ones) -> both; "label" of the new ones is
the right answer, where it is known."""


@dataclass(frozen=True)
class Subject:
    """One network.

    Attributes:
        group: of the page.
        split: its samples.
        task: what a user of it would notice; None for random weights.
        source: where it comes from: a package as `pip install` takes it, a library.
        needs: a file below `Places.packages` or `Places.realdata`, without which it is left out.
        build: the torch module; None where `needs` is the ONNX file.
        dynamic: input -> {dimension: name} of a module, besides the batch.
        older: torch.onnx writes the module by its TorchScript exporter.
        whole: a sample is a whole batch, with the state of the network.
        new: number of new samples.
        timed: batch sizes whose speed is measured.
    """

    name: str
    group: str
    split: Split
    task: Task | None = None
    source: str = ""
    needs: str = ""
    build: Callable[[Places], nn.Module] | None = None
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    older: bool = False
    whole: bool = False
    new: int = 128
    timed: tuple[int, ...] = (1,)

    def is_here(self, places: Places) -> bool:
        """Return whether the file that it needs is there."""
        folders = (places.packages, places.realdata)
        return not self.needs or any((p / self.needs).exists() for p in folders)


def drawn(make: Callable[[Path, np.random.Generator, int], Arrays]) -> Split:
    """Split samples at random that a generator makes."""

    def split(places: Places, count: int, new: int) -> tuple[Arrays, Arrays]:
        rng = np.random.default_rng([7, count])
        made = make(places.packages, rng, count + new)
        order = rng.permutation(len(next(iter(made.values()))))
        arrays = {k: a[order[:count]] for k, a in made.items() if k != "label"}
        return arrays, {k: a[order[count:]] for k, a in made.items()}

    return split
