"""How numbers and tables are written."""

import pytest

from qtool.core import number_texts


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (number_texts.db(31.26), "31.3"),
        (number_texts.db(None), "no error"),
        (number_texts.percent(0.98765), "98.77 %"),
        (number_texts.percent(0.5, 0), "50 %"),
        (number_texts.percent(None), ""),
        (number_texts.size(999), "999 bytes"),
        (number_texts.size(165_888), "162 KiB"),
        (number_texts.size(2**20 - 1), "1.00 MiB"),
        (number_texts.size(3 * 2**19), "1.50 MiB"),
        (number_texts.size(11_880_448), "11.3 MiB"),
        (number_texts.size(5000 * 2**30), "5000 GiB"),
        (number_texts.share(1), "100 %"),
        (number_texts.share(0.99999), "99.9 %"),
        (number_texts.share(0.8065), "80.7 %"),
        (number_texts.share(0.00001), "0.1 %"),
        (number_texts.share(0), "0 %"),
        (number_texts.part(450, 450), "all 450"),
        (number_texts.part(1, 1), "1 of 1"),
        (number_texts.part(1, 1200), "1 of 1,200"),
        (number_texts.quantity(1, "sample"), "1 sample"),
        (number_texts.quantity(1200, "sample"), "1,200 samples"),
        (number_texts.count(999), "999"),
        (number_texts.count(1_234_567), "1.23 M"),
        (number_texts.times(2.345), "2.35x"),
        (number_texts.milliseconds(0.12345), "0.123 ms"),
        (number_texts.milliseconds(123.4), "123 ms"),
        (number_texts.milliseconds(2.0), "2.00 ms"),
        (number_texts.milliseconds(2345), "2.35 s"),
        (number_texts.general(None), ""),
        (number_texts.general(0.000123456), "0.0001235"),
    ],
)
def test_numbers(written: str, text: str) -> None:
    assert written == text


ROWS = [("a", "1", "x"), ("long", "100", "")]


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ((), ["        n  why", "a       1    x", "long  100"]),
        (("title", "lrl"), ["title", "        n  why", "a       1  x", "long  100"]),
    ],
    ids=["all but the first column stand right", "a title, and columns as asked"],
)
def test_tables(options: tuple[str, ...], lines: list[str]) -> None:
    assert number_texts.table(("", "n", "why"), ROWS, *options).splitlines() == lines
    assert number_texts.table(("a", "b"), []) == "a  b"


def test_a_row_of_another_length_is_a_bug() -> None:
    with pytest.raises(ValueError, match="zip"):
        number_texts.table(("a", "b"), [("1",)])
