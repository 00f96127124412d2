"""A mark of weights: equal for equal values, wherever and in whatever shape they are."""

import numpy as np

from qtool.core.weight_mark import weight_mark

DRAW = np.random.default_rng(0)
WEIGHTS = [DRAW.normal(size=s).astype(np.float32) for s in ((16, 8, 3, 3), (64, 32), (10, 4))]


def test_order_shape_and_what_is_no_weight_do_not_count() -> None:
    turned = [np.ascontiguousarray(w.T) for w in reversed(WEIGHTS)]
    assert weight_mark([*turned, np.arange(90)]) == weight_mark(WEIGHTS)
    assert weight_mark(WEIGHTS[:2]) == weight_mark(WEIGHTS)  # 40 elements are too few
    assert weight_mark(WEIGHTS[2:]) == ""


def test_one_bit_and_one_array_count() -> None:
    other = [w.copy() for w in WEIGHTS]
    other[1].view(np.uint32)[3, 5] ^= 1
    assert weight_mark(other) != weight_mark(WEIGHTS)
    assert weight_mark(WEIGHTS[1:]) != weight_mark(WEIGHTS)


def test_a_swap_of_values_between_arrays_counts() -> None:
    other = [w.copy() for w in WEIGHTS]
    other[0].flat[0], other[1].flat[0] = WEIGHTS[1].flat[0], WEIGHTS[0].flat[0]
    assert weight_mark(other) != weight_mark(WEIGHTS)
