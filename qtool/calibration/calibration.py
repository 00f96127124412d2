"""Calibration statistics of a model, in memory and on disk.

The statistics are small, mergeable and saved as one safetensors file: a JSON header (schema
version, fingerprint of the model, target, observers) and the arrays. Equal statistics give equal
files.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import torch

from qtool import observers
from qtool.core.argument_names import argument
from qtool.core.atomic import write_atomic
from qtool.core.data.calibration_samples import CalibrationSamples, merged_digest
from qtool.core.downloads import DOWNLOAD, check_download
from qtool.core.errors import MALFORMED, CalibrationError, PlanError, missing
from qtool.core.number_texts import quantity
from qtool.core.paths import is_file
from qtool.core.quant_params import QuantParams
from qtool.core.random_inputs import Input
from qtool.core.remedies import OtherFile
from qtool.core.summary import Summarized, Summary
from qtool.core.types import UINT8, Array, ObserverSpec
from qtool.observers import Statistic
from qtool.planning.recipe import Recipe

Arrays = dict[str, Array]
SCHEMA = 5
LARGEST_SAMPLE = 2**34  # elements of an input; a larger number means a damaged file
_KEPT = "__kept__"
_HELD = "__held__"


AGAIN = OtherFile("calibrate again")
WRITTEN = OtherFile("give the file that `qtool calibrate` wrote")


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(Summarized):
    """Calibration statistics of a model.

    Attributes:
        fingerprint: fingerprint of the captured model; only that model can be converted with it.
        target: name of the target whose plan has the points.
        observer: observer of tensors for which no rule names one.
        recipe: recipe of the plan; the default for conversion.
        inputs: inputs of the captured model, enough to capture it again.
        samples: number of calibration samples.
        specs: point or probe -> observer.
        statistics: point or probe -> statistic.
        kept_samples: samples stored for steps that run the network.
        notes: sentences for the user; not stored in the file.
        data: digest of the samples, see `qtool.core.data.calibration_samples`; "" if unknown.
        estimate_statistics: point or probe -> statistic of the samples for the estimate, which are
            in `statistics` only if `pooled` put them there. A step that changes tensors drops
            theirs.
        scales: point -> parameters of another tool, which replace those of the statistics; not
            stored in the file.
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
    data: str = ""
    estimate_statistics: Mapping[str, Statistic] = field(default_factory=dict)
    scales: Mapping[str, QuantParams] = field(default_factory=dict)

    def __repr__(self) -> str:
        tensors = quantity(len(self.statistics), "tensor")
        samples = quantity(self.samples, "sample")
        return f"<Calibration: {samples}, {tensors}, for {self.target}>"

    def summary(self, title: str = "Calibration", text: str | None = None) -> Summary:
        """Return what was observed, in a few lines. text: by default the mode and the target."""
        rows = (
            ("samples", f"{self.samples:,}"),
            ("ranges", f"{quantity(len(self.statistics), 'tensor')}, observer {self.observer}"),
        )
        place = f"{self.recipe.mode}, for {self.target}" if text is None else text
        return Summary(title, place, rows, self.notes)

    def pooled(self) -> Calibration:
        """Return the calibration for a conversion: with the statistics of all samples if they are
        too few to hold some out, else without those of the samples for the estimate."""
        if self.kept_samples.held_out or not self.estimate_statistics:
            return self
        statistics = _merged(self.specs, self.statistics, self.estimate_statistics)
        return replace(self, statistics=statistics, estimate_statistics={})

    def check_target(self, name: str) -> None:
        """Check that a model can be converted for a target, by its name.

        Raises:
            CalibrationError: the calibration is for another one.
        """
        if name != self.target:
            raise CalibrationError(
                f"the calibration was made for target {self.target}, and a file for {name} needs "
                f"the ranges of other tensors",
                OtherFile(f"calibrate again with {argument('--target', name)}"),
            )

    def merge(self, other: Calibration) -> Calibration:
        """Return the calibration on the data of both.

        Raises:
            CalibrationError: the models, targets, recipes or observers differ.
        """
        for attribute in ("fingerprint", "target", "recipe", "specs"):
            if getattr(self, attribute) != getattr(other, attribute):
                names = {"fingerprint": "model", "specs": "observers"}
                name = names.get(attribute, attribute)
                raise CalibrationError(
                    f"the two calibrations have a different {name}; merge only calibrations made "
                    "with the same model, target and observer"
                )
        kept = self.kept_samples.copy()
        kept.merge(other.kept_samples)
        held = _merged(self.specs, self.estimate_statistics, other.estimate_statistics)
        return replace(
            self,
            statistics=_merged(self.specs, self.statistics, other.statistics),
            estimate_statistics=held,
            kept_samples=kept,
            data=merged_digest(self.data, other.data),
            samples=self.samples + other.samples,
            notes=(),
        )

    def ranges(self) -> list[tuple[str, float, float]]:
        """Return (tensor, low, high) per whole tensor, as its observer estimates it for uint8."""
        ranges = []
        for name, statistic in self.pooled().statistics.items():
            if statistic.axis is not None:
                continue
            low, high = observers.range_of(self.specs[name], statistic, UINT8, False)
            ranges.append((name, float(low), float(high)))
        return ranges

    def save(self, path: str | Path) -> None:
        """Write the file atomically."""
        write_atomic(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """Return the contents of the file; equal statistics give equal bytes."""
        tensors = _arrays("", self.statistics) | _arrays(f"{_HELD}/", self.estimate_statistics)
        tensors |= {f"{_KEPT}/{key}": array for key, array in self.kept_samples.state().items()}
        tensors = {
            k: np.asarray(a, order="C") for k, a in tensors.items()
        }  # as safetensors expects
        header = {
            "schema": SCHEMA,
            "fingerprint": self.fingerprint,
            "target": self.target,
            "observer": [self.observer.name, dict(self.observer.options)],
            "recipe": self.recipe.to_json(),
            "inputs": [[i.name, i.dtype, list(i.shape)] for i in self.inputs],
            "samples": self.samples,
            "data": self.data,
            "observers": {n: [s.name, dict(s.options)] for n, s in self.specs.items()},
            "kept": [self.kept_samples.limit, self.kept_samples.total, *self.kept_samples.bounds],
            "digest": _digest(tensors),
            "axes": {n: s.axis for n, s in self.statistics.items() if s.axis is not None},
        }
        metadata = {"qtool_calibration": json.dumps(header)}
        return safetensors.numpy.save(tensors, metadata)

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read a file written by `save`.

        Raises:
            CalibrationError: the file is missing, damaged, foreign, or has another schema.
        """
        if not is_file(path):
            raise missing(path, CalibrationError, "calibration file")
        check_download(path, CalibrationError)
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise CalibrationError(f"{path}: cannot be read ({error.strerror or error})") from error
        return cls.from_bytes(data, str(path))

    @classmethod
    def from_bytes(cls, data: bytes, path: str = "a calibration") -> Calibration:
        """Read the result of `to_bytes`; errors name `path`.

        Raises:
            CalibrationError: as for `load`.
        """
        header, flat = _parsed(data, path)
        try:
            flat, kept, held = _split(flat)
            axes = header["axes"]
            specs = {n: _spec(value) for n, value in header["observers"].items()}
            limit, total, *bounds = header["kept"]
            inputs = tuple(_input(*value) for value in header["inputs"])
            samples = CalibrationSamples.from_state(
                _count(limit), kept, _count(total), (_text(bounds[0]), _text(bounds[1]))
            )
            _check_count(inputs, samples)
            return cls(
                _text(header["fingerprint"]),
                _text(header["target"]),
                _spec(header["observer"]),
                Recipe.of(header["recipe"]),
                inputs,
                _count(header["samples"]),
                specs,
                _restored(specs, axes, flat),
                samples,
                data=_text(header["data"]),
                estimate_statistics=_restored(specs, axes, held) if held else {},
            )
        except (CalibrationError, PlanError) as error:
            raise CalibrationError(f"{path}: {error}", AGAIN) from error
        except MALFORMED as error:
            raise CalibrationError(f"{path}: damaged calibration ({error!r})", AGAIN) from error


def _digest(arrays: Mapping[str, Array]) -> str:
    """Return a hash of all arrays, which detects damage on disk."""
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key])
        digest.update(f"{key} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a number of samples")
    return value


def _input(name: Any, dtype: Any, shape: Any) -> Input:
    """Return an input after checking that its dtype and shape are those of a tensor."""
    if not isinstance(getattr(torch, _text(dtype), None), torch.dtype):
        raise TypeError(f"{dtype!r} is not a dtype")
    sizes = [s if isinstance(s, str) else _count(s) for s in shape]
    if math.prod(s for s in sizes if isinstance(s, int)) > LARGEST_SAMPLE:
        raise ValueError(f"{shape!r} is not a shape")
    return Input(_text(name), dtype, tuple(sizes))


def _check_count(inputs: Sequence[Input], samples: CalibrationSamples) -> None:
    """Check that each stored sample has a tensor per input."""
    if not inputs or any(len(s.tensors) != len(inputs) for s in samples.stored()):
        raise ValueError(f"{len(inputs)} inputs, which are not those of its samples")


def _split(flat: Mapping[str, Array]) -> tuple[Arrays, Arrays, Arrays]:
    """Return the arrays of the statistics, of the stored samples, and of the statistics of the
    samples for the estimate."""
    parts: dict[str, Arrays] = {"": {}, _KEPT: {}, _HELD: {}}
    for key, array in flat.items():
        head, _, rest = key.partition("/")
        if head in (_KEPT, _HELD):
            parts[head][rest] = array
        else:
            parts[""][key] = array
    return parts[""], parts[_KEPT], parts[_HELD]


def _arrays(prefix: str, statistics: Mapping[str, Statistic]) -> Arrays:
    return {
        f"{prefix}{name}/{key}": array
        for name, statistic in statistics.items()
        for key, array in statistic.state().items()
    }


def _restored(
    specs: Mapping[str, ObserverSpec], axes: Mapping[str, int], flat: Mapping[str, Array]
) -> dict[str, Statistic]:
    arrays = _by_point(specs, flat)
    return {n: observers.restore(s, axes.get(n), arrays[n]) for n, s in specs.items()}


def _merged(
    specs: Mapping[str, ObserverSpec],
    one: Mapping[str, Statistic],
    other: Mapping[str, Statistic],
) -> dict[str, Statistic]:
    """Return new statistics of the data of both; one of them may be empty."""
    merged = {}
    for name in one or other:
        first, *rest = (each[name] for each in (one, other) if each)
        merged[name] = observers.restore(specs[name], first.axis, first.state())
        for statistic in rest:
            merged[name].merge(statistic)
    return merged


def _spec(value: Any) -> ObserverSpec:
    name, options = value
    if odd := [v for v in options.values() if not isinstance(v, float | int | str)]:
        raise TypeError(f"{odd[0]!r:.40} is no value of an observer's option")
    return ObserverSpec(_text(name), tuple(options.items()))


def _parsed(data: bytes, path: str) -> tuple[dict[str, Any], Arrays]:
    try:
        flat = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        message = f"{path}: not a calibration file, or a damaged one ({error})"
        raise CalibrationError(message, WRITTEN, DOWNLOAD) from error
    length = int.from_bytes(data[:8], "little")  # of the header, as safetensors has it
    text = json.loads(data[8 : 8 + length]).get("__metadata__", {}).get("qtool_calibration")
    if text is None:
        raise CalibrationError(f"{path}: a safetensors file, but not a calibration of qtool")
    try:
        header: dict[str, Any] = json.loads(text)
        schema = header.get("schema")
    except MALFORMED as error:
        raise CalibrationError(f"{path}: damaged header ({error!r})", AGAIN) from error
    if schema != SCHEMA:
        raise CalibrationError(f"{path}: schema {schema}, this qtool reads {SCHEMA}", AGAIN)
    if header.get("digest") != _digest(flat):
        raise CalibrationError(f"{path}: damaged statistics", AGAIN)
    return header, flat


def _by_point(names: Iterable[str], flat: Mapping[str, Array]) -> dict[str, Arrays]:
    """Return the arrays with keys "name/field" by name, then by field."""
    arrays: dict[str, Arrays] = {name: {} for name in names}
    for key, array in flat.items():
        name, _, field = key.rpartition("/")
        arrays[name][field] = array
    return arrays
