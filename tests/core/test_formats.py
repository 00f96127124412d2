"""How numbers and tables are written."""

import pytest

from qtool.core import formats


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (formats.db(31.26), "31.3"),
        (formats.db(None), "no error"),
        (formats.percent(0.98765), "98.77 %"),
        (formats.percent(0.5, 0), "50 %"),
        (formats.percent(None), ""),
        (formats.size(999), "999 bytes"),
        (formats.size(165_888), "162 KiB"),
        (formats.size(2**20 - 1), "1.00 MiB"),
        (formats.size(3 * 2**19), "1.50 MiB"),
        (formats.size(11_880_448), "11.3 MiB"),
        (formats.size(5000 * 2**30), "5000 GiB"),
        (formats.share(1), "100 %"),
        (formats.share(0.99999), "99.9 %"),
        (formats.share(0.8065), "80.7 %"),
        (formats.share(0.00001), "0.1 %"),
        (formats.share(0), "0 %"),
        (formats.part(450, 450), "all 450"),
        (formats.part(1, 1), "1 of 1"),
        (formats.part(1, 1200), "1 of 1,200"),
        (formats.quantity(1, "sample"), "1 sample"),
        (formats.quantity(1200, "sample"), "1,200 samples"),
        (formats.count(999), "999"),
        (formats.count(1_234_567), "1.23 M"),
        (formats.times(2.345), "2.35x"),
        (formats.milliseconds(0.12345), "0.123 ms"),
        (formats.milliseconds(123.4), "123 ms"),
        (formats.milliseconds(2.0), "2.00 ms"),
        (formats.milliseconds(2345), "2.35 s"),
        (formats.general(None), ""),
        (formats.general(0.000123456), "0.0001235"),
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
    assert formats.table(("", "n", "why"), ROWS, *options).splitlines() == lines
    assert formats.table(("a", "b"), []) == "a  b"


def test_a_row_of_another_length_is_a_bug() -> None:
    with pytest.raises(ValueError, match="zip"):
        formats.table(("a", "b"), [("1",)])
