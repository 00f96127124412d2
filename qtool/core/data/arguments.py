"""Which entries of a batch are arguments of a model: the others are labels."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from torch import fx, nn

from qtool.core.attributes import attribute
from qtool.core.data.batch import NAMED, Batch
from qtool.core.value_names import NODE_NAME

LABELS = frozenset(
    {
        "class",
        "end_positions",
        "label",
        "labels",
        "next_sentence_label",
        "start_positions",
        "target",
        "targets",
        "y",
    }
)
"""Usual keys of labels in batches that are dicts."""

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Arguments:
    """What a model's forward takes.

    Attributes:
        positional: number of positional arguments; None: any number, or unknown.
        required: names of arguments without a default.
        names: names of all arguments; None: any, or unknown. The inputs of an ONNX file have two
            names, the file's and a Python identifier.
    """

    positional: int | None = None
    required: frozenset[str] = frozenset()
    names: frozenset[str] | None = None

    @classmethod
    def of(cls, model: nn.Module | None) -> Arguments:
        """Return the arguments of a model's forward; of None, and of a compiled one, any."""
        if model is None:
            return cls()
        try:
            parameters = list(inspect.signature(model.forward).parameters.values())
        except ValueError:
            return cls()
        variadic = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
        positional = sum(p.kind in _POSITIONAL for p in parameters)
        required = (p.name for p in parameters if p.default is p.empty and p.kind in NAMED)
        inputs = _input_names(model)
        anything = any(p.kind in _VARIADIC for p in parameters)
        names = None if anything else frozenset([*(p.name for p in parameters), *inputs])
        return cls(None if variadic else positional, inputs or frozenset(required), names)

    def of_batch(self, batch: Batch) -> tuple[Batch, str | None]:
        """Return the entries of a batch that are arguments, and a note on the others.

        Labels are left out unless they are required. The only entry is taken for the only required
        argument, whatever its key.
        """
        notes = []
        labels = [k for k in batch.kwargs if k in LABELS and k not in self.required]
        if labels and len(labels) < len(batch.kwargs):
            batch = Batch(batch.args, {k: v for k, v in batch.kwargs.items() if k not in labels})
            notes.append(f"'{', '.join(labels)}' in the batches is left out: labels are no input")
        key = next(iter(batch.kwargs), "")
        only = len(batch.kwargs) == len(self.required) == 1 and not batch.args
        if only and self.names is not None and key not in self.names:
            (name,) = self.required
            batch = Batch((batch.kwargs[key],))
            notes.append(f"'{key}' in the batches is the input '{name}'")
        return batch, "; ".join(notes) or None


def _input_names(model: nn.Module) -> frozenset[str]:
    """Return the names of inputs that are more than Python identifiers: of files and graphs."""
    if isinstance(model, fx.GraphModule):
        inputs = model.graph.find_nodes(op="placeholder")
        return frozenset(str(node.meta.get(NODE_NAME, node.target)) for node in inputs)
    return frozenset(attribute(model, "qtool_input_names", default=()))
