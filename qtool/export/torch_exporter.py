"""From an ExportedProgram to an ONNX graph, by the translations of torch.onnx.

`torch.onnx.export` traces a program again before it translates it: to take operators apart that it
has no translation of, and to write out type promotion. Our graphs are functional, and most of them
hold neither; those are translated as they are, in a fifth of the time. All others go the whole way.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes.common import InlinePass
from onnxscript import version_converter
from torch import fx
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from qtool import graph as G
from qtool.graph.alone import quiet

__all__ = ["translate"]

Table = Mapping[Any, Callable[..., Any]]
_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir")


def translate(program: ExportedProgram, table: Table, opset: int) -> ir.Model:
    """The program as an ONNX graph; `table` has translations of our own, which go first.

    Raises:
        Exception: whatever torch.onnx raises where an operator has no form in ONNX.
    """
    with quiet(logging.ERROR, *_LOGGERS, errors=True):
        registry = _registry(opset, tuple(table.items()))
        if registry is not None and all(map(registry.is_registered, _operators(program))):
            return _in_opset(_as_it_is(program, registry, table), opset)
        written = torch.onnx.export(
            program,
            dynamo=True,
            custom_translation_table=dict(table),
            optimize=False,
            verbose=False,
            opset_version=opset,
        )
    assert written is not None
    return written.model


def _as_it_is(program: ExportedProgram, registry: Any, table: Table) -> ir.Model:
    from torch.onnx._internal.exporter import _core, _fx_passes

    module = program.graph_module
    if any(_mixes_types(n) for n in G.calls(module.graph) if n.target not in table):
        _fx_passes.insert_type_promotion_nodes(module)
    model: ir.Model = _core._exported_program_to_onnx_program(program, registry=registry).model
    if model.functions:
        InlinePass()(model)
    return model


def _in_opset(model: ir.Model, opset: int) -> ir.Model:
    """Translations write the oldest opset that has their operators; a target may want a newer one
    (16-bit codes do)."""
    if model.opset_imports.get("") != opset:
        version_converter.convert_version(model, opset, fallback=True)
    return model


@lru_cache(maxsize=4)
def _registry(opset: int, table: tuple[tuple[Any, Callable[..., Any]], ...]) -> Any:
    """The translations that torch.onnx would take; None where torch has no such parts."""
    try:  # seen in torch 2.8 to 2.13
        from torch.onnx._internal.exporter import _core, _fx_passes, _registration

        parts = _core._exported_program_to_onnx_program, _fx_passes.insert_type_promotion_nodes
        registry = _registration.ONNXRegistry.from_torchlib(opset_version=opset)
    except (ImportError, AttributeError, TypeError):
        return None
    assert all(map(callable, parts))
    for target, function in table:
        registry.register_op(target, function, is_complex=False)
    return registry


def _operators(program: ExportedProgram) -> set[Any]:
    called = {n.target for n in G.calls(program.graph_module.graph)}
    return called - {operator.getitem}


def _mixes_types(node: fx.Node) -> bool:
    """Whether ATen promotes types here, which ONNX does not: anything but float32 alone."""
    values = pytree.tree_leaves(fx.node.map_arg((node.args, node.kwargs), G.value))
    read = {v.dtype for v in values if isinstance(v, torch.Tensor)}
    made = {v.dtype for v in pytree.tree_leaves(G.value(node)) if isinstance(v, torch.Tensor)}
    return bool(read) and read | made != {torch.float32}
