"""Recognise a causal language model from its file and its data, and score its next tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qtool.backends.session import Session
from qtool.core.types import Array
from qtool.core.value_names import MASK
from qtool.metrics.token_scores import cross_entropy, divergences, log_softmax

POSITIONS, CACHE, LOGITS = "position_ids", "past", "logits"
"""Names of inputs and outputs in the files of transformers; those of a cache begin with CACHE."""

_NO_TOKENS = (MASK, POSITIONS, "token_type_ids")
"""Names of other integers [samples, tokens]."""

_NO_LOGITS = "hidden_state"
"""In names of outputs that are the features of tokens, however many there are."""

SAME = 1e-5
"""Relative difference of logits up to which a later token counts as without influence."""


@dataclass(frozen=True)
class LanguageModel:
    """Inputs and outputs of a causal language model, by their index in the file.

    Attributes:
        ids: token ids, int [samples, tokens].
        mask: attention mask, [samples, cached + tokens]; None without one.
        positions: position ids, [samples, tokens]; None without one.
        cache: KV cache, each [samples, heads, cached, width]; () for a decoder without a cache.
        logits: the output [samples, tokens, vocabulary].
    """

    ids: int
    mask: int | None
    positions: int | None
    cache: tuple[int, ...]
    logits: int

    def cached_tokens(self, arrays: Sequence[Array]) -> int:
        """Return how many tokens of each text are in the cache."""
        return arrays[self.cache[0]].shape[2] if self.cache else 0

    def token_mask(self, arrays: Sequence[Array]) -> Array:
        """Return bool [samples, tokens]: False for padding."""
        ids = arrays[self.ids]
        if self.mask is None:
            return np.ones(ids.shape, bool)
        present: Array = arrays[self.mask][:, -ids.shape[1] :] != 0
        return present

    def predicted(self, arrays: Sequence[Array]) -> Array:
        """Return bool [samples, tokens - 1]: positions whose next token is known."""
        mask = self.token_mask(arrays)
        return mask[:, :-1] & mask[:, 1:]

    def losses(self, arrays: Sequence[Array], logits: Array) -> Array:
        """Return the cross-entropy of each known next token in nats, float64 [samples, tokens - 1].

        0 where the next token is padding.
        """
        targets, predicted = arrays[self.ids][:, 1:], self.predicted(arrays)
        losses = np.zeros(predicted.shape)
        for i, row in enumerate(logits[:, :-1]):  # a sample at a time, since a vocabulary is large
            losses[i] = cross_entropy(row, targets[i])
        return np.where(predicted, losses, 0.0)

    def divergences(self, arrays: Sequence[Array], reference: Array, logits: Array) -> Array:
        """Return the Kullback-Leibler divergence of the distribution of each known next token
        from that of the reference in nats, float64 [samples, tokens - 1]; 0 elsewhere."""
        predicted = self.predicted(arrays)
        each = np.zeros(predicted.shape)
        for i, (row, other) in enumerate(zip(reference[:, :-1], logits[:, :-1], strict=True)):
            each[i] = divergences(log_softmax(row), log_softmax(other))
        return np.where(predicted, each, 0.0)


def find_language_model(model: Session, arrays: Sequence[Array]) -> LanguageModel | None:
    """Return where a causal language model has its tokens; None for any other model.

    A model is one if it takes token ids [samples, tokens], its logits have an entry for each token
    of the vocabulary, and those before a token do not depend on it. So this holds for the files of
    any tool, without metadata. It takes two runs of one sample.

    Args:
        model: session of the file; of several files that of the float model, since the ranges of a
            dynamically quantized one depend on every token.
        arrays: a batch in the order of the file's inputs.
    """
    names = [i.name for i in model.inputs]
    integers = (i for i, a in enumerate(arrays) if a.dtype.kind in "iu" and a.ndim == 2)
    ids = next((i for i in integers if names[i] not in _NO_TOKENS), None)
    if ids is None or arrays[ids].shape[1] < 2:
        return None
    mask = names.index(MASK) if MASK in names else None
    positions = names.index(POSITIONS) if POSITIONS in names else None
    cache = tuple(i for i, a in enumerate(arrays) if names[i].startswith(CACHE) and a.ndim == 4)
    one = _first_sample(model, arrays)
    outputs = model.run(one)
    logits = _logits([o.name for o in model.outputs], outputs, arrays[ids])
    if logits is None:
        return None
    candidate = LanguageModel(ids, mask, positions, cache, logits)
    return candidate if _is_causal(candidate, model, one, outputs[logits]) else None


def _first_sample(model: Session, arrays: Sequence[Array]) -> list[Array]:
    """Return the first sample, or the batch where the file has a fixed number of samples."""
    sizes = [i.shape[0] if i.shape else None for i in model.inputs]
    cut = not any(isinstance(size, int) for size in sizes)
    return [a[:1] if cut and a.ndim else a for a in arrays]


def _logits(names: Sequence[str], outputs: Sequence[Array], ids: Array) -> int | None:
    """Return the index of the logits among the outputs, preferably the one of that name."""
    for i in sorted(range(len(outputs)), key=lambda i: (names[i] != LOGITS, i)):
        output = outputs[i]
        if _NO_LOGITS in names[i]:
            continue
        if output.dtype.kind == "f" and output.ndim == 3 and output.shape[1] == ids.shape[1]:
            return i if output.shape[2] > int(ids.max()) else None
    return None


def _is_causal(place: LanguageModel, model: Session, one: list[Array], before: Array) -> bool:
    """Return True if another last token changes its own logits, and none before them."""
    kept = np.flatnonzero(place.token_mask(one)[0])
    if len(kept) < 2:
        return False
    last = int(kept[-1])
    ids = one[place.ids].copy()
    ids[:, last] = np.where(ids[:, last] > 0, ids[:, last] - 1, ids[:, last] + 1)
    after = model.run([ids if i == place.ids else a for i, a in enumerate(one)])[place.logits]
    first = int(kept[0])
    change = np.abs(after[0] - before[0]).max(-1) / max(float(np.abs(before[0]).max()), 1e-30)
    return bool((change[first:last] <= SAME).all() and change[last] > SAME)
