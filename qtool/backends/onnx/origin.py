"""What a file was made from, in its metadata: model, weights, data and versions.

Nothing of it depends on time or machine, so that equal conversions give equal files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qtool.core.versions import version_of

_KEY = "qtool_origin"
PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime")
"""Packages whose versions decide what a file contains."""


@dataclass(frozen=True)
class Origin:
    """What a file was made from.

    Attributes:
        model: fingerprint of the captured model, its graph and weights.
        weights: digest of the parameters and constants alone; empty if unknown.
        data: digest of the calibration samples, whatever their order; empty if unknown.
        samples: number of calibration samples.
        versions: package that took part in writing the file -> version.
    """

    model: str
    weights: str = ""
    data: str = ""
    samples: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)

    def metadata(self) -> dict[str, str]:
        """Return keys and values for the file."""
        return {_KEY: json.dumps({**vars(self), "versions": dict(self.versions)}, sort_keys=True)}

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Origin | None:
        """Return the origin in a file's metadata, None if it has none.

        Raises:
            KeyError, TypeError, ValueError: it is damaged.
        """
        if _KEY not in metadata:
            return None
        values: Any = json.loads(metadata[_KEY])
        versions = {str(k): str(v) for k, v in values["versions"].items()}
        model, weights, data = (str(values[name]) for name in ("model", "weights", "data"))
        return cls(model, weights, data, int(values["samples"]), versions)


def present_versions() -> dict[str, str]:
    """Return the versions of the packages that decide what a file contains."""
    return {name: version_of(name).partition("+")[0] for name in PACKAGES}
