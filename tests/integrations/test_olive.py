"""The pass for Olive in workflows that the real Olive runs; one is that of the documentation."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qtool
from tests.cli.float_onnx import write_float_onnx
from tests.docs.snippets import ROOT, blocks

pytest.importorskip("olive", reason="Olive is not installed: install the package olive-ai")
PAGE = "docs/other-tools.md"
DATA = """
import numpy as np
from olive.data.registry import Registry


@Registry.register_dataset()
def rows(path, **_):
    return [({"x": row}, 0) for row in np.load(path)]
"""


def python(*arguments: str, rc: int = 0) -> str:
    """What a command of this Python prints, in the root of the repository."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "OLIVE_DISABLE_TELEMETRY": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == rc, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("olive") / "packages.json")
    python("qtool.integrations.olive", path)
    return path


def run(workflow: dict[str, Any], packages: str, folder: Path, rc: int = 0) -> str:
    workflow |= {"output_dir": str(folder / "out"), "cache_dir": str(folder / "cache")}
    path = folder / "workflow.json"
    path.write_text(json.dumps(workflow), "utf-8")
    return python("olive", "run", "--config", str(path), "--package-config", packages, rc=rc)


def float_file_workflow(folder: Path, **options: Any) -> dict[str, Any]:
    """A graph pass of Olive and the pass of qtool, on an ONNX file with external weights."""
    np.save(folder / "rows.npy", write_float_onnx(folder).repeat(8, 0))
    (folder / "rows.py").write_text(DATA, "utf-8")
    data = {"type": "rows", "params": {"path": str(folder / "rows.npy")}}
    quantization = {"type": "QtoolQuantization", "data_config": "calibration", **options}
    return {
        "input_model": {"type": "OnnxModel", "model_path": str(folder / "float.onnx")},
        "data_configs": [
            {
                "name": "calibration",
                "user_script": str(folder / "rows.py"),
                "load_dataset_config": data,
                "dataloader_config": {"params": {"batch_size": 16}},
            }
        ],
        "passes": {"clean": {"type": "OnnxPeepholeOptimizer"}, "quantization": quantization},
    }


def test_workflow_of_the_page(packages: str, tmp_path: Path) -> None:
    texts = [b.text for b in blocks(PAGE)]
    (script,) = (t for t in texts if t.startswith("# digits.py"))
    (tmp_path / "digits.py").write_text(script, "utf-8")
    (text,) = (t for t in texts if t.startswith("{"))
    place = json.dumps(str(tmp_path / "digits.py"))
    run(json.loads(text.replace('"digits.py"', place)), packages, tmp_path)
    check = qtool.verify(tmp_path / "out" / "model.onnx")
    assert check.passed, check


def test_float_file_with_external_weights(packages: str, tmp_path: Path) -> None:
    run(float_file_workflow(tmp_path, save_as_external_data=True), packages, tmp_path)
    (path,) = (tmp_path / "out").rglob("*.onnx")
    assert len(list(path.parent.glob("*.data"))) == 1
    check = qtool.verify(path)
    assert check.passed, check


def test_a_wrong_option_ends_the_run_with_the_sentence(packages: str, tmp_path: Path) -> None:
    text = run(float_file_workflow(tmp_path, accuracy="most"), packages, tmp_path, rc=1)
    assert 'accuracy = "most" is unknown; known are fast, balanced, best' in text
