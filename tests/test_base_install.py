"""The commands of an install without torch: here torch is hidden, in `.ci/lane base` there is none.

QTOOL_BASE_FILES names a folder that `python -m tests.base_files` wrote, where torch is missing.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.without_torch import HIDDEN_PACKAGES

ROOT = Path(__file__).parents[1]
NEEDS_TORCH = "needs torch, which is not installed; run pip install 'qtool-onnx[torch]'"
HAS_TORCH = find_spec("torch") is not None
ON_EVAL = "--data eval.npz --labels labels"
FAST = "--seconds 0.05"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
GATE = f"--against float.onnx {ON_EVAL} --metric top-1 --max-drop 0.05"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    if source := os.environ.get("QTOOL_BASE_FILES"):
        shutil.copytree(source, folder, dirs_exist_ok=True)
    else:
        from tests.base_files import write

        write(folder)
    return folder


def child(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the folder."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
        env=ENVIRONMENT,
    )


Command = Callable[[str], tuple[int, str]]


@pytest.fixture(scope="module")
def command(folder: Path) -> Iterator[Command]:
    """Exit code and output of a command in a process where torch cannot be imported."""
    script = [sys.executable, str(ROOT / "tests/without_torch.py"), "--cli"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(script, cwd=folder, env=ENVIRONMENT, **pipes) as process:

        def run(line: str) -> tuple[int, str]:
            process.stdin.write(json.dumps(line.split()) + "\n")
            process.stdin.flush()
            return tuple(json.loads(process.stdout.readline()))

        yield run
        process.stdin.close()


@pytest.mark.parametrize(
    ("arguments", "code", "lines"),
    [
        ("verify int8.onnx", 0, ("verified: by its self-test", "not compared: it needs torch")),
        ("verify int8.tflite", 0, ("verified: by its self-test", "unmodified since qtool")),
        ("verify damaged.onnx", 1, ("not verified", "modified since qtool wrote it")),
        ("verify int8.onnx --data eval.npz", 0, ("verified: by its self-test", "96 samples in b")),
        ("verify int8.tflite --data eval.npz", 2, (NEEDS_TORCH,)),
        ("verify float.onnx", 2, ("no quantized operator",)),
        (
            "verify other.onnx",
            0,
            ("in two settings", "257 samples in batches of 1 and 32", "--cpu"),
        ),
        ("verify other.onnx", 0, ("not compared: it needs torch", "emulate them with --cpu")),
        ("inspect int8.onnx", 0, ("100 % of", "self-test")),
        ("inspect report.json", 2, ("reading a calibration", NEEDS_TORCH)),
        ("bench float.onnx int8.onnx --data eval.npz --seconds 0.05", 0, ("2 files  on",)),
        (f"evaluate int8.onnx --model float.onnx {ON_EVAL} --seconds 0.05", 0, ("96 samples",)),
        (f"evaluate int8.onnx --model a:b {ON_EVAL}", 2, (NEEDS_TORCH, "no .onnx or .tflite")),
        (f"gate int8.onnx {GATE}", 0, ("accepted", "as planned", "98.96 % on 96 samples")),
        (f"gate int8.tflite {GATE}", 0, ("accepted", "as planned", "98.96 % on 96 samples")),
        (f"gate other.onnx {GATE}", 0, ("accepted", "98.96 % on 96 samples")),
        (f"gate damaged.onnx {GATE}", 1, ("regression", "modified")),
        (f"gate int8.onnx {GATE} --max-drop 0.004", 3, ("inconclusive", "samples would decide")),
        (f"compare float.onnx int8.onnx other.onnx {ON_EVAL} {FAST}", 0, ("39.1", "100 %", "best")),
        (f"compare float.onnx int8.tflite {ON_EVAL} {FAST} -o c", 0, ("LiteRT", "c/report.html")),
        (f"compare float.onnx int8.onnx {ON_EVAL} --eval os:getcwd", 2, ("os:getcwd failed on",)),
        (
            f"report int8.onnx --model float.onnx {ON_EVAL} {FAST} -o r",
            0,
            ("39.1 dB", "r/report.html"),
        ),
        ("report report.json -o again", 0, ("again/report.html",)),
        ("report report.json --batch-size 8 -o again", 2, ("--batch-size", "leave it out")),
        ("report int8.onnx --model float.onnx -o r", 2, ("Missing option", "--data")),
        (f"report int8.onnx {ON_EVAL} -o r", 2, ("Missing option", "--model")),
        (f"report int8.onnx --model a:b {ON_EVAL} -o r", 2, ("no .onnx or .tflite", NEEDS_TORCH)),
        ("quantize float.onnx --data eval.npz -o o.onnx", 2, ("qtool quantize", NEEDS_TORCH)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_commands(command: Command, arguments: str, code: int, lines: tuple[str, ...]) -> None:
    exit_code, output = command(arguments)
    assert exit_code == code, output
    assert all(line in output for line in lines), output


def test_the_program() -> None:
    """It is installed without torch in `.ci/lane base`."""
    shown = child(Path(), "-m", "qtool", "--help")
    assert (shown.returncode, "verify" in shown.stdout) == (0, True), shown.stderr


def test_reports_hold_what_was_measured(command: Command, folder: Path) -> None:
    arguments = f"report int8.onnx --model float.onnx {ON_EVAL} {FAST} -o whole --json"
    code, output = command(arguments)
    assert not code, output
    report = json.loads((folder / "whole" / "report.json").read_text())
    assert [m["name"] for m in report["models"]] == ["float", "int8"]
    assert report["models"][1]["exactness"] is None
    assert report["accuracy"]["samples"] == 96
    assert "layers are measured with a float model of torch" in report["layers_note"]
    (parity,) = [c for c in report["models"][1]["verdict"]["checks"] if c["name"] == "parity"]
    assert parity["level"] == "good"
    assert parity["text"].startswith("By its self-test")
    page = (folder / "whole" / "report.html").read_text()
    assert "Speed-up over the reference is" in page
    assert 'aria-label="Speed-up over the reference"' not in page  # drawn by matplotlib


def test_pages_of_stored_results_are_those_of_the_report(command: Command, folder: Path) -> None:
    code, output = command(f"compare float.onnx int8.onnx {ON_EVAL} {FAST} -o measured --json")
    assert not code, output
    (folder / "printed.json").write_text(json.dumps(json.JSONDecoder().raw_decode(output)[0]))
    for stored in ("measured/report.json", "printed.json"):
        code, output = command(f"report {stored} -o rendered")
        assert not code, output
        for page in ("report.json", "report.md", "report.html"):
            same = [(folder / name / page).read_bytes() for name in ("measured", "rendered")]
            assert same[0] == same[1], (stored, page)
    (folder / "list.json").write_text("[]")
    for stored, text in (("list.json", "not a report"), ("none.json", "cannot read none.json")):
        code, output = command(f"report {stored} -o rendered")
        assert code == 2, output
        assert text in output


def test_what_only_conversion_needs_is_not_required() -> None:
    """The other tests of this file run where these cannot be imported."""
    text = (ROOT / "pyproject.toml").read_text()  # Python 3.10 reads no TOML
    (block,) = re.findall(r"^dependencies = \[$(.*?)^\]$", text, re.DOTALL | re.MULTILINE)
    required = re.findall(r'^    "([\w-]+)', block, re.MULTILINE)
    assert "onnx" in required
    assert not {name.replace("_", "-") for name in HIDDEN_PACKAGES} & set(required)
    if not HAS_TORCH:
        own = {re.split(r"\W", line)[0] for line in requires("onnxruntime") or ()}
        assert {name for name in HIDDEN_PACKAGES if find_spec(name)} <= own  # 1.23 needs sympy


def test_a_gate_writes_for_other_programs(command: Command, folder: Path) -> None:
    more = "--junit j.xml --badge b.json --json"
    for file, outcome in (("int8", "accepted"), ("damaged", "regression"), ("int8", "accepted")):
        code, output = command(f"gate {file}.onnx {GATE} {more}")
        result = json.JSONDecoder().raw_decode(output)[0]
        assert (result["outcome"], result["exit_code"]) == (outcome, code)
        suite = ET.parse(folder / "j.xml").getroot()
        cases = suite.findall("testcase")
        assert {each.tag for each in suite} == {"properties", "testcase"}
        counts = (len(cases), *(sum(c.find(t) is not None for c in cases) for t in FAILED))
        assert counts == tuple(int(suite.attrib[n]) for n in ("tests", "failures", "errors"))
        assert [c.attrib["name"] for c in cases] == [c["name"] for c in result["checks"]]
        badge = json.loads((folder / "b.json").read_text())
        assert badge["message"].startswith(outcome)
        assert badge["schemaVersion"] == 1


FAILED = ("failure", "error")


HIDDEN = "import sys; sys.modules['torch'] = None; import qtool\n"


def test_a_missing_runtime_is_no_regression(folder: Path) -> None:
    script = (
        "from qtool.plugins.tflite import litert; litert.version = lambda: None\n"
        "qtool.gate('int8.tflite', 'float.onnx', [])"
    )
    error = child(folder, "-c", HIDDEN + script).stderr
    assert "InstallError: LiteRT, which runs TFLite files, is not installed" in error


FORMS = {
    "a dict of all samples": "{'x': x}",
    "an array of all samples": "x",
    "batches": "[x[:48], x[48:]]",
    "batches with labels": "[(x[:48], y[:48]), (x[48:], y[48:])]",
    "dicts": "[{'x': x, 'labels': y}]",
}


def test_data_has_any_form(folder: Path) -> None:
    """With torch, tests/evaluation/test_model_inputs.py has these and tensors."""
    script = (
        "import numpy as np; file = np.load('eval.npz'); x, y = file['x'], file['labels']\n"
        f"for data in ({', '.join(FORMS.values())}):\n"
        "    gate = qtool.gate('int8.onnx', 'float.onnx', data, y, metric='top-1', max_drop=0.1)\n"
        "    own = qtool.evaluate('int8.onnx', 'float.onnx', data, y, seconds=0)\n"
        "    assert str(gate.outcome) == 'accepted', gate\n"
        "    top1 = own.accuracy.metrics[0].values[1]\n"
        "    print(own.accuracy.samples, own.latency[0].batch, top1)\n"
        "metric = lambda outputs, labels: float((outputs.argmax(1) == labels).mean())\n"
        "own = qtool.evaluate('int8.onnx', 'float.onnx', x, y, function=metric, seconds=0)\n"
        "print(own.accuracy.metrics)\n"
        "print([x.shape for x in qtool.load_data('eval.npz', 48, labels='labels')])\n"
        "qtool.load_data('eval.npz', classes='a')"
    )
    result = child(folder, "-c", HIDDEN + script)
    *lines, metrics, shapes = result.stdout.splitlines()
    assert len(lines) == len(FORMS), result.stderr
    (line,) = set(lines)
    samples, _, accuracy = line.split()
    assert (samples, accuracy in metrics, "user" in metrics) == ("96", True, True)
    assert "pass labels to measure accuracy" not in result.stderr
    assert shapes.count("(48, ") == 2
    assert f"InstallError: classes of load_data {NEEDS_TORCH}" in result.stderr
