"""Plugins: folders below `qtool/plugins`, whose parts are imported when they are used.

A plugin is a package with a record, `PLUGIN`. No other package imports it: what qtool needs of it,
it asks for here, by a name.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from qtool.core.errors import InstallError
from qtool.core.on_use import load
from qtool.core.remedies import Package
from qtool.core.versions import DISTRIBUTION

PACKAGE = "qtool.plugins"

Parts = Mapping[str, str]
"""Name -> "module:attribute"."""


@dataclass(frozen=True)
class Plugin:
    """What a plugin adds; a name is unique within its kind.

    Attributes:
        functions: what other packages call.
        targets: a `Target` each.
        formats: a `FileFormat` each.
        profiles: a numerics `Profile` each.
        runtimes: an `OtherRuntime` each, for ONNX files.
        documents: dataclasses that commands print as JSON.
    """

    functions: Parts = field(default_factory=dict)
    targets: Parts = field(default_factory=dict)
    formats: Parts = field(default_factory=dict)
    profiles: Parts = field(default_factory=dict)
    runtimes: Parts = field(default_factory=dict)
    documents: Parts = field(default_factory=dict)


@cache
def plugins() -> Mapping[str, Plugin]:
    """Return folder -> record, of all plugins of this installation, sorted."""
    folders = import_module(PACKAGE).__path__
    names = sorted(module.name for module in pkgutil.iter_modules(folders))
    return {name: load(f"{PACKAGE}.{name}:PLUGIN") for name in names}


def parts(kind: str) -> Parts:
    """Return the parts of one kind, such as "functions", of all plugins."""
    return {name: where for p in plugins().values() for name, where in getattr(p, kind).items()}


def part(kind: str, name: str) -> Any:
    """Import a part of a kind by its name.

    Raises:
        InstallError: this installation has no plugin with it.
    """
    known = parts(kind)
    if name not in known:
        raise missing(f"{name}, one of the {kind.replace('_', ' ')} of plugins,")
    return load(known[name])


def function(name: str) -> Any:
    """Import a function; see `part`."""
    return part("functions", name)


def missing(what: str) -> InstallError:
    """Return the error of a name of qtool whose plugin this installation lacks.

    Args:
        what: the name, with its kind, at the begin of a sentence.
    """
    sentence = f"{what} is a part of qtool that this installation lacks ({PACKAGE})"
    return InstallError(sentence, Package(DISTRIBUTION, "install {} again"))
