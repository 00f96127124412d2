"""Files are read, verified, run, timed, measured and shown where torch cannot be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import qtool
from qtool.core.text_files import read_toml_or_json
from tests import without_torch
from tests.backends.onnx.export.networks import float_file, network, quantized, samples
from tests.evaluation.report.page.made_up import made_up

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
NEEDS_TORCH = "needs torch, which is not installed; run pip install 'qtool-onnx[torch]'"
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
    for name, change in (("damaged", _damage), ("other", _without_metadata)):
        proto = onnx.load(folder / "int8.onnx")
        change(proto)
        onnx.save(proto, folder / f"{name}.onnx")
    np.save(folder / "x.npy", samples("residual", 8)[0].numpy())
    return folder


def _damage(proto: onnx.ModelProto) -> None:
    """Flip a bit of a weight."""
    codes = next(i for i in proto.graph.initializer if i.name.endswith("weight.codes"))
    codes.raw_data = bytes([codes.raw_data[0] ^ 1, *codes.raw_data[1:]])


def _without_metadata(proto: onnx.ModelProto) -> None:
    """Make the file that of another tool."""
    del proto.metadata_props[:]
    proto.producer_name = "other"


def test_everything_is_as_it_is_with_torch(folder: Path) -> None:
    script = [sys.executable, without_torch.__file__, str(folder), *torch_free_modules()]
    child = subprocess.run(script, capture_output=True, text=True, cwd=ROOT, check=False)
    assert not child.returncode, child.stderr
    alone = json.loads(child.stdout)
    assert alone == json.loads(json.dumps(without_torch.results(folder)))
    for name in without_torch.FILES:
        check = alone["files"][name]["self-test"]
        assert "unmodified since qtool wrote it" in check
        assert "integer tensors as planned" in check
    assert alone["files"]["int8.onnx"]["codes"] is not None


def command(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a command where torch cannot be imported."""
    script = [sys.executable, without_torch.__file__, "--cli", *arguments]
    child = subprocess.run(
        script, capture_output=True, text=True, cwd=folder, check=False, env=ENVIRONMENT
    )
    return child.returncode, child.stdout + child.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "lines"),
    [
        ("verify int8.onnx", 0, ("verified: by its self-test", "not compared: it needs torch")),
        ("verify int8.tflite", 0, ("verified: by its self-test", "unmodified since qtool")),
        ("verify damaged.onnx", 1, ("not verified", "modified since qtool wrote it")),
        ("verify int8.onnx --data x.npy", 2, (NEEDS_TORCH,)),
        ("verify float.onnx", 2, ("no quantized operator",)),
        ("verify other.onnx", 2, ("other.onnx has no self-test; a comparison", NEEDS_TORCH)),
        ("inspect int8.onnx", 0, ("100 % of", "self-test")),
        ("bench float.onnx int8.onnx --data x.npy --seconds 0.05", 0, ("2 files  on",)),
        ("evaluate int8.onnx --model float.onnx --data x.npy --seconds 0.05", 0, ("8 samples",)),
        ("gate int8.onnx --against float.onnx --data x.npy", 4, ("as planned", "answers class 0")),
        ("gate damaged.onnx --against float.onnx --data x.npy", 1, ("regression", "modified")),
        ("gate int8.tflite --against float.onnx --data x.npy", 4, ("as planned", "on all samples")),
        ("evaluate int8.onnx --model a:b --data x.npy", 2, (NEEDS_TORCH, "no .onnx or .tflite")),
        ("quantize float.onnx --data x.npy -o o.onnx", 2, ("qtool quantize", NEEDS_TORCH)),
        ("inspect report.json", 2, ("reading a calibration", NEEDS_TORCH)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_commands(folder: Path, arguments: str, code: int, lines: tuple[str, ...]) -> None:
    assert not isinstance(lines, str)
    exit_code, output = command(folder, *arguments.split())
    assert exit_code == code, output
    assert all(line in output for line in lines), output


def test_an_evaluation_is_that_with_torch(folder: Path) -> None:
    arguments = ("evaluate", "int8.onnx", "--model", "float.onnx", "--data", "x.npy")
    code, output = command(folder, *arguments, "--seconds", "0.05", "--json")
    assert not code, output
    alone, _ = json.JSONDecoder().raw_decode(output)
    data = [torch.from_numpy(x) for (x,) in without_torch.batches(folder)]
    model = qtool.load_onnx(folder / "float.onnx")
    whole = qtool.evaluate(folder / "int8.onnx", model, data, seconds=0.05, other_model=True)
    names = ("samples", "agreement", "sqnr_db", "scores")
    assert {n: alone[n] for n in names} == {n: getattr(whole, n) for n in names}
    assert alone["int8"]["size_bytes"] == whole.int8.size_bytes


def test_data_is_loaded_as_arrays(folder: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None; import qtool; "
        "print([x.shape for x in qtool.load_data('x.npy', 4)]); "
        "qtool.load_data('x.npy', classes='a')"
    )
    child = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
        env=ENVIRONMENT,
    )
    assert child.stdout.count("(4, ") == 2, child.stderr
    assert f"InstallError: classes of load_data {NEEDS_TORCH}" in child.stderr


def test_public_names_are_listed_before_they_are_imported() -> None:
    assert set(qtool.__all__) <= set(dir(qtool))
