"""What a file of qtool says of itself, in the metadata of the ONNX model: written and read here.

Enough to plan the model again as it was when the file was written: target, observer, recipe, and
what the steps of the conversion changed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch

from qtool.core.errors import PlanError, VerificationError
from qtool.core.step_names import current_step_name
from qtool.core.types import Change, ObserverSpec
from qtool.core.versions import version_of
from qtool.planning.recipe import Recipe
from qtool.planning.targets import current_name

_VERSION, _TARGET, _PLAN = "qtool_version", "qtool_target", "qtool_plan"
_NODES, _OBSERVER = "qtool_nodes", "qtool_observer"
_RECIPE, _CHANGES = "qtool_recipe", "qtool_changes"


@dataclass(frozen=True)
class NodeInfo:
    """One row of the plan: see `qtool.planning.Decision`."""

    node: str
    op: str
    form: str
    reason: str
    macs: int


@dataclass(frozen=True)
class FileInfo:
    """What a file was made from.

    version: of the qtool that made it. plan: the digest of the plan. nodes: what became of each.
    changes: what the steps of the conversion did.
    """

    version: str
    target: str
    plan: str
    observer: ObserverSpec
    recipe: Recipe
    nodes: tuple[NodeInfo, ...]
    changes: tuple[Change, ...] = ()

    def metadata(self) -> dict[str, str]:
        """Keys and values for the file."""
        rows = [vars(n) for n in self.nodes]
        found = {
            _VERSION: self.version,
            _TARGET: self.target,
            _PLAN: self.plan,
            _OBSERVER: _text([self.observer.name, dict(self.observer.options)]),
            _NODES: _text(rows),
        }
        if self.recipe != Recipe():
            found[_RECIPE] = _text(self.recipe.to_json())
        if self.changes:
            found[_CHANGES] = _text([_packed(c) for c in self.changes])
        return found

    @classmethod
    def of(cls, model: onnx.ModelProto) -> FileInfo | None:
        """What a file says; None where qtool did not make it.

        Raises:
            VerificationError: it says so, but the rest is damaged.
        """
        found = {p.key: p.value for p in model.metadata_props}
        if _NODES not in found:
            return None
        try:
            name, options = json.loads(found.get(_OBSERVER, '["minmax",{}]'))
            return cls(
                str(found[_VERSION]),
                current_name(str(found[_TARGET])),
                str(found[_PLAN]),
                ObserverSpec(str(name), tuple(options.items())),
                Recipe.of(json.loads(found.get(_RECIPE, "[]"))),
                tuple(_node(row) for row in json.loads(found[_NODES])),
                tuple(_unpacked(c) for c in json.loads(found.get(_CHANGES, "[]"))),
            )
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise VerificationError(
                f"the metadata that qtool wrote into the file is damaged ({error!r}); convert again"
            ) from error
        except PlanError as error:
            raise VerificationError(
                f"the recipe in the file's metadata cannot be read ({error}); convert again"
            ) from error


def maker_version(model: onnx.ModelProto) -> str | None:
    """Of the qtool that wrote a file, a float one too; None where none did."""
    return next((p.value for p in model.metadata_props if p.key == _VERSION), None)


def own_version() -> str:
    """Of the qtool that runs."""
    return version_of("qtool") or "source"


def float_metadata() -> dict[str, str]:
    """What a float file says of itself."""
    return {_VERSION: own_version()}


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _node(row: Mapping[str, Any]) -> NodeInfo:
    texts = (row["node"], row["op"], row["form"], row["reason"])
    if not all(isinstance(t, str) for t in texts):
        raise TypeError("a row of its nodes is no text")
    return NodeInfo(*texts, macs=int(row["macs"]))


def _packed(change: Change) -> dict[str, Any]:
    """JSON; arrays as little-endian float32 in base64, with their shapes."""
    arrays = {
        name: [list(a.shape), base64.b64encode(a.numpy().astype("<f4").tobytes()).decode("ascii")]
        for name, a in change.arrays.items()
    }
    return {
        "step": change.step,
        "count": change.count,
        "reason": change.reason,
        "arrays": arrays,
    }


def _unpacked(given: Mapping[str, Any]) -> Change:
    arrays = {}
    for name, (shape, text) in given["arrays"].items():
        raw = np.frombuffer(base64.b64decode(text, validate=True), "<f4")
        arrays[str(name)] = torch.from_numpy(raw.astype(np.float32).reshape(shape))
    return Change(
        current_step_name(str(given["step"])), int(given["count"]), str(given["reason"]), arrays
    )
