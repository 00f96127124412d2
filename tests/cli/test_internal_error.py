"""A bug of qtool: exit code 70, one sentence, a file for the report, and nothing written."""

import re
from pathlib import Path

import pytest

from qtool.core.errors import PassError
from tests.cli.conftest import DIGITS, Cli

M = "tests.cli.models:"
QUANTIZE = ("quantize", f"{M}transposed", "--data", f"{M}images", "-o", "out.onnx")
PLACES = {
    "the load of the model": ("qtool.frontends.load_model.load_model", QUANTIZE),
    "calibration": ("qtool.calibration.collect.insert_points", QUANTIZE),
    "verification": ("qtool.backends.onnxruntime.planned_export.check_correctness", QUANTIZE),
    "evaluation": (
        "qtool.api.evaluation.evaluate_files",
        ("evaluate", "digits.int8.onnx", "--model", *DIGITS, "--data", "calib_data/digits"),
    ),
    "inspect": ("qtool.inspect", ("inspect", "digits.int8.onnx")),
}
ERRORS = (KeyError("h"), RuntimeError("two\nlines"), RecursionError(), PassError("a contract"))


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the file of a report is written to."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.delenv("QTOOL_DEBUG", raising=False)
    return folder


def _break(monkeypatch: pytest.MonkeyPatch, place: str, error: Exception) -> None:
    def raises(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(place, raises)


@pytest.mark.parametrize(("place", "arguments"), PLACES.values(), ids=PLACES)
def test_a_fault_anywhere_ends_with_70(
    place: str,
    arguments: tuple[str, ...],
    sample: Cli,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = sample.files()
    _break(monkeypatch, place, ERRORS[0])
    result = sample(*arguments, code=70)
    assert sample.files() == before
    assert "Traceback" not in result.output
    line = result.stderr.splitlines()[-1]
    assert line.startswith("Error: internal error, a bug in qtool: KeyError: 'h'; please report it")
    (file,) = re.findall(r"attach (\S+)", line)
    text = Path(file).read_text()
    assert Path(file).parent == temporary
    assert "Traceback (most recent call last)" in text
    assert "versions: qtool" in text
    assert "command: " in text


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_every_kind_of_fault(
    error: Exception, sample: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    _break(monkeypatch, "qtool.inspect", error)
    result = sample("inspect", "digits.int8.onnx", code=70)
    assert len(result.stderr.splitlines()) == 1


def test_the_traceback_is_printed_on_request(sample: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QTOOL_DEBUG", "1")
    _break(monkeypatch, "qtool.inspect", KeyError("h"))
    assert "Traceback (most" in sample("inspect", "digits.int8.onnx", code=70).stderr


def test_without_a_folder_for_the_file_it_is_still_one_sentence(
    sample: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    _break(monkeypatch, "qtool.inspect", KeyError("h"))
    _break(monkeypatch, "tempfile.mkstemp", OSError(28, "No space left on device"))
    result = sample("inspect", "digits.int8.onnx", code=70)
    assert "please report it with what QTOOL_DEBUG=1 prints" in result.stderr
