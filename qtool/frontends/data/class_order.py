"""The order of class names that the user chooses: their numbers in the model's outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from qtool.core.argument_names import argument
from qtool.core.errors import DataError, describe
from qtool.core.paths import is_dir, is_file

CLASSES = "classes.txt"
"""File with a class name per line, in the folder of the data."""


def chosen_classes(path: Path, classes: str | Sequence[str] | None) -> Mapping[str, int] | None:
    """Return class name -> number; None where no order was chosen.

    Args:
        path: the data; its classes.txt counts where `classes` is None.
        classes: names in order; or as one text, separated by commas, or a file with one per line.

    Raises:
        DataError: the file cannot be read, or a name is missing or repeats.
    """
    source = path / CLASSES if classes is None and is_dir(path) else classes
    if isinstance(source, str | Path) and is_file(Path(source)):
        try:
            names = Path(source).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise DataError(f"{source} cannot be read as text: {describe(error)}") from error
    elif classes is None:
        return None
    else:
        names = classes.split(",") if isinstance(classes, str) else list(classes)
    names = [str(name).strip() for name in names]
    while names and not names[-1]:
        names.pop()
    odd = next((n for i, n in enumerate(names) if not n or n in names[:i]), None)
    if odd is not None or not names:
        what = "is empty" if not odd else f"names '{odd}' twice"
        raise DataError(
            f"the list of classes ({source}) {what}; give the name of each class once, in the "
            "order of the model's outputs"
        )
    return {name: number for number, name in enumerate(names)}


def check_names(labels: Sequence[int | str | None], numbers: Mapping[str, int]) -> None:
    """Check that labels are among the chosen classes.

    Raises:
        DataError: one is not.
    """
    names = {label for label in labels if isinstance(label, str)}
    if unknown := sorted(names - numbers.keys()):
        raise DataError(
            f"the label '{unknown[0]}' is none of the classes {', '.join(numbers)}; name all "
            f"classes of the data with {argument('--classes')}"
        )
