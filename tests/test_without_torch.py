"""Files are read, verified, run, timed, measured and shown where torch cannot be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qtool
from qtool.core.text_files import read_toml_or_json
from tests import without_torch
from tests.backends.onnx.export.networks import float_file, network, quantized, samples
from tests.evaluation.report.page.made_up import made_up

ROOT = Path(__file__).parents[1]
pytest.importorskip("ai_edge_litert")


def torch_free_modules() -> list[str]:
    """The modules that import-linter keeps free of torch."""
    linter = read_toml_or_json(ROOT / "pyproject.toml", "project")["tool"]["importlinter"]
    (border,) = (c for c in linter["contracts"] if "torch" in c.get("forbidden_modules", ()))
    return list(border["source_modules"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, model = tmp_path_factory.mktemp("files"), quantized("residual")
    model.export(folder / "int8.onnx", timing=0)
    data = [samples("residual", 16)]
    for_tflite = qtool.quantize(network("residual"), data, target="tflite", accuracy="fast")
    for_tflite.export(folder / "int8.tflite", timing=0)
    (folder / "float.onnx").write_bytes(float_file("residual"))
    (folder / "report.json").write_text(made_up().text())
    np.save(folder / "x.npy", samples("residual", 8)[0].numpy())
    return folder


def test_everything_is_as_it_is_with_torch(folder: Path) -> None:
    script = [sys.executable, without_torch.__file__, str(folder), *torch_free_modules()]
    child = subprocess.run(script, capture_output=True, text=True, cwd=ROOT, check=False)
    assert not child.returncode, child.stderr
    alone = json.loads(child.stdout)
    assert alone == json.loads(json.dumps(without_torch.results(folder)))
    for name in without_torch.FILES:
        check = alone["files"][name]["self-test"]
        assert "unmodified since qtool wrote it" in check
        assert "as planned" in check
    assert alone["files"]["int8.onnx"]["codes"] is not None


def test_public_names_are_listed_before_they_are_imported() -> None:
    assert set(qtool.__all__) <= set(dir(qtool))
