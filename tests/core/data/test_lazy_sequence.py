"""Items of a sequence are made when they are read, each time."""

from qtool.blockwise.block_conversion import LazySequence


def test_items_and_slices() -> None:
    made = list[int]()

    def square(number: int) -> int:
        made.append(number)
        return number * number

    squares = LazySequence(square, range(5))
    assert len(squares) == 5
    odd = squares[1::2]
    assert not made
    assert list(odd) == [1, 9]
    assert squares[-1] == 16
    assert made == [1, 3, 4]
