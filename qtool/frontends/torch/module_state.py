"""Saves and restores a module's Python attributes, and detects changes to them.

A model may create a mask at its first call and store it. While torch.export traces, that is a fake
tensor, which must not stay in the user's model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

_Place = tuple[Any, Any]  # a container, and its contents


@contextmanager
def preserve_attributes(model: nn.Module) -> Iterator[None]:
    """Restore the attributes of all modules on exit, and the contents of their lists and dicts."""
    before = [place for module in model.modules() for place in _containers(module)]
    try:
        yield
    finally:
        for container, contents in before:
            _restore(container, contents)


def _containers(module: nn.Module) -> Iterator[_Place]:
    attributes = vars(module)
    yield attributes, dict(attributes)
    for value in attributes.values():
        if type(value) is list:
            yield value, list(value)
        elif isinstance(value, dict):
            yield value, dict(value)


def _restore(container: Any, contents: Any) -> None:
    pairs = zip(container, contents, strict=False)
    if isinstance(container, list):
        if len(container) != len(contents) or any(a is not b for a, b in pairs):
            container[:] = contents
    elif container.keys() != contents.keys() or any(
        container[k] is not contents[k] for k in contents
    ):
        container.clear()
        container.update(contents)


def scalar_attributes(model: nn.Module) -> list[tuple[str, Any]]:
    """Return the numbers and strings among all modules' attributes.

    They change at each call of a model that counts its calls.
    """
    return [
        (f"{path}.{name}", value)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, int | float | str)
    ]
