"""Texts that the float file of a language model writes itself, where there is no data.

A first token is drawn at random, and each next one by its probability: texts of the distribution
that the model has learned, as in LLM-QAT (Liu et al., 2023).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from qtool.backends.formats import open_model
from qtool.backends.onnxruntime.cached_decoder import CachedDecoder
from qtool.core.errors import DataError
from qtool.core.log import log_note
from qtool.core.progress import no_progress
from qtool.core.random_inputs import is_cache
from qtool.core.remedies import Argument
from qtool.core.types import Array, Progress
from qtool.core.value_names import MASK
from qtool.evaluation.generation import next_tokens
from qtool.evaluation.language_model import LOGITS, POSITIONS
from qtool.evaluation.model_inputs import describe_input
from qtool.evaluation.options import GenerationOptions

IDS = "input_ids"
TEXTS, TOKENS = 32, 32
"""Number of texts, and of tokens in each."""


def is_decoder(file: str | Path) -> bool:
    """Return whether a file has logits of tokens, and takes tokens and a KV cache alone.

    The decoder behind an encoder also takes what that has computed.
    """
    session = open_model(file)
    others = [port.name for port in session.inputs if not is_cache(describe_input(port))]
    cached = len(others) < len(session.inputs) and set(others) <= {IDS, MASK, POSITIONS}
    return cached and any(port.name == LOGITS for port in session.outputs)


def own_texts(
    file: Path, labels: object = None, progress: Progress = no_progress
) -> Iterable[dict[str, Array]]:
    """Return batches of one text.

    Args:
        file: the file of a decoder with its KV cache.
        labels: those of the user, who has no data; such texts have none.
        progress: wraps the iterable of texts.

    Raises:
        DataError: it is another model, or there are labels.
    """
    if labels is not None or not is_decoder(file):
        raise DataError("there is no data", Argument("--data", text="give some with {}"))
    log_note(f"without data: {TEXTS} texts of {TOKENS} tokens that {file.name} writes itself")
    decoder = CachedDecoder(file, TOKENS)
    size = len(decoder.logits([0]))
    starts = np.random.default_rng(0).integers(size, size=TEXTS)
    batches = []
    for seed, start in enumerate(progress(starts.tolist())):
        decoder.restart()
        options = GenerationOptions(tokens=TOKENS - 1, temperature=1.0, seed=seed)
        ids = np.array([[start, *next_tokens(decoder, [start], options)]])
        batches.append({IDS: ids, MASK: np.ones_like(ids)})
    return batches
