"""Which weights meet in a 16-bit sum."""

import torch

from qtool.core.weight_pairs import (
    channel_pairs,
    consecutive_pairs,
    excess,
    is_depthwise,
    saturating_pairs,
)


def named(shape: tuple[int, ...], pairs: torch.Tensor) -> list[tuple[tuple[int, int], ...]]:
    """Pairs as (channel, position)."""
    positions = int(torch.tensor(shape[2:]).prod()) if shape[2:] else 1
    return [tuple(divmod(int(i), positions) for i in pair) for pair in pairs]


def test_a_linear_layer_pairs_neighbouring_inputs() -> None:
    assert consecutive_pairs((7, 5)).tolist() == [[0, 1], [2, 3]]
    assert channel_pairs((7, 5)).tolist() == [[0, 1], [2, 3]]


def test_even_channels_pair_within_each_position() -> None:
    shape = (8, 4, 1, 2)
    expected = [((0, 0), (1, 0)), ((2, 0), (3, 0)), ((0, 1), (1, 1)), ((2, 1), (3, 1))]
    assert named(shape, consecutive_pairs(shape)) == expected
    assert named(shape, channel_pairs(shape)) == expected
    assert len(saturating_pairs(shape)) == 4


def test_odd_channels_reach_into_the_next_position() -> None:
    shape = (8, 3, 1, 2)
    assert named(shape, consecutive_pairs(shape)) == [
        ((0, 0), (1, 0)),
        ((2, 0), (0, 1)),
        ((1, 1), (2, 1)),
    ]
    assert named(shape, channel_pairs(shape)) == [((0, 0), (1, 0)), ((0, 1), (1, 1))]
    assert len(saturating_pairs(shape)) == 4


def test_depthwise_convolutions_have_none() -> None:
    assert is_depthwise((6, 1, 3, 3), 6)
    assert not is_depthwise((12, 1, 3, 3), 6)
    assert not is_depthwise((6, 1), 6)
    assert not len(saturating_pairs((6, 1, 3, 3), 6))
    assert len(consecutive_pairs((12, 1, 3, 3), 6)) == 4


def test_excess_counts_weights_of_one_sign() -> None:
    weight = torch.tensor([[127, 127], [127, -127], [-100, -29], [-100, -28]], dtype=torch.int8)
    assert excess(weight, consecutive_pairs(weight.shape)).tolist() == [[126], [0], [1], [0]]
