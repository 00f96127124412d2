"""The description that a file of qtool carries in the metadata of the ONNX model.

It suffices to plan the model again as it was when the file was written: target, observer, recipe,
and what the steps of the conversion changed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from qtool.backends.onnx.origin import Origin
from qtool.core.errors import MALFORMED, PlanError, VerificationError
from qtool.core.records import from_json
from qtool.core.remedies import OtherFile
from qtool.core.types import Change, ObserverSpec
from qtool.core.versions import own_version
from qtool.planning.plan import Execution, QuantPlan
from qtool.planning.recipe import Recipe

_VERSION, _TARGET, _PLAN = "qtool_version", "qtool_target", "qtool_plan"
_NODES, _OBSERVER = "qtool_nodes", "qtool_observer"
_RECIPE, _CHANGES = "qtool_recipe", "qtool_changes"
_FIXED, _LABELS, _COLUMNS = "qtool_fixed_inputs", "qtool_labels", "qtool_columns"


@dataclass(frozen=True)
class NodeInfo:
    """One row of the plan: see `qtool.planning.Decision`; form is the value of its `Execution`."""

    node: str
    op: str
    form: str
    reason: str
    macs: int
    macs_known: bool = True


@dataclass(frozen=True)
class FileInfo:
    """What a file was made from.

    Attributes:
        version: version of the qtool that wrote it.
        target: name of the target.
        plan: digest of the plan.
        observer: observer of the calibration.
        recipe: recipe of the plan.
        nodes: the decision for each node.
        changes: what the steps of the conversion did.
        origin: model, weights, data and versions; None in files of before.
        fixed_inputs: input of the float ONNX file that is a constant -> its value, a number or
            nested lists of numbers.
        labels: number of classes that the user's labels showed; 0 without whole numbers as labels.
        columns: names of the columns of the calibration data, in order; () of data without names.
    """

    version: str
    target: str
    plan: str
    observer: ObserverSpec
    recipe: Recipe
    nodes: tuple[NodeInfo, ...]
    changes: tuple[Change, ...] = ()
    origin: Origin | None = None
    fixed_inputs: Mapping[str, Any] = field(default_factory=dict)
    labels: int = 0
    columns: tuple[str, ...] = ()

    @classmethod
    def of_plan(
        cls,
        plan: QuantPlan,
        changes: tuple[Change, ...],
        origin: Origin,
        fixed_inputs: Mapping[str, Any],
        labels: int = 0,
        columns: tuple[str, ...] = (),
    ) -> FileInfo:
        """Return the description of a file of a plan, written by this version."""
        nodes = tuple(
            NodeInfo(d.node, d.op, d.execution.value, d.reason, d.macs, d.macs_known)
            for d in plan.nodes
            if d.execution is not Execution.SHAPE
        )
        head = own_version(), plan.target, plan.digest, plan.observer, plan.recipe
        return cls(*head, nodes, changes, origin, fixed_inputs, labels, columns)

    def metadata(self) -> dict[str, str]:
        """Return keys and values for the file."""
        rows = [
            {k: v for k, v in vars(n).items() if k != "macs_known" or not v} for n in self.nodes
        ]
        metadata = {
            _VERSION: self.version,
            _TARGET: self.target,
            _PLAN: self.plan,
            _OBSERVER: _text([self.observer.name, dict(self.observer.options)]),
            _NODES: _text(rows),
        }
        if self.recipe != Recipe():
            metadata[_RECIPE] = _text(self.recipe.to_json())
        if self.changes:
            metadata[_CHANGES] = _text([_pack(c) for c in self.changes])
        if self.fixed_inputs:
            metadata[_FIXED] = _text(dict(self.fixed_inputs))
        if self.labels:
            metadata[_LABELS] = _text(self.labels)
        if self.columns:
            metadata[_COLUMNS] = _text(self.columns)
        if self.origin is not None:
            metadata |= self.origin.metadata()
        return metadata

    @classmethod
    def of(cls, model: onnx.ModelProto) -> FileInfo | None:
        """Read the description of a model, see `read`."""
        return cls.read({p.key: p.value for p in model.metadata_props})

    @classmethod
    def read(cls, metadata: Mapping[str, str]) -> FileInfo | None:
        """Read the description from the metadata of a file, None if qtool did not write it.

        Raises:
            VerificationError: the metadata is damaged.
        """
        if _NODES not in metadata:
            return None
        try:
            name, options = json.loads(metadata.get(_OBSERVER, '["minmax",{}]'))
            return cls(
                str(metadata[_VERSION]),
                str(metadata[_TARGET]),
                str(metadata[_PLAN]),
                ObserverSpec(str(name), tuple(options.items())),
                Recipe.of(json.loads(metadata.get(_RECIPE, "[]"))),
                from_json(tuple[NodeInfo, ...], json.loads(metadata[_NODES])),
                tuple(_unpack(c) for c in json.loads(metadata.get(_CHANGES, "[]"))),
                Origin.of(metadata),
                dict(json.loads(metadata.get(_FIXED, "{}")).items()),
                int(json.loads(metadata.get(_LABELS, "0"))),
                tuple(map(str, json.loads(metadata.get(_COLUMNS, "[]")))),
            )
        except MALFORMED as error:
            raise VerificationError(
                f"the metadata that qtool wrote into the file is damaged ({error!r})",
                OtherFile("convert again"),
            ) from error
        except PlanError as error:
            raise VerificationError(
                f"the recipe in the file's metadata cannot be read ({error})",
                OtherFile("convert again"),
            ) from error


def maker_version(model: onnx.ModelProto) -> str | None:
    """Return the version of the qtool that wrote a file, also a float file; None for others."""
    return next((p.value for p in model.metadata_props if p.key == _VERSION), None)


def float_metadata() -> dict[str, str]:
    """Return the metadata of a float file."""
    return {_VERSION: own_version()}


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _pack(change: Change) -> dict[str, Any]:
    """Return a change as JSON: arrays as little-endian float32 in base64, with their shapes."""
    arrays = {
        name: [
            list(a.shape),
            base64.b64encode(np.asarray(a).astype("<f4").tobytes()).decode("ascii"),
        ]
        for name, a in change.arrays.items()
    }
    return {
        "step": change.step,
        "count": change.count,
        "reason": change.reason,
        "arrays": arrays,
    }


def _unpack(packed: Mapping[str, Any]) -> Change:
    arrays = {}
    for name, (shape, text) in packed["arrays"].items():
        raw = np.frombuffer(base64.b64decode(text, validate=True), "<f4")
        arrays[str(name)] = raw.astype(np.float32).reshape(shape)
    return Change(str(packed["step"]), int(packed["count"]), str(packed["reason"]), arrays)
