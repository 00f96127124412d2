"""Layers that are named for a changed answer bring it back, in the simulation and in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import qtool
from qtool.backends.onnxruntime.session import run, session
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
