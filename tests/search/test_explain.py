"""Layers that are named for a changed answer bring it back, in the simulation and in a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import qtool
from qtool.backends.onnxruntime.session import run, session
from qtool.search.explanation import Flip
from tests.search.nets import ladder


def test_what_is_named_mends(tmp_path: Path) -> None:
    net, seen, asked = ladder()
    with torch.no_grad():
        net.head.weight /= 1000  # answers near to each other
        net.head.bias /= 1000
    file, mended = tmp_path / "int8.onnx", tmp_path / "mended.onnx"
    rounded = {"accuracy": "balanced", "target": "onnxruntime-x86-vnni"}
    qtool.quantize(net, seen, **rounded).export(file)
    found = qtool.explain(file, net, asked)
    assert found.changed
    assert all(f.fixed for f in found.flips)
    samples = torch.cat(asked)
    for flip in found.flips[:3]:
        one = qtool.explain(file, net, asked, samples=[flip.index], mended=mended)
        assert one.flips == (flip,)
        (scores,) = run(session(mended), [samples[flip.index : flip.index + 1].numpy()])
        assert int(scores[0].argmax()) == flip.expected
    same = next(i for i in range(256) if i not in {f.index for f in found.flips})
    with pytest.raises(qtool.DataError, match=f"the prediction for sample {same} did not change"):
        qtool.explain(file, net, asked, samples=[same])
    with pytest.raises(qtool.DataError, match="there is no sample 256; the data has 256"):
        qtool.explain(file, net, asked, samples=[256])


def test_a_flip_names_sample_and_classes_and_says_how_far_layers_go() -> None:
    flip = Flip(96, 3, 5, 0.5, -0.25, ("conv1",), (17.38,), True, 9)
    assert str(flip) == (
        "sample 96: float predicts 3 (margin 0.5), quantized predicts 5 (margin 0.25); "
        "keeping conv1 in float fixes it"
    )
    named = replace(flip, name="cat/96.png", expected_name="cat", predicted_name="dog")
    assert str(named).startswith(
        "cat/96.png (sample 96): float predicts cat (margin 0.5), quantized"
    )
    several = replace(flip, layers=("a", "b", "c"), gains=(0.6, 1.2, -0.1), fixed=False)
    assert str(several).endswith(
        "keeping a, b, c in float does not fix it in the runtime (a alone goes 60 % of the way, "
        "b alone goes all the way, c alone does not help)"
    )
