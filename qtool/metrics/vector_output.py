"""Which output of a file has the vectors of samples, and how states of tokens become one vector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qtool.core.errors import DataError
from qtool.core.remedies import Argument
from qtool.core.sentence_pooling import MEAN, POOLING_FILE, stored_poolings
from qtool.core.types import Array

SENTENCE = "sentence_embedding"
"""Name of the output that exporters of Sentence Transformers give to the vectors after pooling."""


def _mean(states: Array, tokens: Array) -> Array:
    pooled: Array = states.sum(1) / np.maximum(tokens.sum(1), 1)
    return pooled


def _max(states: Array, tokens: Array) -> Array:
    pooled: Array = np.where(tokens, states, -np.inf).max(1)
    return np.where(tokens.any(1), pooled, 0).astype(states.dtype)


def _first(states: Array, tokens: Array) -> Array:
    return np.take_along_axis(states, tokens.argmax(1)[:, None], 1)[:, 0]


def _last(states: Array, tokens: Array) -> Array:
    return _first(states[:, ::-1], tokens[:, ::-1])


_POOLINGS: dict[str, Callable[[Array, Array], Array]] = {
    MEAN: _mean,
    "max": _max,
    "cls": _first,
    "last": _last,
}
"""How states [samples, tokens, width] become [samples, width]; the second argument says which
tokens count, bool [samples, tokens, 1]."""


@dataclass(frozen=True)
class VectorOutput:
    """The output of a file that has the vectors of samples.

    Attributes:
        index: its place among the outputs.
        name: its name.
        pooling: how states of tokens become one vector: "mean", "max", "cls" or "last".
    """

    index: int
    name: str
    pooling: str

    @classmethod
    def of(cls, names: Sequence[str], pooling: str = MEAN) -> VectorOutput:
        """Return the first output, or the one that is a sentence embedding by its name."""
        index = names.index(SENTENCE) if SENTENCE in names else 0
        return cls(index, names[index], pooling)

    def vectors(self, outputs: Sequence[Array]) -> Array:
        """Return the vectors of a batch, [samples, width]; numbers have the width 1.

        Raises:
            DataError: the output has no vectors, numbers or states of tokens.
        """
        output = outputs[self.index]
        if output.dtype.kind != "f" or output.ndim not in (1, 2, 3):
            raise DataError(
                f"the output '{self.name}' has no vectors or numbers, but the type {output.dtype} "
                f"and the shape {list(output.shape)}",
                Argument("--metric", text="give a function as {}"),
            )
        if output.ndim == 3:
            return self.pooled(output)
        return output[:, None] if output.ndim == 1 else output

    def pooled(self, states: Array) -> Array:
        """Return one vector for states [samples, tokens, width]; padded tokens are zero."""
        return _POOLINGS[self.pooling](states, np.asarray(states.any(-1, keepdims=True)))

    def text(self, is_pooled: bool) -> str:
        """Return the name, and the pooling of states of tokens."""
        return f"{self.name}, {self.pooling}-pooled" if is_pooled else self.name


def read_pooling(folders: Iterable[Path]) -> str:
    """Return how the first of some folders that says so pools tokens; "mean" if none does.

    Raises:
        DataError: `1_Pooling/config.json` cannot be read, or pools in a way that is not known.
    """
    pairs = ((folder, stored_poolings(folder)) for folder in folders)
    folder, names = next(((f, n) for f, n in pairs if n is not None), (Path(), (MEAN,)))
    pooling = names[0] if len(names) == 1 else ""
    if pooling not in _POOLINGS:
        raise DataError(
            f"{folder / POOLING_FILE} pools by {', '.join(names) or 'nothing'}, not by one of "
            f"{', '.join(_POOLINGS)}",
            Argument("--metric", text="give a function that pools so as {}"),
        )
    return pooling


def folders_of(files: Iterable[Path]) -> list[Path]:
    """Return the folders that may describe the models of some files: their own, and the one around
    a folder `onnx`."""
    own = [file.parent for file in files]
    return [each for f in own for each in ((f, f.parent) if f.name == "onnx" else (f,))]
