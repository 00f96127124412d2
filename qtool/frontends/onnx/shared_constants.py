"""One name for equal weights of a file, so that they are stored once.

Exporters share a weight through Identity, Transpose, Reshape or Cast nodes of one initializer, or
write it several times. The table of a language model is also its head, transposed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

_FEWEST = 1 << 10
"""Smallest number of elements. Vectors are not shared: biases of zeros and norms of ones are equal
by chance, and recovery steps change them layer by layer."""
_SAMPLED = 64  # elements that are compared before the others


class SharedConstants:
    """The first name of each value among a file's constants."""

    def __init__(self, known: dict[str, Any], stored: Iterable[str]) -> None:
        """
        Args:
            known: constants by name; an equal one becomes the same array.
            stored: names that come first.
        """
        self._known = known
        self._names: dict[tuple[Any, ...], list[str]] = {}
        for name in stored:
            self.first(name)

    def first(self, name: str) -> str:
        """Return the first name of a constant's value; other names as they are."""
        array = self._known.get(name)
        if not isinstance(array, np.ndarray) or array.ndim < 2 or array.size < _FEWEST:
            return name
        if array.dtype.kind != "f":
            return name
        sample = array.flat[:: array.size // _SAMPLED].tobytes()
        names = self._names.setdefault((array.dtype.str, array.shape, sample), [])
        for other in names:
            if other == name or np.array_equal(self._known[other], array):
                self._known[name] = self._known[other]
                return other
        names.append(name)
        return name
