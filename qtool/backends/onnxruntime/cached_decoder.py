"""The file of a decoder with its KV cache, in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from qtool.backends.onnx.storage import load_outline
from qtool.backends.onnxruntime.session import session, with_cache_sizes
from qtool.core.argument_names import argument
from qtool.core.errors import DataError
from qtool.core.remedies import OtherFile
from qtool.core.types import Array
from qtool.core.value_names import MASK

_PAST, _PRESENT, _LOGITS, _POSITIONS = "past", "present", "logits", "position_ids"


_BIAS = 10  # position of the mask among the inputs of GroupQueryAttention


_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int8)": np.int8}


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
            threads: number of threads of the runtime; 0 lets it choose.

        Raises:
            DataError: the file has no KV cache.
            VerificationError: the runtime refuses the file.
        """
        self._session = session(path, threads=threads)
        self._inputs = {i.name for i in self._session.get_inputs()}
        past = [i for i in self._session.get_inputs() if i.name.startswith(_PAST)]
        present = [o.name for o in self._session.get_outputs() if o.name.startswith(_PRESENT)]
        if not past or len(past) != len(present):
            raise DataError(
                f"{path} has no KV cache, so it continues no text",
                OtherFile(f"write it with {argument('--task', 'text-generation-with-past')}"),
            )
        self._in_place = _is_in_place(path)
        size = capacity if self._in_place else 0
        self._present = dict(zip([i.name for i in past], present, strict=True))
        # an OrtValue does not own them
        self._buffers = {i.name: _buffer(path, i, size) for i in past}
        self.restart()

    def restart(self) -> None:
        """Begin another text."""
        self.length = 0
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


def _buffer(path: Path, tensor: Any, tokens: int) -> Array:
    """Return zeros for an input of a KV cache."""
    _, heads, _, width = with_cache_sizes(path, tensor.name, tensor.shape)
    if not (isinstance(heads, int) and isinstance(width, int)):
        raise DataError(
            f"{path} leaves open how wide its KV cache '{tensor.name}' is",
            OtherFile("put the genai_config.json of its model next to it"),
        )
    return np.zeros((1, heads, tokens, width), _TYPES[tensor.type])


def _is_in_place(path: Path) -> bool:
    """Return whether attention writes the cache in place and takes its length as a number."""
    calls = [n for n in load_outline(path).graph.node if n.op_type == "GroupQueryAttention"]
    return bool(calls) and all(not any(n.input[_BIAS : _BIAS + 1]) for n in calls)
