"""Numbers of class names in the outputs: in the order that the user chooses, or the model's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qtool.core.argument_names import argument
from qtool.core.errors import DataError, errors_as
from qtool.core.log import log_note, log_warning
from qtool.core.paths import is_dir, is_file
from qtool.core.remedies import Argument, DataEdit
from qtool.core.types import Array
from qtool.core.user_code import attribute
from qtool.frontends.data.rows import Row

CLASSES = "classes.txt"
"""File with a class name per line, in the folder of the data."""
_PLACEHOLDER = re.compile(r"LABEL_\d+")  # of transformers, for classes without names
_WORDNET = re.compile(r"n\d{8}")
_SHOWN = 5  # names in a message
_LISTED = 20  # classes in the note on their order


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
        with errors_as(DataError, f"{source} cannot be read as text", of=(OSError, ValueError)):
            names = Path(source).read_text(encoding="utf-8").splitlines()
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
            f"the list of classes ({source}) {what}",
            DataEdit("give the name of each class once, in the order of the model's outputs"),
        )
    return {name: number for number, name in enumerate(names)}


def check_names(labels: Sequence[int | float | str | None], numbers: Mapping[str, int]) -> None:
    """Check that labels are among the chosen classes.

    Raises:
        DataError: one is not.
    """
    names = {label for label in labels if isinstance(label, str)}
    if unknown := sorted(names - numbers.keys()):
        raise DataError(
            f"the label '{unknown[0]}' is none of the classes {', '.join(numbers)}",
            Argument("--classes", text="name all classes of the data with {}"),
        )


def class_numbers(rows: Sequence[Row], numbers: Mapping[str, int]) -> Array | None:
    """Return class numbers, int64 [samples], or float64 numbers to predict; None if a row has none.

    The chosen or the model's numbers come first, then names that are numbers, then the alphabetical
    order of the names, as in torchvision's ImageFolder: where the model's classes have no names,
    and for the numbers of WordNet that ImageNet's folders are called by. This order is a guess, and
    a note lists it. Other names are no labels of this model; there is a warning then.
    """
    names = [r.label for r in rows]
    if any(n is None for n in names):
        return None
    if any(isinstance(n, float) for n in names) and not any(isinstance(n, str) for n in names):
        return np.array(names, np.float64)
    texts = [str(n) for n in names]
    if set(texts) <= numbers.keys():
        return np.array([numbers[t] for t in texts], np.int64)
    if all(t.lstrip("-").isdigit() for t in texts):
        return np.array([int(t) for t in texts], np.int64)
    own = [name for name in numbers if not _PLACEHOLDER.fullmatch(name)]
    if own and not all(_WORDNET.fullmatch(t) for t in texts):
        unknown = next(t for t in texts if t not in numbers)
        more = ", ..." if len(own) > _SHOWN else ""
        log_warning(
            f"no accuracy: the label '{unknown}' is none of the model's classes "
            f"({', '.join(own[:_SHOWN])}{more}); write those names, or class numbers from 0"
        )
        return None
    order = {t: i for i, t in enumerate(sorted(set(texts)))}
    listed = [f"{name}={number}" for name, number in order.items()]
    shown = listed if len(listed) <= _LISTED else [*listed[: _LISTED - 1], "...", listed[-1]]
    log_note(
        f"labels are class names in alphabetical order: {', '.join(shown)}; if the model's order "
        f"is another one, give it with {argument('--classes')} or in classes.txt in the folder"
    )
    return np.array([order[t] for t in texts], np.int64)


def numbers_of_names(names: Array, path: Path, classes: str | None, model: Any) -> Array | None:
    """Return the class numbers of names in an array, see `class_numbers`.

    Args:
        names: [samples] texts.
        path: the data.
        classes: as for `chosen_classes`.
        model: its configuration may name its classes.

    Raises:
        DataError: a name is none of the chosen classes.
    """
    order = chosen_classes(path, classes)
    rows = [Row(label=str(name)) for name in names.reshape(-1)]
    if order is not None:
        check_names([row.label for row in rows], order)
    return class_numbers(rows, model_classes(model) if order is None else order)


def model_classes(model: Any) -> Mapping[str, int]:
    """Return class name -> number from the model's configuration."""
    numbers = attribute(model, "config", "label2id")
    return {str(k): int(v) for k, v in numbers.items()} if isinstance(numbers, Mapping) else {}
