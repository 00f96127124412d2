"""Names of samples and classes, and thumbnails, of data that has them: folders and texts."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qtool.core.errors import DataError
from qtool.frontends.data.collators import read_image
from qtool.frontends.data.rows import Row

SIDE = 96  # pixels of a thumbnail
TEXT = 60  # characters of a text that are its name
_PLACEHOLDER = "LABEL_{}"  # of transformers; the configuration of a language model has them, too


@dataclass(frozen=True)
class SampleNames:
    """Names for the numbers of samples and classes; "" for those without.

    Attributes:
        rows: the samples in order; empty for data without names.
        classes: number -> name.
    """

    rows: Sequence[Row] = ()
    classes: Mapping[int, str] | None = None

    @classmethod
    def of(
        cls, rows: Sequence[Row], classes: Mapping[str, int], labels: Iterable[int] | None
    ) -> SampleNames:
        """Return the names of rows and of their classes, whose numbers are labels."""
        names = {i: name for name, i in classes.items() if name != _PLACEHOLDER.format(i)}
        for row, number in zip(rows, () if labels is None else labels, strict=False):
            if str(row.label) != str(number):  # a name rather than a number
                names[int(number)] = str(row.label)
        return cls(rows, names)

    def sample(self, index: int) -> str:
        """Return folder and name of a sample's file, or the begin of its text."""
        if index >= len(self.rows):
            return ""
        row = self.rows[index]
        file = next((x for x in (row.image, row.sound) if isinstance(x, str | Path)), None)
        if file is not None:
            return "/".join(Path(file).parts[-2 if row.label is not None else -1 :])
        text = " ".join((row.text or "").split())
        return text if len(text) <= TEXT else f"{text[: TEXT - 1]}…"

    def class_(self, number: int | None) -> str:
        """Return the name of a class."""
        return "" if number is None else (self.classes or {}).get(number, "")

    def thumbnail(self, index: int) -> str:
        """Return a small image of a sample as a data URI; "" for a sample that is no image."""
        if index >= len(self.rows) or self.rows[index].image is None:
            return ""
        try:
            image = read_image(self.rows[index].image)
        except DataError:
            return ""
        image.thumbnail((SIDE, SIDE))
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=80)
        return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
