"""A user's script passes a strict type checker, and does what its types say."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("typed_script.py")
STRICT = "--strict --config-file= --follow-imports=silent --ignore-missing-imports"
WRONG = {
    '"static", "fast"': '"statik", "fast"',
    "sizes: list[int]": "sizes: list[str]",
    "ignore=[": "ignored=[",
    "memory=1": "memorise=1",
}
SAID = ("\"Literal['statik']\"", 'expected "str"', 'argument "ignored"', 'argument "memorise"')


@pytest.mark.matrix
@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
def test_the_types(tmp_path: Path) -> None:
    text, wrong = SCRIPT.read_text("utf-8"), tmp_path / "wrong.py"
    for right, other in WRONG.items():
        assert right in text
        text = text.replace(right, other)
    wrong.write_text(text, "utf-8")
    cache = f"--cache-dir={tmp_path / 'cache'}"  # that of another run names its script
    command = [sys.executable, "-m", "mypy", *STRICT.split(), cache, str(SCRIPT), str(wrong)]
    child = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    errors = [line for line in child.stdout.splitlines() if ": error: " in line]
    assert {line.partition(":")[0] for line in errors} == {str(wrong)}, child.stdout
    assert all(any(said in error for error in errors) for said in SAID), child.stdout
    assert len(errors) == len(WRONG) + 1, child.stdout  # both sizes are no text


def test_the_script_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    child = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert not child.returncode, child.stderr
    assert "b.onnx [" in child.stdout
