"""What to write for data of another form, in NumPy where torch is not installed."""

from typing import Any

import numpy as np
import pytest

from qtool.core import shape_remedies as remedies

LAST = np.ones((2, 8, 8, 3), np.float32)
CASES: list[tuple[str, str, Any, tuple[int, ...]]] = [
    ("float32", "uint8", np.full((2, 3, 4, 4), 255, np.uint8), (2, 3, 4, 4)),
    ("int64", "float32", np.ones((2, 3), np.float32), (2, 3)),
]


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remedies, "has_torch", lambda: False)


@pytest.mark.parametrize(("expected", "actual", "x", "shape"), CASES)
def test_types(expected: str, actual: str, x: Any, shape: tuple[int, ...]) -> None:
    (edit,) = remedies.type_remedies(expected, actual, x)
    made = eval(edit.code, {"x": x})
    assert (str(made.dtype), made.shape) == (expected, shape)


def test_channels_last() -> None:
    (edit,) = remedies.shape_remedies(("batch", 3, 8, 8), LAST.shape)
    assert eval(edit.code, {"x": LAST}).shape == (2, 3, 8, 8)
