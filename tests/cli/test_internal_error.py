"""A bug of qtool: exit code 70, a traceback for the report, and nothing written."""

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


def _break(monkeypatch: pytest.MonkeyPatch, place: str, error: Exception) -> None:
    def raises(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(place, raises)


@pytest.mark.parametrize(("place", "arguments"), PLACES.values(), ids=PLACES)
def test_a_fault_anywhere_ends_with_70(
    place: str,
    arguments: tuple[str, ...],
    sample: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = sample.files()
    _break(monkeypatch, place, ERRORS[0])
    result = sample(*arguments, code=70)
    assert sample.files() == before
    for text in ("Traceback (most recent call last)", "versions: qtool", "command: "):
        assert text in result.stderr
    line = result.stderr.splitlines()[-1]
    assert line.startswith("Error: internal error, a bug in qtool: KeyError: 'h'; please report it")


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_every_kind_of_fault(
    error: Exception, sample: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    _break(monkeypatch, "qtool.inspect", error)
    result = sample("inspect", "digits.int8.onnx", code=70)
    assert result.stderr.splitlines()[-1].endswith("please report it with the lines above")
