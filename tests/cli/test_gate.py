"""qtool gate: exit codes, files for other programs, and the steps of the Action and of the hook."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import qtool
from tests.cli.conftest import DIGITS, ROOT, Cli

EVAL = ("--data", "examples/digits/eval.npz", "--labels", "labels")
yaml = pytest.importorskip("yaml")


@pytest.fixture(scope="module")
def float_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    weights, path = ROOT / DIGITS[2], tmp_path_factory.mktemp("float") / "float.onnx"
    model = qtool.load_model(DIGITS[0], weights)
    batch = next(iter(qtool.load_data(ROOT / "calib_data/digits")))
    return qtool.capture_model(model, batch).export_float(path).read_bytes()


@pytest.fixture
def files(sample: Cli, float_file: bytes) -> Cli:
    """The digits file, its float file, and one with a flipped bit."""
    Path("float.onnx").write_bytes(float_file)
    proto = onnx.load("digits.int8.onnx")
    codes = next(i for i in proto.graph.initializer if i.name.endswith("weight.codes"))
    codes.raw_data = bytes([codes.raw_data[0] ^ 1, *codes.raw_data[1:]])
    onnx.save(proto, "flipped.onnx")
    return sample


def test_the_example_and_what_it_writes(files: Cli) -> None:
    words = files.example_of("gate")
    more = ("--junit", "j.xml", "--badge", "b.json", "--markdown", "m.md")
    assert "accepted" in files(*words, *more).stdout
    assert json.loads(Path("b.json").read_text())["color"] == "brightgreen"
    assert "| top-1 | accepted |" in Path("m.md").read_text()
    assert '<testsuite name="qtool gate"' in Path("j.xml").read_text()
    document = json.loads(files(*words, "--json").stdout)
    assert document["outcome"] == "accepted"


def test_swapped_files_are_not_comparable(files: Cli) -> None:
    """And what an earlier run wrote is gone where this one ends in an error."""
    own = ("--markdown", "m.md", *EVAL)
    result = files("gate", "float.onnx", "--against", "digits.int8.onnx", *own, code=4)
    assert "float.onnx is not quantized, and digits.int8.onnx is" in result.stdout
    assert "the other way round" in Path("m.md").read_text()
    files("gate", "none.onnx", "--against", "float.onnx", *own, code=2)
    assert not Path("m.md").exists()


def shell(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script as the shell of a runner does, with qtool installed as the action does."""
    path = folder / "qtool" / "bin"
    path.mkdir(parents=True, exist_ok=True)
    for name, words in (("qtool", "-m qtool"), ("python", "")):
        program = path / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
        program.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RUNNER_TEMP": str(folder)}
    environment["PATH"] = f"{path}:{os.environ['PATH']}"
    return subprocess.run(
        [shutil.which("bash") or "bash", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def run_action(files: Cli, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the step of the action that has the gate, with the variables of a runner."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    _, gate = action["runs"]["steps"]
    defaults = {
        name: action["inputs"][value.split("inputs.")[1].rstrip(" }")].get("default", "")
        for name, value in gate["env"].items()
    }
    own = {"FILE": "digits.int8.onnx", "AGAINST": "float.onnx", "DATA": "examples/digits/eval.npz"}
    own |= {"METRIC": "top-1", "ARGS": "--labels labels", "GITHUB_OUTPUT": "output"}
    return shell(
        gate["run"],
        files.folder,
        **{**defaults, **own, "GITHUB_STEP_SUMMARY": "summary"} | variables,
    )


SLOW = "--seconds 0.01\n--min-speedup 500"  # no file is


@pytest.mark.parametrize(
    ("variables", "code", "outcome"),
    [
        ({}, 0, "accepted"),
        ({"FILE": "flipped.onnx"}, 1, "regression"),
        ({"FILE": "--help"}, 2, "error"),  # a file of that name, which is no model
        ({"ARGS": f"\n--labels labels\n\n{SLOW}\n"}, 1, "regression"),
        ({"ARGS": "--help"}, 2, "error"),
    ],
)
def test_the_steps_of_the_action(
    files: Cli, variables: dict[str, str], code: int, outcome: str
) -> None:
    Path("gate.log").write_text("of the user")
    Path("--help").write_text("no model")
    result = run_action(files, **variables)
    assert result.returncode == code, result.stdout + result.stderr
    outputs = dict(line.split("=", 1) for line in Path("output").read_text().splitlines())
    assert outputs.pop("outcome") == outcome
    assert Path("gate.log").read_text() == "of the user"
    if outcome != "error":
        assert f"### qtool gate: {outcome}\n" in Path("summary").read_text()
        assert Path("qtool-gate.xml").is_file()
        assert set(outputs) == {"metric", "drop", "low", "high"}
    if outcome == "accepted":
        assert outputs["metric"] == "top-1"
        assert float(outputs["low"]) <= float(outputs["drop"]) <= float(outputs["high"])


@pytest.mark.matrix  # downloads packages
def test_the_action_installs_qtool_in_an_environment_of_its_own(tmp_path: Path) -> None:
    install, _ = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    environment = {**os.environ, "RUNNER_TEMP": str(tmp_path), "GITHUB_ACTION_PATH": str(ROOT)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["bash", "-eo", "pipefail", "-c", install["run"]], env=environment, check=True)
    program = tmp_path / "qtool" / "bin" / "qtool"
    assert str(tmp_path) in program.read_text().splitlines()[0]  # no environment of the user
    help_ = subprocess.run([program, "gate", "--help"], capture_output=True, text=True, check=True)
    assert "--against" in help_.stdout


def test_what_is_read_is_not_overwritten(files: Cli) -> None:
    Path("folder").mkdir()
    shutil.copy("examples/digits/eval.npz", "folder/eval.npz")
    words = ("gate", "digits.int8.onnx", "--against", "float.onnx")
    for option in ("--junit", "--badge", "--markdown"):
        for data, file in (("folder", "folder/eval.npz"), ("folder/eval.npz",) * 2):
            result = files(*words, "--data", data, option, file, code=2)
            assert "is an input" in result.stderr


def test_the_hook(files: Cli) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    arguments = ["digits.int8.onnx", "--against", "float.onnx", *EVAL, "--max-drop", "0.02"]
    result = shell(f"{hook['entry']} {shlex.join(arguments)}", files.folder)
    assert result.returncode == 0, result.stderr
    assert not hook["pass_filenames"]
