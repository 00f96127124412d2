"""Which entries of a batch are arguments of a model: the others are labels and metadata."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from qtool.core.columns import InputNames
from qtool.core.data.batch import NAMED, Batch
from qtool.core.leaf_names import LABELS
from qtool.core.user_code import attribute, uncompiled
from qtool.core.value_names import NODE_NAME

_SEPARATORS = re.compile(r"[^0-9A-Za-z]+")
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Arguments(InputNames):
    """What a model's forward takes.

    Attributes:
        positional: number of positional arguments; None: any number, or unknown.
    """

    positional: int | None = None

    @classmethod
    def of(cls, model: nn.Module | None) -> Arguments:
        """Return the arguments of a model's forward; of None, any."""
        if model is None:
            return cls()
        try:
            parameters = list(inspect.signature(uncompiled(model).forward).parameters.values())
        except ValueError:
            return cls()
        variadic = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
        positional = sum(p.kind in _POSITIONAL for p in parameters)
        required = (p.name for p in parameters if p.default is p.empty and p.kind in NAMED)
        inputs = _input_names(model)
        anything = any(p.kind in _VARIADIC for p in parameters)
        names = None if anything else frozenset([*(p.name for p in parameters), *inputs])
        return cls(inputs or frozenset(required), names, None if variadic else positional)

    def of_batch(self, batch: Batch) -> tuple[Batch, str | None]:
        """Return the entries of a batch that are arguments, and a note on the others.

        Labels are left out unless they are required, and so are entries that are no argument: those
        without tensors, and all where the required arguments are there. The only entry is taken for
        the only required argument, whatever its key.
        """
        notes = []
        labels = [k for k in batch.kwargs if k in LABELS and k not in self.required]
        if labels and len(labels) < len(batch.kwargs):
            batch = Batch(batch.args, {k: v for k, v in batch.kwargs.items() if k not in labels})
            notes.append(f"'{', '.join(labels)}' in the batches is left out: labels are no input")
        if extra := self._extra(batch):
            batch = Batch(batch.args, {k: v for k, v in batch.kwargs.items() if k not in extra})
            names = ", ".join(extra)
            notes.append(f"'{names}' in the batches is left out: the model has no such input")
        key = next(iter(batch.kwargs), "")
        only = len(batch.kwargs) == len(self.required) == 1 and not batch.args
        if only and self.names is not None and key not in self.names:
            (name,) = self.required
            batch = Batch((batch.kwargs[key],))
            notes.append(f"'{key}' in the batches is the input '{name}'")
        return batch, "; ".join(notes) or None

    def _extra(self, batch: Batch) -> list[str]:
        """Return the keys of entries that are no argument, as far as that is certain."""
        if self.names is None:
            return []
        unknown = [key for key in batch.kwargs if not self._knows(key)]
        complete = bool(self.required) and self.required <= batch.kwargs.keys()
        extra = [k for k in unknown if complete or not _has_tensors(batch.kwargs[k])]
        return extra if len(extra) < len(batch.kwargs) else []

    def _knows(self, key: str) -> bool:
        """Return whether a key is the name of an argument, or the begin of names of nested ones."""
        assert self.names is not None
        plain = _SEPARATORS.sub("_", key)
        known = (_SEPARATORS.sub("_", name) for name in self.names)
        return any(name == plain or name.startswith(f"{plain}_") for name in known)


def _has_tensors(value: object) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


def _input_names(model: nn.Module) -> frozenset[str]:
    """Return the names of inputs that are more than Python identifiers: of files and graphs."""
    if isinstance(model, fx.GraphModule):
        inputs = model.graph.find_nodes(op="placeholder")
        return frozenset(str(node.meta.get(NODE_NAME, node.target)) for node in inputs)
    return frozenset(attribute(model, "qtool_input_names", default=()))
