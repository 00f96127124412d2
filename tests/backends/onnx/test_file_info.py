"""What a file says of itself reads back, and damage is refused in a sentence."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
import torch

from qtool.backends.onnx.file_info import FileInfo, NodeInfo, maker_version
from qtool.core.errors import VerificationError
from qtool.core.types import Change, ObserverSpec
from qtool.planning.recipe import Recipe

INFO = FileInfo(
    "1.2",
    "onnxruntime",
    "abc",
    ObserverSpec("percentile", (("p", 99.9), ("bins", 2048))),
    Recipe.of([{"select": "head.*", "as": "float"}], "dynamic"),
    (NodeInfo("conv", "conv", "integer", "", 100), NodeInfo("sin", "sin", "float", "why", 0)),
    (Change("smooth-quant", 2, "wide", {"a": torch.rand(3), "b": torch.rand(2, 4)}),),
)


def model(metadata: dict[str, str]) -> onnx.ModelProto:
    found = onnx.ModelProto()
    for key, value in metadata.items():
        found.metadata_props.add(key=key, value=value)
    return found


def test_it_reads_back() -> None:
    found = FileInfo.of(model(INFO.metadata()))
    assert found is not None
    fields = ("version", "target", "plan", "observer", "recipe", "nodes")
    assert all(getattr(found, f) == getattr(INFO, f) for f in fields)
    (change,) = found.changes
    assert (change.step, change.count, change.reason) == ("smooth-quant", 2, "wide")
    assert all(np.array_equal(change.arrays[k], a) for k, a in INFO.changes[0].arrays.items())


def test_files_of_others_say_nothing() -> None:
    assert FileInfo.of(model({})) is None
    assert maker_version(model({})) is None
    assert maker_version(model(INFO.metadata())) == "1.2"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("qtool_nodes", "{"),
        ("qtool_nodes", "[1]"),
        ("qtool_nodes", json.dumps([{"node": "a"}])),
        ("qtool_nodes", json.dumps([dict.fromkeys(("node", "op", "form", "reason", "macs"), 1)])),
        ("qtool_nodes", "[" * 100_000),
        ("qtool_changes", "[3]"),
        ("qtool_changes", json.dumps([{"step": "smooth", "arrays": {"a": [[3], "!"]}}])),
        ("qtool_observer", "7"),
        ("qtool_recipe", json.dumps({"mode": "no such"})),
        ("qtool_recipe", json.dumps([{"as": "float"}])),
    ],
)
def test_damage_is_refused_in_a_sentence(key: str, text: str) -> None:
    with pytest.raises(VerificationError, match=r"metadata.*convert again") as caught:
        FileInfo.of(model(INFO.metadata() | {key: text}))
    assert "\n" not in str(caught.value)
