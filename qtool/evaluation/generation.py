"""Text generation with the file of a decoder: its prompt, then a token at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from qtool.backends.onnx.storage import load_outline
from qtool.backends.onnxruntime.session import session
from qtool.core.argument_names import argument
from qtool.core.data import MASK
from qtool.core.errors import DataError
from qtool.core.limits import Range
from qtool.core.summary import Summary
from qtool.core.types import Array

_CACHE, _PRESENT, _LOGITS, _POSITIONS = "past", "present", "logits", "position_ids"
_BIAS = 10  # position of the mask among the inputs of GroupQueryAttention
_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int8)": np.int8}
_INCOMPLETE = "\ufffd"  # what a tokenizer gives for the first bytes of a character


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: divides the logits; 0 takes the most likely token.
        top_k: number of tokens to choose from; 0 for all.
        top_p: probability of the smallest set of tokens to choose from.
        seed: of the random numbers.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def check(self) -> None:
        """
        Raises:
            OptionError: a number is out of its range.
        """
        Range(0).check("temperature", self.temperature)
        Range(0, whole=True).check("top_k", self.top_k)
        Range(0, 1, low_open=True).check("top_p", self.top_p)
        Range(0, whole=True).check("seed", self.seed)

    def choose(self, logits: Array, generator: np.random.Generator) -> int:
        """Return the next token of logits [vocabulary]."""
        if not self.temperature:
            return int(logits.argmax())
        scores = logits.astype(np.float64) / self.temperature
        order = np.argsort(-scores, kind="stable")
        if self.top_k:
            order = order[: self.top_k]
        shares = np.exp(scores[order] - scores[order[0]])
        shares /= shares.sum()
        count = int(np.searchsorted(shares.cumsum(), self.top_p)) + 1
        kept = shares[:count] / shares[:count].sum()
        return int(order[generator.choice(len(kept), p=kept)])


@dataclass(frozen=True)
class Generation:
    """A text and how long it took.

    Attributes:
        file: that wrote it.
        text: of the new tokens.
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


class CachedDecoder:
    """The file of a decoder with its cache.

    A cache that the file's attention writes in place is one buffer for past and present.

    Attributes:
        length: number of tokens so far.
    """

    def __init__(self, path: Path, capacity: int, threads: int = 0) -> None:
        """
        Args:
            path: the file.
            capacity: the most tokens that a text has.
            threads: of the runtime; 0 lets it choose.

        Raises:
            DataError: the file has no KV cache.
            VerificationError: the runtime refuses the file.
        """
        self._session = session(path, threads=threads)
        self._inputs = {i.name for i in self._session.get_inputs()}
        past = [i for i in self._session.get_inputs() if i.name.startswith(_CACHE)]
        present = [o.name for o in self._session.get_outputs() if o.name.startswith(_PRESENT)]
        if not past or len(past) != len(present):
            raise DataError(
                f"{path} has no KV cache; write it with "
                f"{argument('--task', 'text-generation-with-past')}"
            )
        self._in_place = _is_in_place(path)
        size = capacity if self._in_place else 0
        self._present, self.length = dict(zip([i.name for i in past], present, strict=True)), 0
        self._buffers = {  # an OrtValue does not own them
            i.name: np.zeros((1, i.shape[1], size, i.shape[3]), _TYPES[i.type]) for i in past
        }
        self._cache = {
            name: ort.OrtValue.ortvalue_from_numpy(buffer) for name, buffer in self._buffers.items()
        }

    def logits(self, new: Sequence[int]) -> Array:
        """Append tokens and return the logits behind them, [vocabulary]."""
        binding, before = self._session.io_binding(), self.length
        self.length += len(new)
        inputs = {
            "input_ids": np.array([new], np.int64),
            MASK: np.ones((1, self.length), np.int64),
            _POSITIONS: np.arange(before, self.length, dtype=np.int64)[None],
        }
        for name in self._inputs & set(inputs):
            binding.bind_cpu_input(name, inputs[name])
        binding.bind_output(_LOGITS, "cpu")
        for name, value in self._cache.items():
            binding.bind_ortvalue_input(name, value)
            if self._in_place:
                binding.bind_ortvalue_output(self._present[name], value)
            else:
                binding.bind_output(self._present[name], "cpu")
        self._session.run_with_iobinding(binding)
        logits, *present = binding.get_outputs()
        self._cache = dict(zip(self._cache, present, strict=True))
        last: Array = logits.numpy()[0, -1]
        return last


def _is_in_place(path: Path) -> bool:
    """Return whether attention writes the cache in place and takes its length as a number."""
    calls = [n for n in load_outline(path).graph.node if n.op_type == "GroupQueryAttention"]
    return bool(calls) and all(not any(n.input[_BIAS : _BIAS + 1]) for n in calls)


def next_tokens(
    decoder: CachedDecoder,
    prompt: Sequence[int],
    count: int,
    sampling: Sampling,
    ends: AbstractSet[int] = frozenset(),
) -> Iterator[int]:
    """Yield up to `count` tokens behind a prompt; one of `ends` is the last."""
    generator, new = np.random.default_rng(sampling.seed), list(prompt)
    for _ in range(count):
        token = sampling.choose(decoder.logits(new), generator)
        yield token
        if token in ends:
            return
        new = [token]


def generate(
    file: str | Path,
    prompt: str,
    tokenizer: Any,
    *,
    tokens: int = 64,
    sampling: Sampling = Sampling(),
    ends: AbstractSet[int] = frozenset(),
    threads: int = 0,
    on_text: Callable[[str], object] = lambda _: None,
) -> Generation:
    """Continue a prompt with the file of a decoder.

    Args:
        file: the file, with a KV cache.
        prompt: a text.
        tokenizer: of transformers.
        tokens: the most new tokens.
        sampling: how the next token is chosen.
        ends: tokens that end a text.
        threads: of the runtime; 0 lets it choose.
        on_text: is called with each piece of the new text.

    Raises:
        DataError: the file has no KV cache, or the prompt no tokens.
        OptionError: a number is out of its range.
        VerificationError: the runtime refuses the file.
    """
    sampling.check()
    Range(1, whole=True).check("tokens", tokens)
    path, ids = Path(file), list(tokenizer(prompt)["input_ids"])
    if not ids:
        raise DataError("the prompt has no tokens; write at least a word")
    decoder = CachedDecoder(path, len(ids) + tokens, threads)
    new, shown, times = list[int](), "", [time.perf_counter()]
    for token in next_tokens(decoder, ids, tokens, sampling, ends):
        times.append(time.perf_counter())
        new.append(token)
        text = tokenizer.decode(new, skip_special_tokens=True)
        if not text.endswith(_INCOMPLETE):
            on_text(text[len(shown) :])
            shown = text
    text = tokenizer.decode(new, skip_special_tokens=True)
    on_text(text[len(shown) :])
    steps = len(new) - 1
    return Generation(
        file=path,
        text=text,
        prompt_tokens=len(ids),
        tokens=tuple(new),
        prompt_seconds=times[1] - times[0],
        step_seconds=(times[-1] - times[1]) / steps if steps else None,
    )


def end_tokens(config: Mapping[str, Any]) -> frozenset[int]:
    """Return the tokens that end a text, of a configuration of transformers."""
    ends = config.get("eos_token_id")
    return frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends])
