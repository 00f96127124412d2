"""What to write for data of another form, in NumPy where torch is not installed."""

from typing import Any

import numpy as np
import pytest

from qtool.core import shape_remedies as remedies

GREY = np.ones((2, 1, 8, 8), np.float32)
LAST = np.ones((2, 8, 8, 3), np.float32)
CASES: list[tuple[str, str, Any, tuple[int, ...]]] = [
    ("float32", "uint8", np.full((2, 3, 4, 4), 255, np.uint8), (2, 3, 4, 4)),
    ("int64", "float32", np.ones((2, 3), np.float32), (2, 3)),
    ("uint8", "float32", np.full((2, 3), 0.5, np.float32), (2, 3)),
    ("uint8", "int8", np.full((2, 3), -5, np.int8), (2, 3)),
    ("uint8", "float32", np.full((2, 3), 200.4, np.float32), (2, 3)),
]


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remedies, "has_torch", lambda: False)


@pytest.mark.parametrize(("expected", "actual", "x", "shape"), CASES)
def test_types(expected: str, actual: str, x: Any, shape: tuple[int, ...]) -> None:
    (edit,) = remedies.type_remedies(expected, actual, x)
    made = eval(edit.code, {"x": x})
    assert (str(made.dtype), made.shape) == (expected, shape)


@pytest.mark.parametrize(
    ("x", "size"), [(LAST, (3, 8, 8)), (GREY, (3, 8, 8)), (GREY.repeat(4, 1), (3, 8, 8))]
)
def test_shapes(x: Any, size: tuple[int, ...]) -> None:
    (edit,) = remedies.shape_remedies(("batch", *size), x.shape)
    assert eval(edit.code, {"x": x}).shape == (2, *size)


def test_another_size_has_no_expression() -> None:
    (edit,) = remedies.shape_remedies(("batch", 1, 16, 12), GREY.shape)
    assert str(edit) == "resize the images to 16 x 12 as the training did"
