"""Random numbers that a model draws, as an input of it."""

from __future__ import annotations

import copy
import inspect
import zlib
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from qtool.core.argument_names import argument
from qtool.core.data.batch import Batch
from qtool.core.data.fixed_inputs import carried
from qtool.core.errors import CaptureError
from qtool.core.remedies import ModelEdit, Omission
from qtool.core.user_code import attribute, uncompiled

NOISE = "qtool_noise"
"""Attribute of a module, and key in the meta of a graph's first input."""
WITH_NOISE = "qtool_with_noise"
"""Method of the network of a file that returns it with this attribute."""
_NAMES = ("noise", "drawn_noise", "qtool_drawn_noise")
_CREATE = frozenset(
    {
        *(torch.randn, torch.rand, torch.randn_like, torch.rand_like, torch.normal),
        *(torch.bernoulli, torch.Tensor.bernoulli),
    }
)
_FILL = frozenset(
    {
        *(torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.exponential_),
        torch.Tensor.bernoulli_,
    }
)


class _Draws(TorchFunctionMode):
    """Records what a model draws, or replaces it.

    Attributes:
        drawn: what was drawn, in order.
        values: what replaces it; None: nothing does.
    """

    def __init__(self, values: Iterable[torch.Tensor] | None = None) -> None:
        super().__init__()
        self.drawn: list[torch.Tensor] = []
        self.values = None if values is None else iter(values)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        draws = func in _CREATE | _FILL
        if draws and self.values is not None:
            value = next(self.values)
            return args[0].copy_(value) if func in _FILL else value
        result = func(*args, **(kwargs or {}))
        self.drawn += [result.clone()] if draws else []
        return result


@dataclass(frozen=True, eq=False)
class Noise:
    """The inputs for the numbers that a model draws.

    Attributes:
        names: their names. The one of a module may be a list, with a tensor for each draw.
        draw: batch -> what the model draws for it, by name; nothing where it does not run.
    """

    names: tuple[str, ...]
    draw: Callable[[Batch], Mapping[str, Any]]

    @classmethod
    def of(cls, model: object) -> Noise | None:
        """Return the noise of a model of `noise_input`, or of a graph captured from one."""
        noise: Noise | None = carried(model, NOISE)
        return noise

    def complete(self, batch: Batch) -> Batch:
        """Return a batch with the noise, if it lacks it: equal batches get equal numbers.

        Raises:
            CaptureError: the model draws none.
        """
        if batch.kwargs.keys() >= {*self.names}:
            return batch
        return Batch(batch.args, {**batch.kwargs, **self.draw(batch)})


def seed_of(batch: Batch) -> int:
    """Return a seed, up to 2^20, that depends on the values of a batch alone."""
    return zlib.crc32(b"".join(array.tobytes() for array in batch.arrays())) >> 12


def noise_names(count: int, others: Container[str]) -> tuple[str, ...]:
    """Return a name for each of `count` draws, next to other inputs."""
    name = next(n for n in _NAMES if n not in others)
    return (name,) if count == 1 else tuple(f"{name}.{i}" for i in range(count))


def _draw(model: nn.Module, name: str, batch: Batch) -> Mapping[str, Any]:
    """Return what a module draws for a batch."""
    draws, there = _Draws(), batch
    if (weight := next(model.parameters(), None)) is not None:
        floats = batch.map_tensors(lambda t: t.to(weight.dtype) if t.is_floating_point() else t)
        there = floats.to(weight.device)
    try:
        with torch.no_grad(), torch.random.fork_rng(), draws:
            torch.manual_seed(seed_of(batch))
            model(*there.args, **there.kwargs)
    except Exception:  # noqa: BLE001  # the user's code; the capture says why
        return {}
    if not draws.drawn:
        none = "the model itself calls no torch.randn, rand, normal or bernoulli"
        raise CaptureError(none, Omission("--noise-input"))
    return {name: draws.drawn[0] if len(draws.drawn) == 1 else draws.drawn}


def noise_input(model: Any) -> nn.Module:
    """Return a model that takes the random numbers that it draws as one more input, `noise`.

    A runtime that gets them computes the same again, and the quantized file is compared with the
    model on the same numbers. Data need not have them: a batch without gets numbers that the model
    draws on it, which depend on the batch alone.

    Args:
        model: an ONNX file of `load_model` with nodes that draw, or a module that calls
            torch.randn, rand, randn_like, rand_like, normal or bernoulli, or fills tensors by
            `normal_`, `uniform_`, `exponential_` or `bernoulli_`, as voices do. It stays as it is,
            and shares its weights.

    Returns:
        The model. With several draws the input is a list: `noise.0`, `noise.1` and so on.

    Raises:
        CaptureError: the model is no module, whose code draws, or no node of the file draws.

    Example:
        >>> voice = qtool.noise_input(model)  # for capture_model, quantize and evaluate
    """
    model = uncompiled(model)
    if not isinstance(model, nn.Module):
        what = f"{argument('--noise-input')} is for an nn.Module, not a {type(model).__name__}"
        raise CaptureError(what, ModelEdit("give the module that it was made of"))
    if (own := attribute(model, WITH_NOISE)) is not None:
        with_noise: nn.Module = own()
        return with_noise
    noisy, kind = copy.copy(model), type(model)
    replaced = vars(noisy).pop("forward", None)  # by a library, on this object
    signature = inspect.signature(model.forward)
    (name,) = noise_names(1, signature.parameters)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        value = kwargs.pop(name, None)
        with _Draws([value] if isinstance(value, torch.Tensor) else value):
            return (replaced or kind.forward.__get__(self))(*args, **kwargs)

    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    keyword = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
    own = sorted([first, *signature.parameters.values(), keyword], key=lambda p: p.kind)
    forward.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]  # read by inspect
    members = {"forward": forward, NOISE: Noise((name,), partial(_draw, model, name))}
    noisy.__class__ = type(kind.__name__, (kind,), members)
    return noisy
