"""Imports objects by name: `package.module:name`, or a call of it, as on a command line."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qtool.core.errors import QtoolError, describe
from qtool.core.paths import is_file
from qtool.core.remedies import CallEdit, OtherFile, Package, Remedy, Setup
from qtool.core.user_code import user_place


def import_object(source: str, kind: type[QtoolError]) -> Any:
    """Import `package.module:name` or `package.module`; the current directory comes first.

    Raises:
        `kind`: the import fails.
    """
    module, colon, name = source.partition(":")
    if "://" in source:
        raise kind(f"{source} is an address", OtherFile("download it, and give the file or folder"))
    if not module or (colon and not name):
        raise kind(f"{source} is half a name", CallEdit("write package.module:name"))
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        imported: Any = importlib.import_module(module)
        for part in name.split(".") if colon else ():
            imported = getattr(imported, part)
    except (Exception, SystemExit) as error:
        why = f"{describe(error)}{user_place(error)}"
        raise kind(f"cannot import {source}: {why}", *_remedies(error, module)) from error
    return imported


def _remedies(error: BaseException, module: str) -> Sequence[Remedy]:
    """Return what to do about an error of an import."""
    if is_file(module):
        return [CallEdit("write the module of the code, package.module, not the path of a file")]
    if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
        where = Setup(f"run qtool in the folder that holds '{error.name}'")
        return [where, Package(error.name, "install that package")]
    return []


def is_call(source: str) -> bool:
    """Return whether the text has the form `package.module:factory(...)`."""
    return source.rstrip().endswith(")") and "(" in source


def evaluate_call(source: str, kind: type[QtoolError]) -> Any:
    """Return the result of `package.module:factory(arguments)`; arguments have to be literals.

    Raises:
        `kind`: the text has another form, or the import or the call fails.
    """
    name, args, kwargs = parse_call(source, kind)
    return call_user_code(import_object(name, kind), args, kwargs, source, kind)


def call_user_code(
    function: Any, args: list[Any], kwargs: dict[str, Any], source: str, kind: type[QtoolError]
) -> Any:
    """Call the user's code, and return its result.

    Raises:
        `kind`: the call raises or exits.
    """
    if missing := _missing_arguments(function, args, kwargs):
        named = source.partition("(")[0]
        raise kind(f"{named} needs {missing}", CallEdit(f"write {named}(VALUE, ...)"))
    try:
        return function(*args, **kwargs)
    except QtoolError:
        raise
    except (Exception, SystemExit) as error:
        shown = source if is_call(source) else f"{source}()"
        why = f"{describe(error)}{user_place(error)}"
        raise kind(f"calling {shown} failed: {why}") from error


def _missing_arguments(function: Any, args: list[Any], kwargs: dict[str, Any]) -> str:
    """Return the names of required arguments that a call lacks; "" if none or not known."""
    try:
        bound = inspect.signature(function)
        names = bound.bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return ""
    usual = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [
        f"'{n}'"
        for n, p in bound.parameters.items()
        if p.default is p.empty and p.kind not in usual and n not in names
    ]
    return " and ".join(required)


def parse_call(source: str, kind: type[QtoolError]) -> tuple[str, list[Any], dict[str, Any]]:
    """Return `package.module:factory`, args and kwargs of a call with literal arguments.

    Raises:
        `kind`: the text has another form.
    """
    module, _, call = source.partition(":")
    try:
        tree: Any = ast.parse(call.strip(), mode="eval").body
        args = [_literal(a) for a in tree.args]
        kwargs = {k.arg: _literal(k.value) for k in tree.keywords}
        name = ast.unparse(tree.func)
    except (AttributeError, ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise kind(
            f"cannot read the call '{source}' ({describe(error)})",
            CallEdit(
                "write package.module:factory(arguments), each argument a number, a text, a list "
                "or a dict"
            ),
        ) from error
    return f"{module}:{name}", args, kwargs


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal; raise ValueError with its text for anything else."""
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise ValueError(f"{ast.unparse(node)} is no literal") from error
