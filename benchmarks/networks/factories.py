"""Modules and data of the harness, as commands take them: `benchmarks.networks.factories:NAME`.

A factory is called SET__NETWORK. `batches` gives samples that are whole batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

from benchmarks.networks.sets import SETS
from benchmarks.networks.subject import Places

SAMPLES = "calibration.npz"


def __getattr__(name: str) -> Callable[[], nn.Module]:
    kind, _, network = name.partition("__")
    subject = SETS[kind]().get(network) if kind in SETS else None
    if subject is None or subject.build is None:
        raise AttributeError(name)
    build = subject.build
    return lambda: build(Places.of_environment())


def batches() -> Iterator[dict[str, torch.Tensor]]:
    """Yield the calibration samples of a run, each a batch."""
    with np.load(SAMPLES) as file:
        arrays = {name: file[name] for name in file.files}
    for i in range(len(next(iter(arrays.values())))):
        yield {name: torch.from_numpy(np.asarray(a[i])) for name, a in arrays.items()}
