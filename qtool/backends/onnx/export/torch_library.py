"""The functions of onnxscript's library that a graph needs.

The library parses 500 functions when it is imported, half a second of CPU time, and registering one
parses it again: longer than translating a network. A copy of it is imported here, whose functions
are parsed on use. The library itself is left to torch.onnx and others as it is.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import cache, cached_property
from importlib import import_module
from types import FunctionType
from typing import Any
from unittest import mock

import torch


@contextmanager
def library_of(operators: Set[Any]) -> Iterator[None]:
    """Restrict the library that torch.onnx registers to these operators."""
    from onnxscript.function_libs import torch_lib
    from onnxscript.function_libs.torch_lib import registration

    functions = _library()
    few: Any = registration.Registry()  # type: ignore[no-untyped-call]  # onnxscript declares none
    for name in {_name_in_library(target) for target in (*operators, operator.getitem)}:
        for function, is_complex in functions.get(name, ()):
            few.register(function.parsed, name, complex=is_complex)
    with (
        mock.patch.object(torch_lib, "ops", None, create=True),  # else its import fills the other
        mock.patch.object(registration, "default_registry", few),
    ):
        yield


_COPY = " of qtool"


@cache
def _library() -> Mapping[str, list[tuple[_Function, bool]]]:
    """Import a copy of the library of which no function is parsed.

    Returns:
        Name of an operator -> functions, and whether each is of complex numbers.
    """
    from onnxscript.function_libs import torch_lib
    from onnxscript.function_libs.torch_lib import registration

    parse, functions = registration.torch_op, dict[str, list[tuple[_Function, bool]]]()

    def collect(names: str | tuple[str, ...], **options: Any) -> Callable[..., _Function]:
        def wrap(function: FunctionType) -> _Function:
            function.__module__ += _COPY
            unparsed = _Function(function, parse(names, **{**options, "private": True}))
            if not options.get("private"):
                for name in (names,) if isinstance(names, str) else names:
                    entry = unparsed, bool(options.get("complex"))
                    functions.setdefault(name, []).append(entry)
            return unparsed

        return wrap

    library, loaded = f"{torch_lib.__name__}.ops", vars(torch_lib).pop("ops", None)
    others = {n: sys.modules.pop(n) for n in list(sys.modules) if n.startswith(library)}
    with mock.patch.object(registration, "torch_op", collect):
        import_module(library)
    for name in [n for n in sys.modules if n.startswith(library)]:
        sys.modules[name + _COPY] = sys.modules.pop(name)  # where the parser finds its source
    sys.modules.update(others)
    if loaded is None:
        del vars(torch_lib)["ops"]
    else:  # what others imported
        vars(torch_lib)["ops"] = loaded
    return functions


class _Function:
    """A function of the library that is parsed on use."""

    def __init__(self, function: FunctionType, parse: Callable[[FunctionType], Any]) -> None:
        self._function, self._parse = function, parse

    @cached_property
    def parsed(self) -> Any:
        """What onnxscript makes of the function; its parser has to see the functions it calls."""
        scope = self._function.__globals__
        for name in self._function.__code__.co_names:
            if isinstance(scope.get(name), _Function) and scope[name] is not self:
                scope[name] = scope[name].parsed
        return self._parse(self._function)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.parsed(*args, **named)


def _name_in_library(target: Any) -> str:
    """Return "aten::add.Tensor" of an operator, "_operator::mul" of a function of Python."""
    if isinstance(target, torch._ops.OpOverload):
        name: str = target.name()
        return name
    return f"{getattr(target, '__module__', '')}::{getattr(target, '__name__', '')}"
