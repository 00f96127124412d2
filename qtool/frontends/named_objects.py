"""Objects by name, as a command line gives them: `package.module:name`, or a call of it."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from typing import Any

from qtool.core.errors import QtoolError, describe


def import_object(source: str, kind: type[QtoolError]) -> Any:
    """What `package.module:name` or `package.module` is; looked for in the current directory first.

    Raises:
        `kind`: it cannot be imported; says why.
    """
    module, colon, name = source.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
        for part in name.split(".") if colon else ():
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise kind(f"cannot import {source}: {describe(error)}") from error
    return found


def is_call(source: str) -> bool:
    """Whether it is written as `package.module:factory(...)`."""
    return source.rstrip().endswith(")") and "(" in source


def evaluate_call(source: str, kind: type[QtoolError]) -> Any:
    """What `package.module:factory(arguments)` returns; arguments are literals, nothing is
    evaluated.

    Raises:
        `kind`: it is written otherwise, cannot be imported, or the call fails.
    """
    name, args, kwargs = parse_call(source, kind)
    return call_user_code(import_object(name, kind), args, kwargs, source, kind)


def call_user_code(
    function: Any, args: list[Any], kwargs: dict[str, Any], source: str, kind: type[QtoolError]
) -> Any:
    """The result of a call into the user's code.

    Raises:
        `kind`: it fails or exits.
    """
    try:
        return function(*args, **kwargs)
    except QtoolError:
        raise
    except (Exception, SystemExit) as error:
        shown = source if is_call(source) else f"{source}()"
        raise kind(f"calling {shown} failed: {describe(error)}") from error


def parse_call(source: str, kind: type[QtoolError]) -> tuple[str, list[Any], dict[str, Any]]:
    """`package.module:factory` and its arguments, of a call written with literals.

    Raises:
        `kind`: it is written otherwise.
    """
    module, _, call = source.partition(":")
    try:
        tree: Any = ast.parse(call.strip(), mode="eval").body
        args = [ast.literal_eval(a) for a in tree.args]
        kwargs = {k.arg: ast.literal_eval(k.value) for k in tree.keywords}
        name = ast.unparse(tree.func)
    except (AttributeError, ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise kind(
            f"'{source}' is no call that can be read ({describe(error)}); write "
            "package.module:factory(arguments), each argument a number, a text, a list or a dict"
        ) from error
    return f"{module}:{name}", args, kwargs
