"""What was seen of a model's tensors, in memory and on disk.

The statistics are small, mergeable and saved as one safetensors file: a header in JSON (schema
version, the model's fingerprint, target, observers) and the arrays. Identical statistics make
identical files.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import torch

from qtool import observers
from qtool.core.atomic import write_atomic
from qtool.core.data.calibration_samples import CalibrationSamples
from qtool.core.errors import CalibrationError, PlanError
from qtool.core.graph import Input
from qtool.core.path_arguments import accepts_paths
from qtool.core.paths import is_file
from qtool.core.types import UINT8, ObserverSpec
from qtool.observers import Statistic
from qtool.planning.recipe import Recipe
from qtool.planning.targets import current_name

SCHEMA = 4
LARGEST_SAMPLE = 2**34  # elements of an input; a file that says more is damaged
_KEPT = "__kept__"


@dataclass(frozen=True, eq=False)
class Calibration:
    """What was seen of a model's tensors.

    fingerprint: of the captured model; only that model can be converted with it.
    target: the target whose plan chose the points.
    observer: of the tensors that no rule names one for.
    recipe: what the plan was made with; conversion takes it unless another is given.
    inputs: the model's inputs as captured, enough to capture it again.
    samples: how many samples were seen.
    specs, statistics: point or probe -> observer and what it gathered.
    kept: samples that were kept for steps that run the network on them.
    notes: sentences for whoever calibrates; of this run, and in no file.
    """

    fingerprint: str
    target: str
    observer: ObserverSpec
    recipe: Recipe
    inputs: tuple[Input, ...]
    samples: int
    specs: Mapping[str, ObserverSpec]
    statistics: Mapping[str, Statistic]
    kept_samples: CalibrationSamples = field(default_factory=lambda: CalibrationSamples(0))
    notes: tuple[str, ...] = ()

    def merge(self, other: Calibration) -> Calibration:
        """The calibration on this one's data followed by the other's.

        Raises:
            CalibrationError: they are of different models, targets or observers.
        """
        for what in ("fingerprint", "target", "recipe", "specs"):
            if getattr(self, what) != getattr(other, what):
                name = "model" if what == "fingerprint" else what.replace("specs", "observers")
                raise CalibrationError(
                    f"the two calibrations have a different {name}; merge only calibrations made "
                    "with the same model, target and observer"
                )
        merged = {}
        for name, mine in self.statistics.items():
            statistic = observers.restore(self.specs[name], mine.axis, mine.state())
            statistic.merge(other.statistics[name])
            merged[name] = statistic
        kept = CalibrationSamples(self.kept_samples.limit, self.kept_samples)
        kept.merge(other.kept_samples)
        total = self.samples + other.samples
        return replace(self, samples=total, statistics=merged, kept_samples=kept, notes=())

    def ranges(self) -> list[tuple[str, float, float]]:
        """(tensor, low, high) as the observers estimate them, for uint8; whole tensors only."""
        found = []
        for name, statistic in self.statistics.items():
            if statistic.axis is not None:
                continue
            low, high = observers.range_of(self.specs[name], statistic, UINT8, False)
            found.append((name, float(low), float(high)))
        return found

    @accepts_paths("path")
    def save(self, path: str | Path) -> None:
        """Writes the file, atomically."""
        write_atomic(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """What the file holds; equal statistics give equal bytes."""
        tensors = {
            f"{name}/{key}": array
            for name, statistic in self.statistics.items()
            for key, array in statistic.state().items()
        }
        tensors |= {f"{_KEPT}/{key}": array for key, array in self.kept_samples.state().items()}
        tensors = {k: np.asarray(a, order="C") for k, a in tensors.items()}  # as safetensors reads
        header = {
            "schema": SCHEMA,
            "fingerprint": self.fingerprint,
            "target": self.target,
            "observer": [self.observer.name, dict(self.observer.options)],
            "recipe": self.recipe.to_json(),
            "inputs": [[i.name, i.dtype, list(i.shape)] for i in self.inputs],
            "samples": self.samples,
            "observers": {n: [s.name, dict(s.options)] for n, s in self.specs.items()},
            "kept": self.kept_samples.limit,
            "digest": _digest(tensors),
            "axes": {n: s.axis for n, s in self.statistics.items() if s.axis is not None},
        }
        metadata = {"qtool_calibration": json.dumps(header)}
        return safetensors.numpy.save(tensors, metadata)

    @classmethod
    @accepts_paths("path")
    def load(cls, path: str | Path) -> Calibration:
        """Reads a file written by `save`.

        Raises:
            CalibrationError: missing, truncated, foreign, or of a newer schema.
        """
        if not is_file(path):
            raise CalibrationError(f"{path}: no such calibration file")
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise CalibrationError(f"{path}: cannot be read ({error.strerror or error})") from error
        return cls.from_bytes(data, str(path))

    @classmethod
    def from_bytes(cls, data: bytes, path: str = "a calibration") -> Calibration:
        """The inverse of `to_bytes`; `path` is what errors call it. Raises CalibrationError."""
        header, flat = _parsed(data, path)
        try:
            kept = {k.removeprefix(f"{_KEPT}/"): v for k, v in flat.items() if _is_kept(k)}
            flat = {k: v for k, v in flat.items() if not _is_kept(k)}
            arrays, axes = _by_point(header["observers"], flat), header["axes"]
            specs = {n: _spec(given) for n, given in header["observers"].items()}
            return cls(
                _text(header["fingerprint"]),
                current_name(_text(header["target"])),
                _spec(header["observer"]),
                Recipe.of(header["recipe"]),
                tuple(_input(*given) for given in header["inputs"]),
                _count(header["samples"]),
                specs,
                {n: observers.restore(s, axes.get(n), arrays[n]) for n, s in specs.items()},
                CalibrationSamples.from_state(int(header["kept"]), kept),
            )
        except (CalibrationError, PlanError) as error:
            raise CalibrationError(f"{path}: {error}; calibrate again") from error
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise CalibrationError(
                f"{path}: damaged calibration ({error!r}); calibrate again"
            ) from error


def _digest(arrays: Mapping[str, Any]) -> str:
    """A hash of all arrays: a bit that flips on a disk is noticed."""
    found = hashlib.blake2b(digest_size=16)
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key])
        found.update(f"{key} {array.dtype} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(f"{given!r} is no text")
    return given


def _count(given: Any) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise ValueError(f"{given!r} is no number of samples")
    return given


def _input(name: Any, dtype: Any, shape: Any) -> Input:
    """An input as it was captured: a type of torch's, and sizes that a tensor can have."""
    if not isinstance(getattr(torch, _text(dtype), None), torch.dtype):
        raise TypeError(f"{dtype!r} is no type")
    sizes = [s if isinstance(s, str) else _count(s) for s in shape]
    if math.prod(s for s in sizes if isinstance(s, int)) > LARGEST_SAMPLE:
        raise ValueError(f"{shape!r} is no shape")
    return Input(_text(name), dtype, tuple(sizes))


def _is_kept(key: str) -> bool:
    return key.startswith(f"{_KEPT}/")


def _spec(given: Any) -> ObserverSpec:
    name, options = given
    return ObserverSpec(name, tuple(options.items()))


def _parsed(data: bytes, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        flat = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise CalibrationError(f"{path}: not a calibration file, or truncated ({error})") from error
    length = int.from_bytes(data[:8], "little")  # of the header, as safetensors has it
    text = json.loads(data[8 : 8 + length]).get("__metadata__", {}).get("qtool_calibration")
    if text is None:
        raise CalibrationError(f"{path}: a safetensors file, but not a calibration of qtool")
    try:
        header: dict[str, Any] = json.loads(text)
        schema = header.get("schema")
    except (ValueError, AttributeError, RecursionError) as error:
        raise CalibrationError(f"{path}: damaged header ({error!r}); calibrate again") from error
    if schema != SCHEMA:
        raise CalibrationError(
            f"{path}: schema {schema}, this qtool reads {SCHEMA}; calibrate again"
        )
    if header.get("digest") != _digest(flat):
        raise CalibrationError(f"{path}: damaged statistics; calibrate again")
    return header, flat


def _by_point(names: Iterable[str], flat: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The arrays of "name/field" by name, then by field."""
    arrays: dict[str, dict[str, Any]] = {name: {} for name in names}
    for key, array in flat.items():
        name, _, field = key.rpartition("/")
        arrays[name][field] = array
    return arrays
