"""What a user can do about an error, as values: the error makes its sentence of them.

A remedy is a change after which the same command or call works, or reports another true error.
`tests/mistakes/test_remedies*.py`, `test_*_edits.py` and `test_other_files.py` apply them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qtool.core.argument_names import argument


@dataclass(frozen=True)
class Argument:
    """An argument to pass.

    Attributes:
        name: its name on the command line, as for `argument`.
        value: value to pass; None: the user's choice.
        text: clause in the imperative; {} is the argument as the user spells it.
    """

    name: str
    value: object = None
    text: str = "give {}"

    def __str__(self) -> str:
        return self.text.replace("{}", argument(self.name, self.value))


@dataclass(frozen=True)
class Omission:
    """An argument to leave out.

    Attributes:
        name: its name on the command line.
        text: as in `Argument`.
    """

    name: str
    text: str = "leave out {}"

    def __str__(self) -> str:
        return self.text.replace("{}", argument(self.name))


@dataclass(frozen=True)
class DataEdit:
    """A change of the data.

    Attributes:
        text: clause in the imperative; {} is the code.
        code: Python expression of a tensor x of a batch, which makes a tensor that the model
            takes; "" where the change is not one of code.
    """

    text: str
    code: str = ""

    def __str__(self) -> str:
        return self.text.replace("{}", self.code)


@dataclass(frozen=True)
class _Clause:
    text: str

    def __str__(self) -> str:
        return self.text


class ModelEdit(_Clause):
    """A change of the model's code, for users whose code it is, or of what the model is."""


class CallEdit(_Clause):
    """Another call or command, or a change of code that qtool calls: a function, a registration."""


class OtherFile(_Clause):
    """Another file or folder in place of one, the same made again, changed, or removed."""


@dataclass(frozen=True)
class Package:
    """A package to install; {} in the text is its name."""

    name: str
    text: str = "pip install {}"

    def __str__(self) -> str:
        return self.text.replace("{}", self.name)


class Setup(_Clause):
    """A change of what runs: processes, variables of the environment, programs of the system."""


Remedy = Argument | Omission | DataEdit | ModelEdit | CallEdit | OtherFile | Package | Setup


def sentence_with(message: str, remedies: Sequence[Remedy]) -> str:
    """Return a message with its remedies behind a semicolon."""
    return "; ".join([message, ", or ".join(map(str, remedies))]) if remedies else message
