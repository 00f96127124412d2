"""Renames parameters whose names are not valid in generated Python code.

torch writes a graph as Python code, each weight as an attribute of its modules. A module may be
named `class` (a head in an nn.ModuleDict, say), or `graph`, an attribute of every GraphModule: such
names get an underscore. Quotes and line breaks are replaced.
"""

from __future__ import annotations

import copy
import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature

from qtool.core.unique_names import unique

_TAKEN = frozenset(dir(fx.GraphModule)) - frozenset(dir(nn.Module))
_BREAKING = re.compile(r'["\\\r\n]')


def with_valid_names(program: ExportedProgram) -> ExportedProgram:
    """Return the program, with tensors renamed where their names are not valid."""
    signature = program.graph_signature
    targets = [s.target for s in signature.input_specs if s.target is not None]
    names = _renamed([*targets, *program.state_dict, *program.constants])
    if not names:
        return program

    def renamed(spec: Any) -> Any:
        return replace(spec, target=names[spec.target]) if spec.target in names else spec

    other = copy.copy(program)
    specs = (
        [renamed(s) for s in signature.input_specs],
        [renamed(s) for s in signature.output_specs],
    )
    other._graph_signature = ExportGraphSignature(*specs)
    other._state_dict = _keyed(program.state_dict, names)
    other._constants = _keyed(program.constants, names)
    return other


def _keyed(state: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in state.items()}


def _renamed(names: Iterable[str]) -> dict[str, str]:
    known = set(names)
    renames: dict[str, str] = {}
    for name in sorted(known):
        new = ".".join(map(_plain, name.split(".")))
        if new != name:
            renames[name] = unique(new, known | set(renames.values()))
    return renames


def _plain(part: str) -> str:
    reserved = keyword.iskeyword(part) or part in _TAKEN
    return f"{part}_" if reserved else _BREAKING.sub("_", part)
