"""The inputs to time a model with: of a decoder a prompt and a step, of other models a batch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.formats import open_model
from qtool.backends.session import Session
from qtool.core.errors import VerificationError
from qtool.core.types import Array
from qtool.evaluation.language_model import LanguageModel, find_language_model
from qtool.evaluation.latency.interleaved_timing import PROMPT, STEP, Timing, time_files
from qtool.evaluation.latency.node_times import RUNS, Profile, profile_nodes, sums_that_differ
from qtool.evaluation.model_inputs import timed_samples


@dataclass(frozen=True, eq=False)
class Phase:
    """One kind of call of a model.

    Attributes:
        name: PROMPT, STEP, or "" for a model that has one kind of call.
        inputs: arrays in the order of the file's inputs.
        tokens: new tokens of each text; 0 for a model without phases.
        cached: tokens of each text in the KV cache.
        sizes: see `Timing`.
    """

    name: str
    inputs: Sequence[Array]
    tokens: int = 0
    cached: int = 0
    sizes: str = ""

    def time(self, files: Sequence[str | Path], **options: Any) -> Timing:
        """Return the timing of files in this phase; options as for `time_files`."""
        timing = time_files(files, self.inputs, **options)
        return replace(
            timing, phase=self.name, tokens=self.tokens, cached=self.cached, sizes=self.sizes
        )

    def profile(
        self, files: Sequence[Path], names: Sequence[str], timing: Timing, runs: int = RUNS
    ) -> Profile:
        """Return the times of the nodes of files, compared with a timing of the same calls.

        Args:
            files: paths in the order of the timing.
            names: names of the files.
            timing: latency in this phase.
            runs: number of runs.
        """
        nodes = profile_nodes(files, self.inputs, threads=timing.threads, runs=runs)
        differs = sums_that_differ(nodes, names, [spread.median for spread in timing.models])
        return Profile(timing.batch, timing.threads, nodes, self.name, differs)


def phases(
    files: Sequence[str | Path], batch: Sequence[Array], size: int | None = None
) -> tuple[Phase, ...]:
    """Return what to time a model with.

    A causal language model with a KV cache as inputs has a prompt, all tokens of the texts with an
    empty cache, and a step, one token with all others in the cache. Without such a cache there is
    the prompt alone. Any other model, and a file that takes only one size, has the batch as it is.

    Args:
        files: the first is the float model.
        batch: arrays in the order of its inputs.
        size: number of samples that the batch is cut or repeated to, see `timed_samples`.
    """
    model, arrays, count = open_model(files[0]), list(batch), timed_samples(files, size)
    if count is not None:
        arrays = [
            np.ascontiguousarray(np.take(a, np.arange(count) % len(a), axis=0)) if a.ndim else a
            for a in batch
        ]
    place = find_language_model(model, arrays)
    if place is None:
        return (Phase("", arrays, sizes=_open_sizes(model, [a.shape for a in arrays])),)
    length = arrays[place.ids].shape[1]
    if not place.cache:
        return (Phase(PROMPT, arrays, length),)
    total = length + place.cached_tokens(arrays)
    candidates = (
        Phase(PROMPT, _call(place, arrays, length, 0), length),
        Phase(STEP, _call(place, arrays, 1, total - 1), 1, total - 1),
    )
    accepted = tuple(p for p in candidates if _runs(model, p.inputs))
    return accepted or (Phase("", arrays),)


def _open_sizes(model: Session, shapes: Sequence[tuple[int, ...]]) -> str:
    """Return the sizes behind the samples that a model leaves open, if their names are words."""
    sizes = {
        name: size
        for port, shape in zip(model.inputs, shapes, strict=True)
        for name, size in zip(port.shape[1:], shape[1:], strict=False)
        if isinstance(name, str) and name.replace("_", "").isalpha()
    }
    return ", ".join(f"{name} {size}" for name, size in sizes.items())


def time_first(
    files: Sequence[str | Path], batches: Sequence[Sequence[Array]], **options: Any
) -> tuple[tuple[Timing, ...], Phase]:
    """Time the first batch that files take, in each phase; return the timings and the last phase.

    Where one input holds the number of rows of another, files take no part of a batch.

    Args:
        files: the first is the reference.
        batches: arrays in the order of its inputs.
        options: as for `time_files`.
    """

    def timed(arrays: Sequence[Array]) -> tuple[tuple[Timing, ...], Phase]:
        each = phases(files, arrays)
        return tuple(phase.time(files, **options) for phase in each), each[-1]

    for arrays in batches[:-1]:
        with suppress(VerificationError):
            return timed(arrays)
    return timed(batches[-1])


def _call(place: LanguageModel, arrays: Sequence[Array], tokens: int, cached: int) -> list[Array]:
    """Return the inputs of a call with the last `tokens` ids and `cached` tokens in the cache."""
    inputs = list(arrays)
    samples = len(arrays[place.ids])
    inputs[place.ids] = np.ascontiguousarray(arrays[place.ids][:, -tokens:])
    if place.mask is not None:
        inputs[place.mask] = np.ones((samples, cached + tokens), arrays[place.mask].dtype)
    if place.positions is not None:
        own = np.arange(cached, cached + tokens, dtype=arrays[place.positions].dtype)
        inputs[place.positions] = np.tile(own, (samples, 1))
    for i in place.cache:
        inputs[i] = _resized_cache(arrays[i], cached)
    return inputs


def _resized_cache(cache: Array, length: int) -> Array:
    """Return keys or values of another number of tokens, the present ones repeated."""
    if not cache.shape[2]:
        return np.zeros((*cache.shape[:2], length, cache.shape[3]), cache.dtype)
    return np.ascontiguousarray(np.take(cache, np.arange(length) % cache.shape[2], axis=2))


def _runs(model: Session, inputs: Sequence[Array]) -> bool:
    try:
        model.run(inputs)
    except VerificationError:
        return False
    return True
