"""A result in a few lines: what it is, then one figure a line."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from qtool.core.number_texts import one_line
from qtool.core.records import JsonRecord

NOTES = 3
"""Notes that a summary shows."""

_SUBJECT = re.compile(r"([^\s:]+): (.*)", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.^-])\d+(?:\.\d+)?(?![\w.^])")


@dataclass(frozen=True)
class Summary:
    """A result in a few lines.

    Attributes:
        title: what the result is of, such as the file.
        text: what it is, next to the title.
        rows: (label, figures).
        notes: sentences for the user.
        warnings: sentences that should be read first.
    """

    title: str
    text: str
    rows: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def lines(self) -> list[tuple[str, str]]:
        """Return (label, text) per row, with notes; labels have one width, texts one line."""
        width = max((len(label) for label, _ in self.rows), default=0)
        rows = [(label.ljust(width), one_line(text)) for label, text in self.rows]
        notes = (_joined_lines(note) for note in shorten(group_notes(self.notes)))
        return rows + [("note", one_line(note)) for note in notes]

    def __str__(self) -> str:
        head = f"{self.title}  {self.text}" if self.text else self.title
        rows = [f"  {label}  {text}" for label, text in self.lines()]
        return "\n".join([head, *rows, *self.warnings])


class Printed:
    """What a notebook shows as `print` does."""

    def _repr_html_(self) -> str:  # the name that notebooks call
        return f"<pre>{escape(str(self))}</pre>"


class Summarized(Printed, ABC):
    """What is printed as its summary."""

    @abstractmethod
    def summary(self) -> Summary:
        """Return the result in a few lines."""

    def __str__(self) -> str:
        return str(self.summary())


class Result(Summarized, JsonRecord, ABC):
    """A result of a command, which is written as JSON, too."""


def _joined_lines(note: str) -> str:
    """Return a note of several lines, such as a list of layers, as one."""
    return re.sub(r"\s*\n\s*", "; ", re.sub(r":\s*\n\s*", ": ", note))


def shorten(notes: Sequence[str]) -> list[str]:
    """Return the first notes, and how many there are besides."""
    if len(notes) <= NOTES + 1:
        return list(notes)
    return [*notes[:NOTES], f"and {len(notes) - NOTES} more notes"]


def group_notes(notes: Sequence[str]) -> list[str]:
    """Return one note for all those that differ in their subject ("subject: text") and in numbers.

    The note has the names of the first subjects and the ranges of the numbers.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    for note in notes:
        match = _SUBJECT.fullmatch(note)
        subject, text = match.groups() if match else ("", note)
        groups.setdefault(_NUMBER.sub("#", text) if subject else note, []).append((subject, text))
    return [_joined(members) for members in groups.values()]


def _joined(members: Sequence[tuple[str, str]]) -> str:
    subjects, texts = zip(*members, strict=True)
    if not subjects[0]:
        return str(texts[0])
    columns = zip(*(_NUMBER.findall(text) for text in texts), strict=True)
    ranges = iter([_range(column) for column in columns])
    return f"{group_names(subjects)}: {_NUMBER.sub(lambda _: next(ranges), texts[0])}"


def _range(numbers: Sequence[str]) -> str:
    low, high = min(numbers, key=float), max(numbers, key=float)
    return low if low == high else f"{low} to {high}"


def group_names(names: Sequence[str]) -> str:
    """Return names as text, the first ones if there are many: "a, b, c and 5 more"."""
    shown = ", ".join(names[:NOTES])
    return f"{shown} and {len(names) - NOTES} more" if len(names) > NOTES else shown
