"""Schemes: what is asked for, what is offered, and how they read."""

from itertools import product

import pytest

from qtool.core.schemes import SCHEMES, Scales, Scheme, When
from qtool.core.types import INT4, INT8_NARROW, UINT4, UINT8, UINT16

OFFERED = tuple(
    s.with_defaults(UINT8, INT8_NARROW)
    for s in (
        Scheme(),
        Scheme(activations=UINT16),
        Scheme(weights=INT4),
        Scheme(When.NEVER),
        Scheme(When.NEVER, weights=UINT4, scales=32),
        Scheme(When.NEVER, weights=UINT4, scales=64),
    )
)
ASKED: dict[str, tuple[Scheme, Scheme | None]] = {
    "nothing but when": (Scheme(), Scheme(When.STATIC, UINT8, INT8_NARROW, Scales.CHANNEL)),
    "activations": (Scheme(activations=UINT16), OFFERED[1]),
    "weights": (Scheme(weights=INT4), OFFERED[2]),
    "two parts that are not offered together": (Scheme(activations=UINT16, weights=INT4), None),
    "another time": (Scheme(When.DYNAMIC), None),
    "the first that fits": (Scheme(When.NEVER, weights=UINT4), OFFERED[4]),
    "a block": (Scheme(When.NEVER, scales=64), OFFERED[5]),
    "another block": (Scheme(When.NEVER, scales=128), None),
    "for each channel": (Scheme(scales=Scales.CHANNEL), OFFERED[0]),
    "for each tensor": (Scheme(scales=Scales.TENSOR), None),
}


@pytest.mark.parametrize(("asked", "expected"), ASKED.values(), ids=ASKED.keys())
def test_the_first_scheme_that_fits_is_taken(asked: Scheme, expected: Scheme | None) -> None:
    assert asked.first_match(OFFERED) == expected


def test_what_is_left_open_is_the_targets() -> None:
    assert Scheme(weights=INT4).with_defaults(UINT8, INT8_NARROW) == Scheme(
        When.STATIC, UINT8, INT4, Scales.CHANNEL
    )
    everything = Scheme(When.NEVER, UINT16, UINT4, 32)
    assert everything.with_defaults(UINT8, INT8_NARROW) == everything


def test_an_operator_without_weights_is_asked_for_a_type_alone() -> None:
    asked = Scheme(When.DYNAMIC, UINT16, INT4, 32)
    assert asked.activations_only == Scheme(activations=UINT16)


TEXTS = {
    Scheme(): "static",
    Scheme(When.NEVER, weights=UINT4, scales=32): "int4-weights",
    Scheme(activations=UINT16): "uint16 activations",
    Scheme(When.DYNAMIC, weights=INT4): "dynamic, int4 weights",
    Scheme(weights=INT4, scales=32): "int4 weights, a scale for each 32 weights",
    Scheme(scales=Scales.TENSOR): "a scale for each tensor",
}


@pytest.mark.parametrize(("scheme", "text"), TEXTS.items(), ids=TEXTS.values())
def test_a_scheme_reads_as_text(scheme: Scheme, text: str) -> None:
    assert str(scheme) == text


def test_no_two_names_mean_the_same() -> None:
    assert all(a == b or x != y for (a, x), (b, y) in product(SCHEMES.items(), repeat=2))
