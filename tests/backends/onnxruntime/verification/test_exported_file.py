"""One file, and each thing found out about it once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qtool.backends.onnxruntime import executed_file
from qtool.backends.onnxruntime.audit import audit
from qtool.backends.onnxruntime.verification import exported_file as module
from qtool.backends.onnxruntime.verification.bit_exactness import compare_codes
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.backends.onnxruntime.verification.planned_file import check_parity
from qtool.core.errors import FileError
from tests.backends.onnx.export.networks import exported, quantized, samples


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(exported("residual"))
    return path


def test_two_sessions_and_one_reading_show_everything(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, read = [], []
    session, load = module.session, onnx.load
    for each in (executed_file, module):
        monkeypatch.setattr(each, "session", lambda *a, **k: opened.append(k) or session(*a, **k))
    monkeypatch.setattr(onnx, "load", lambda p, **k: read.append(Path(p)) or load(p, **k))
    onnx_file, x = ExportedFile(file), [t.numpy() for t in samples("residual", 8)]
    expected = [t.detach().numpy() for t in [quantized("residual")(*samples("residual", 8))]]
    assert check_parity(
        onnx_file, x, expected, quantized("residual")._simulation.output_scales()
    ).passed
    assert compare_codes(onnx_file, [x]).exact
    assert audit(onnx_file).share == 1
    assert len(opened) == 2
    assert [p.name for p in read] == ["model.onnx", "optimised.onnx"]


def test_another_batch_is_run_again(file: Path) -> None:
    onnx_file = ExportedFile(file)
    one, other = ([t.numpy() for t in samples("residual", 2, seed=s)] for s in (1, 2))
    assert onnx_file.run(one) is onnx_file.run(one)
    assert not np.array_equal(onnx_file.run(one)[0], onnx_file.run(other)[0])


def test_nodes_without_names_are_called_after_what_they_make(file: Path) -> None:
    model = onnx.load(file)
    for node in model.graph.node:
        node.name = ""
    onnx.save(model, file)
    names = {n.name for n in ExportedFile(file).executed_graph.graph.node}
    assert any(n.output[0] in names for n in model.graph.node)
    assert all(not n.name for n in onnx.load(file).graph.node)  # the file stays as it is


def test_no_onnx_file(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no model")
    with pytest.raises(FileError, match="not a readable ONNX file"):
        _ = ExportedFile(tmp_path / "text").file
