"""Text generation with the file of a decoder: its prompt, then a token at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from qtool.backends.onnxruntime.cached_decoder import CachedDecoder
from qtool.core.errors import DataError, errors_as
from qtool.core.log import log_note
from qtool.core.number_texts import quantity
from qtool.core.remedies import DataEdit
from qtool.core.summary import Summary
from qtool.core.types import Array
from qtool.evaluation.options import GenerationOptions

_INCOMPLETE = "\ufffd"  # what a tokenizer gives for the first bytes of a character


@dataclass(frozen=True)
class Generation:
    """A text and how long it took.

    Attributes:
        file: that wrote it.
        text: text of the new tokens.
        prompt_tokens: number of tokens of the prompt.
        tokens: ids of the new tokens.
        prompt_seconds: time until the first new token.
        step_seconds: time of each further token, on average; None for one token.
        agreement: number of new tokens that are the most likely ones for the float model; None
            without it.
    """

    file: Path
    text: str
    prompt_tokens: int
    tokens: tuple[int, ...]
    prompt_seconds: float
    step_seconds: float | None
    agreement: int | None = None

    @property
    def summary(self) -> Summary:
        """Speed and agreement in a few lines."""
        prompt = self.prompt_tokens / self.prompt_seconds
        rows = [("prompt", f"{self.prompt_tokens} tokens, {prompt:.1f} tokens per second")]
        if self.step_seconds is not None:
            speed = f"{1 / self.step_seconds:.1f} tokens per second"
            rows.append(("text", f"{len(self.tokens)} tokens, {speed}"))
        if self.agreement is not None:
            count = f"{self.agreement} of {len(self.tokens)}"
            rows.append(("float", f"{count} tokens are the most likely ones of the float model"))
        return Summary(str(self.file), "", tuple(rows))


def choose(logits: Array, options: GenerationOptions, generator: np.random.Generator) -> int:
    """Return the next token of logits [vocabulary]."""
    if not options.temperature:
        return int(logits.argmax())
    scores = logits.astype(np.float64) / options.temperature
    order = np.argsort(-scores, kind="stable")
    if options.top_k:
        order = order[: options.top_k]
    shares = np.exp(scores[order] - scores[order[0]])
    shares /= shares.sum()
    count = int(np.searchsorted(shares.cumsum(), options.top_p)) + 1
    kept = shares[:count] / shares[:count].sum()
    return int(order[generator.choice(len(kept), p=kept)])


def next_tokens(
    decoder: CachedDecoder,
    prompt: Sequence[int],
    options: GenerationOptions,
    ends: AbstractSet[int] = frozenset(),
) -> Iterator[int]:
    """Yield up to `options.tokens` tokens behind a prompt; one of `ends` is the last."""
    generator, new = np.random.default_rng(options.seed), list(prompt)
    for _ in range(options.tokens):
        token = choose(decoder.logits(new), options, generator)
        yield token
        if token in ends:
            return
        new = [token]


def generate(
    file: str | Path,
    prompt: str,
    tokenizer: Any,
    options: GenerationOptions,
    *,
    ends: AbstractSet[int] = frozenset(),
    context: int | None = None,
    on_text: Callable[[str], object] | None = None,
) -> Generation:
    """Continue a prompt with the file of a decoder.

    Args:
        file: the file, with a KV cache.
        prompt: a text.
        tokenizer: tokenizer of transformers.
        options: how many tokens, and how the next one is chosen.
        ends: tokens that end a text.
        context: the most tokens of prompt and text; None: not known.
        on_text: is called with each piece of the new text; None: nothing is.

    Raises:
        DataError: the file has no KV cache, or the prompt no tokens, or as many as the context.
        VerificationError: the runtime refuses the file.
    """
    if not prompt.isascii() and prompt != prompt.encode("utf-8", "ignore").decode():
        raise DataError(
            "the prompt has bytes that are no UTF-8", DataEdit("give it in that encoding")
        )
    with errors_as(DataError, "the tokenizer does not take the prompt"):
        path, ids = Path(file), list(tokenizer(prompt)["input_ids"])
    if not ids:
        raise DataError("the prompt has no tokens", DataEdit("write at least a word"))
    if context is not None:
        options = replace(options, tokens=_within(context, len(ids), options.tokens))
    decoder = CachedDecoder(path, len(ids) + options.tokens, options.threads)
    new, shown, times = list[int](), "", [time.perf_counter()]
    show: Callable[[str], object] = on_text or len
    for token in next_tokens(decoder, ids, options, ends):
        times.append(time.perf_counter())
        new.append(token)
        text = tokenizer.decode(new, skip_special_tokens=True)
        if not text.endswith(_INCOMPLETE):
            show(text[len(shown) :])
            shown = text
    text = tokenizer.decode(new, skip_special_tokens=True)
    show(text[len(shown) :])
    steps = len(new) - 1
    return Generation(
        file=path,
        text=text,
        prompt_tokens=len(ids),
        tokens=tuple(new),
        prompt_seconds=times[1] - times[0],
        step_seconds=(times[-1] - times[1]) / steps if steps else None,
    )


def _within(context: int, prompt: int, tokens: int) -> int:
    """Return how many of the new tokens fit into the context of a model.

    Raises:
        DataError: the prompt fills it.
    """
    if prompt >= context:
        raise DataError(
            f"the prompt has {quantity(prompt, 'token')}, and the model was made for texts of "
            f"{context:,}",
            DataEdit("shorten it"),
        )
    if prompt + tokens > context:
        log_note(
            f"the text ends after {quantity(context - prompt, 'token')}: the model was made for "
            f"{context:,} with those of the prompt"
        )
    return min(tokens, context - prompt)


def end_tokens(config: Any) -> frozenset[int]:
    """Return the tokens that end a text, of a configuration of transformers.

    Raises:
        ValueError: it has no such form.
    """
    ends = config.get("eos_token_id") if isinstance(config, Mapping) else ""
    tokens = ends if isinstance(ends, list) else [] if ends is None else [ends]
    if not all(isinstance(token, int) for token in tokens):
        raise ValueError(f"'eos_token_id' is {ends!r:.40}, not a number or a list of numbers")
    return frozenset(tokens)


_CONTEXTS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length"),
    "context_length",  # of onnxruntime-genai
)


def context_size(config: Any) -> int | None:
    """Return the most tokens of a text that a model was made for, of its configuration.

    Returns:
        None where it is not known.
    """
    whole = config if isinstance(config, Mapping) else {}
    parts = [whole, *(p for p in whole.values() if isinstance(p, Mapping))]  # as text_config
    sizes = [part.get(name) for part in parts for name in _CONTEXTS]
    return next((size for size in sizes if type(size) is int and size > 0), None)
