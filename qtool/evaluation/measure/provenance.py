"""What made a file: tools, model, data, recipe and steps, read from its metadata."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qtool.backends.formats import open_file
from qtool.backends.onnx.origin import Origin
from qtool.core.errors import FileError
from qtool.core.number_texts import quantity
from qtool.core.path_arguments import model_file
from qtool.core.summary import Result, Summary

_CHUNK = 1 << 24  # bytes read at once
_OWN = "qtool "  # in front of the version, as a file names the tool that wrote it


@dataclass(frozen=True)
class StepTaken:
    """What one step of the conversion changed."""

    step: str
    count: int
    reason: str


@dataclass(frozen=True)
class Provenance(Result):
    """What made a model file.

    Attributes:
        file: its path.
        sha256: file name -> digest, of the model file and of the files with its weights.
        producer: name and version of the tool that wrote the file, from its header.
        qtool: version of qtool; null in files of other tools.
        target, plan, observer: runtime, digest of the plan, range estimator.
        recipe: rules and options of the conversion.
        origin: model, weights, data and package versions; null if the file does not state them.
        steps: what the steps of the conversion changed.
        self_test: the self-test in the file, in a sentence.
    """

    file: str
    sha256: dict[str, str]
    producer: str
    qtool: str | None
    target: str | None
    plan: str | None
    observer: str | None
    recipe: Any
    origin: Origin | None
    steps: tuple[StepTaken, ...]
    self_test: str

    def summary(self, title: str | None = None) -> Summary:
        """Return a line per fact."""
        rows = [(f"sha256 of {name}", digest) for name, digest in self.sha256.items()]
        if self.origin is not None:
            rows += _origin_rows(self.origin)
        if self.target is not None:
            rows += [
                ("target", self.target),
                ("observer", self.observer or ""),
                ("recipe", str(self.recipe or "the defaults")),
                ("plan", self.plan or ""),
            ]
        rows += [(f"step {s.step}", f"{s.count} changes: {s.reason}") for s in self.steps]
        rows.append(("self-test", self.self_test.removeprefix("self-test: ")))
        notes: tuple[str, ...] = ()
        if self.qtool is None:
            notes = ("not a file of qtool: nothing else is known of it",)
        elif self.origin is None:
            notes = ("written by a former version: model and data are not in the file",)
        return Summary(title or self.file, f"written by {self.producer}", tuple(rows), notes)


def _origin_rows(origin: Origin) -> list[tuple[str, str]]:
    data = quantity(origin.samples, "sample") if origin.samples else "none"
    digest = f", digest {origin.data}" if origin.data and origin.samples else ""
    return [
        ("with", ", ".join(f"{name} {version}" for name, version in origin.versions.items())),
        ("model", f"fingerprint {origin.model}"),
        ("weights", f"digest {origin.weights}" if origin.weights else "unknown"),
        ("calibration data", data + digest),
    ]


def provenance(file: str | Path) -> Provenance:
    """Return what made a model file.

    Args:
        file: an ONNX or TFLite file of any tool.

    Raises:
        FileError: not a model file.
        VerificationError: the metadata that qtool wrote is damaged.
    """
    path = model_file(file)
    model = open_file(path)
    digests = {path.name: _sha256(path) for path in model.parts}
    producer, conversion = model.maker, model.conversion()
    version = producer.removeprefix(_OWN) if producer.startswith(_OWN) else None
    common = (str(path), digests, producer, version)
    if conversion is None:
        return Provenance(*common, None, None, None, None, None, (), model.self_test())
    info = conversion.info
    steps = tuple(StepTaken(c.step, c.count, c.reason) for c in info.changes)
    plan = (info.target, info.plan, str(info.observer), info.recipe.to_json())
    return Provenance(*common, *plan, info.origin, steps, model.self_test())


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror or error})") from error
    return digest.hexdigest()
