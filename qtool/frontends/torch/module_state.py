"""What a module keeps beside its tensors: put back as it was, and looked at for changes.

A model may make a mask at its first call and keep it. While torch.export traces, what it keeps so
is no tensor with values, and would stay in the user's model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

_Place = tuple[Any, Any]  # a container, and what it held


@contextmanager
def preserve_attributes(model: nn.Module) -> Iterator[None]:
    """Afterwards all modules have the attributes that they had, and their lists and dicts hold what
    they held."""
    before = [place for module in model.modules() for place in _containers(module)]
    try:
        yield
    finally:
        for container, held in before:
            _restore(container, held)


def _containers(module: nn.Module) -> Iterator[_Place]:
    attributes = vars(module)
    yield attributes, dict(attributes)
    for value in attributes.values():
        if type(value) is list:
            yield value, list(value)
        elif isinstance(value, dict):
            yield value, dict(value)


def _restore(container: Any, held: Any) -> None:
    pairs = zip(container, held, strict=False)
    if isinstance(container, list):
        if len(container) != len(held) or any(a is not b for a, b in pairs):
            container[:] = held
    elif container.keys() != held.keys() or any(container[k] is not held[k] for k in held):
        container.clear()
        container.update(held)


def scalar_attributes(model: nn.Module) -> list[tuple[str, Any]]:
    """The numbers and texts among the attributes of all modules: what a model that counts its calls
    changes at each."""
    return [
        (f"{path}.{name}", value)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, int | float | str)
    ]
