"""Random inputs have sizes that fit each other."""

import numpy as np
import pytest

from qtool.core.random_inputs import Input, calls_with_cache, random_inputs, sizes

CACHE = Input("past_key_values.0.key", "float32", ("batch", 2, "past", 4))


def decoder(mask_length: str) -> list[Input]:
    return [
        Input("input_ids", "int64", ("batch", "new")),
        Input("attention_mask", "int64", ("batch", mask_length)),
        CACHE,
    ]


@pytest.mark.parametrize("length", ["past + new", "new + past", "total", "past_len + new_len"])
def test_an_attention_mask_covers_cached_and_new_tokens(length: str) -> None:
    ids, mask, cache = sizes(decoder(length), 3)
    assert mask == (3, cache[2] + ids[1])
    assert ids[1] != cache[2]


def test_a_prompt_and_a_step() -> None:
    calls = calls_with_cache(decoder("total"), tokens=5)
    assert [sizes(decoder("total"), 1, known) for known in calls.values()] == [
        [(1, 5), (1, 5), (1, 2, 0, 4)],
        [(1, 1), (1, 5), (1, 2, 4, 4)],
    ]
    assert calls_with_cache([Input("x", "float32", ("batch", 3))]) == {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("2*h", 16),
        ("h//2 - 1", 3),
        ("floor(h)", 16),
        ("h.0", 16),
        ("(", 16),
        ("__import__('os')", 16),
    ],
)
def test_expressions_of_sizes(name: str, expected: int) -> None:
    inputs = [Input("x", "float32", ("batch", "h")), Input("y", "float32", ("batch", name))]
    assert sizes(inputs, 2) == [(2, 8), (2, expected)]


def test_values_by_type() -> None:
    inputs = [
        Input("attention_mask", "int64", ("batch", "tokens")),
        Input("codes", "int8", ("batch", 500)),
        Input("ids", "int64", ("batch", 500)),
        Input("flags", "bool", ("batch",)),
    ]
    generator = np.random.default_rng(0)
    mask, codes, ids, flags = random_inputs(inputs, 4, generator, {"ids": (0, 30)})
    assert mask.shape == (4, 8)
    assert (mask == 1).all()
    assert (codes.min(), codes.max()) == (-128, 127)
    assert (ids.min(), ids.max()) == (0, 30)
    assert flags.dtype == bool
