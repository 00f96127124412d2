"""Wrong command lines have an error that names what is wrong, and remedies that work."""

import pytest

from tests.mistakes.mistake import cases, check_refused, check_remedies
from tests.mistakes.remedies import rows

M = "tests.mistakes.nets"
N, D = f"quantize {M}:image_net", f"--data {M}:images"
WORDS = {
    "M": M,
    "C": "tests.cli.models",
    "N": N,
    "D": D,
    "Q": f"{N} {D} -o out.onnx",
    "T": f"tune {M}:image_net {D} --eval-data {M}:images -o out.onnx",
    "LONG": "x" * 300,
    "DIGITS": "9" * 5000,
    "NUL": "\0",
}
"""Short form in a table -> what it stands for."""


def spelled(cells: list[str]) -> list[str]:
    """Return the cells of a row with the words in place of their short forms."""
    return [cell.format(**WORDS) for cell in cells]


COMMANDS = [spelled(row) for row in rows("commands.txt")]


@pytest.mark.usefixtures("here")
@cases(COMMANDS)
def test_a_wrong_command(mistake: str, kind: str, names: str) -> None:
    check_remedies(mistake, check_refused(mistake, kind, names))
