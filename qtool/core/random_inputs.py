"""Random inputs that a model takes: sizes that fit each other, attention masks of ones.

Dynamic sizes have names, equal sizes equal ones. A name may be an expression of others ("past +
sequence"), as qtool and Optimum write the length of the attention mask of a decoder with a KV
cache. In files of other tools, whose mask has a name of its own, it is the sum of the cached and
the new tokens.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qtool.core.types import Array

SIZE = 8
"""Dynamic dimensions other than the first have the sizes 8, 16, 24 ..., one for each name: a model
that needs equal sizes gives them one name, and strides divide these sizes."""

CACHE = "past"
"""How the names of a KV cache begin, [samples, heads, tokens, width] each."""

CACHED_TOKENS = 2  # axis of a KV cache
PROMPT, STEP = "prompt", "step"
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_NAME = re.compile(r"[^\W\d]\w*")
Ranges = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Input:
    """One tensor input.

    Attributes:
        name: as in the ONNX file.
        dtype: "float32", "int64" ...
        shape: names of dynamic dimensions, sizes of fixed ones.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


def is_cache(tensor: Input) -> bool:
    """Return whether an input is keys or values of past tokens."""
    return tensor.name.startswith(CACHE) and len(tensor.shape) > CACHED_TOKENS


def random_inputs(
    inputs: Sequence[Input],
    samples: int,
    generator: np.random.Generator,
    ranges: Ranges,
    known: Mapping[str, int] | None = None,
) -> list[Array]:
    """Return one batch.

    Args:
        inputs: their names, types and shapes.
        samples: size of the first dimension where it is dynamic.
        generator: source of the values.
        ranges: input -> least and largest value; by default -1 to 1 for floats, 0 to 1 for
            integers, and for codes of 8 or 16 bits, such as those of an int8 cache, all of them.
        known: sizes of dynamic dimensions by name.
    """
    arrays = []
    for each, shape in zip(inputs, sizes(inputs, samples, known), strict=True):
        dtype = np.dtype(each.dtype)
        low, high = ranges.get(each.name, _range(each.name, dtype))
        values: Array = (
            generator.uniform(low, high, shape)
            if dtype.kind == "f"
            else generator.integers(int(low), int(high) + 1, shape)
        )
        arrays.append(values.astype(dtype))
    return arrays


def _range(name: str, dtype: np.dtype) -> tuple[float, float]:
    if dtype.kind == "f":
        return -1.0, 1.0
    if "mask" in name:
        return 1, 1
    if dtype.kind in "iu" and dtype.itemsize <= 2:
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    return 0, 1


def sizes(
    inputs: Sequence[Input], samples: int, known: Mapping[str, int] | None = None
) -> list[tuple[int, ...]]:
    """Return the shape of each input for a number of samples.

    Args:
        inputs: their names and shapes.
        samples: size of the first dimension where it is dynamic.
        known: sizes of other dynamic dimensions by name; the rest have multiples of `SIZE`.
    """
    firsts = {i.shape[0] for i in inputs if i.shape}
    lengths, chosen = _mask_length(inputs), dict(known or {})

    def number(name: int | str) -> int:
        if isinstance(name, int):
            return name
        if name in firsts:
            return samples
        value = _evaluate(lengths.get(name, name), number)
        return chosen.setdefault(name, SIZE * (len(chosen) + 1)) if value is None else value

    return [tuple(number(s) for s in each.shape) for each in inputs]


def calls_with_cache(inputs: Sequence[Input], tokens: int = SIZE) -> dict[str, dict[str, int]]:
    """Return the sizes of both calls of a decoder with a KV cache, {} for another model.

    Args:
        inputs: their names and shapes.
        tokens: number of tokens of a text.

    Returns:
        "prompt": all tokens, with an empty cache. "step": one token, the others are in the cache.
    """
    names = _token_dimensions(inputs)
    if names is None:
        return {}
    past, new = names
    return {PROMPT: {past: 0, new: tokens}, STEP: {past: tokens - 1, new: 1}}


def _mask_length(inputs: Sequence[Input]) -> dict[str, str]:
    """Return the name of the mask's length as a sum, where no other input has that length, or the
    lengths in its name."""
    names = _token_dimensions(inputs)
    if names is None:
        return {}
    masks = [i for i in inputs if "mask" in i.name and len(i.shape) == 2]
    taken = {s for i in inputs if i not in masks for s in i.shape}
    lengths = {m.shape[1] for m in masks} - taken
    texts = [s for s in lengths if isinstance(s, str)]
    return {s: " + ".join(names) for s in texts if not taken.issuperset(_NAME.findall(s))}


def _token_dimensions(inputs: Sequence[Input]) -> tuple[str, str] | None:
    """Return the dimensions of cached and new tokens; None without a cache of any length."""
    cache = next((i.shape[CACHED_TOKENS] for i in inputs if is_cache(i)), None)
    new = next((i.shape[1] for i in inputs if _are_ids(i)), None)
    return (cache, new) if isinstance(cache, str) and isinstance(new, str) else None


def _are_ids(tensor: Input) -> bool:
    is_integer = tensor.dtype in ("int32", "int64")
    return is_integer and len(tensor.shape) == 2 and "mask" not in tensor.name


def _evaluate(expression: str, number: Callable[[str], int]) -> int | None:
    """Return the value of sums and products; None for a name, or what is no such expression."""
    try:
        tree = ast.parse(expression, mode="eval").body
        return None if isinstance(tree, ast.Name) else _value(tree, number)
    except (SyntaxError, ValueError, RecursionError, ZeroDivisionError, KeyError):
        return None


def _value(node: ast.expr, number: Callable[[str], int]) -> int:
    """
    Raises:
        KeyError: an operator is none of `_OPERATORS`.
        ValueError: something else than names, integers and operators.
    """
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, number), _value(node.right, number))
    if isinstance(node, ast.Name):
        return number(node.id)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError(f"{ast.dump(node)} is no size")
