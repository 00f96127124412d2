"""The headline of `qtool verify`: that of `passed`, with what was and was not compared."""

from __future__ import annotations

import pytest

from qtool.verification import FileCheck
from qtool.verification.self_check import SelfCheck

CLOSE = FileCheck(1, 1000, 999, 8.77e-06, "layer", 3)
CASES = {
    "identical": (FileCheck(1, 1000, 1000, 0.0, None, 0), "verified"),
    "float nodes round": (
        CLOSE,
        (
            "verified: integer kernels bit for bit; float nodes differ in the last bits, by "
            "8.8e-06 codes"
        ),
    ),
    "a wrong kernel": (FileCheck(1, 10, 9, 1.0, "layer", 3, ("layer",)), "not verified"),
    "no float node": (FileCheck(1, 10, 9, 1.0, "layer", 0), "not verified"),
    "modified": (
        FileCheck(1, 10, 10, 0.0, None, 0, self_test=SelfCheck(True, unmodified=False)),
        "not verified",
    ),
    "another CPU": (
        FileCheck(1, 10, 10, 0.0, None, 0, other_target="onnxruntime-arm"),
        "verified on this CPU alone, which onnxruntime-arm is not for",
    ),
    "no program": (
        FileCheck(0, 0, 0, 0.0, None, 0, not_compared="no kernel"),
        "verified: by its self-test; the engine was not compared",
    ),
}


@pytest.mark.parametrize(("check", "headline"), CASES.values(), ids=CASES)
def test_the_headline_is_that_of_passed(check: FileCheck, headline: str) -> None:
    summary = check.summary("model.onnx")
    assert summary.text == headline
    assert check.passed is headline.startswith("verified")
