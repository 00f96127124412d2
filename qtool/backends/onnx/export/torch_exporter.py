"""From an ExportedProgram to an ONNX graph, by the translations of torch.onnx.

`torch.onnx.export` traces a program again before it translates it, to decompose operators without
translation and to insert type promotions. Graphs here are functional and most of them need neither;
those are translated directly, in a fifth of the time. All others go the whole way.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes.common import InlinePass
from onnxscript import version_converter
from torch import fx
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from qtool.backends.onnx.export.torch_library import library_of
from qtool.backends.onnx.operators.schemas import TorchOperator, Writer
from qtool.core import graph as G
from qtool.core.process_lock import silence_logging
from qtool.core.shield import defer_signals
from qtool.passes import FOR_FILES, run_passes
from qtool.planning.targets import Target

aten = torch.ops.aten
Table = Mapping[Any, Writer]
_DECOMPOSED: Mapping[Any, Any] = {  # operators that torch.onnx decomposes to these
    aten.__and__.Tensor: aten.bitwise_and.Tensor,
    aten.__or__.Tensor: aten.bitwise_or.Tensor,
    aten.__xor__.Tensor: aten.bitwise_xor.Tensor,
}
_TYPED = (aten.index, aten._to_copy, aten.sym_size)
"""Operators whose result type is not a promoted one."""
_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir")


def translate(program: ExportedProgram, table: Table, opset: int) -> ir.Model:
    """Return the program as an ONNX graph; translations in `table` take precedence.

    Raises:
        Exception: what torch.onnx raises for an operator without ONNX form.
    """
    for node in G.calls(program.graph_module.graph):
        node.target = _DECOMPOSED.get(node.target, node.target)
    with silence_logging(logging.ERROR, *_LOGGERS, keep_stderr=True), defer_signals():
        operators = _operators(program)
        registry = _registry(opset, tuple(table.items()), operators)
        if registry is not None and all(map(registry.is_registered, operators)):
            return _in_opset(_translate_directly(program, table, opset), opset)
        return _translate_all(program, table, opset)


def _translate_all(program: ExportedProgram, table: Table, opset: int) -> ir.Model:
    """Translate as `torch.onnx.export` does, which would register its library each time."""
    options: Any = {"optimize": False, "verbose": False, "opset_version": opset}
    registry = _registry(opset, tuple(table.items()))
    if registry is None:
        written = torch.onnx.export(
            program, dynamo=True, custom_translation_table=dict(table), **options
        )
    else:
        from torch.onnx._internal.exporter import _core

        written = _core.export(program, registry=registry, **options)
    assert written is not None
    return written.model


def _translate_directly(program: ExportedProgram, table: Table, opset: int) -> ir.Model:
    from torch.onnx._internal.exporter import _core, _fx_passes

    module = program.graph_module
    if any(n.target not in table and _promotes_types(n) for n in G.calls(module.graph)):
        _fx_passes.insert_type_promotion_nodes(module)
    registry = _registry(opset, tuple(table.items()), _operators(program))
    model: ir.Model = _core._exported_program_to_onnx_program(program, registry=registry).model
    if model.functions:
        InlinePass()(model)
    return model


def _in_opset(model: ir.Model, opset: int) -> ir.Model:
    """Return the model in an opset.

    Translations write the oldest opset that has their operators; a target may need a newer one, as
    16-bit codes do.
    """
    if model.opset_imports.get("") != opset:
        version_converter.convert_version(model, opset, fallback=True)
    return model


@lru_cache(maxsize=8)  # of few operators, of the float file and the other, and whole ones
def _registry(
    opset: int,
    table: tuple[tuple[TorchOperator, Writer], ...],
    operators: frozenset[Any] | None = None,
) -> Any:
    """Return the translations of torch.onnx, all or those of some operators.

    None if torch lacks these internals.
    """
    try:  # present in torch 2.11 to 2.15
        from torch.onnx._internal.exporter import _core, _fx_passes, _registration

        parts = _core._exported_program_to_onnx_program, _fx_passes.insert_type_promotion_nodes
        with nullcontext() if operators is None else library_of(operators):
            registry = _registration.ONNXRegistry.from_torchlib(opset_version=opset)
    except (ImportError, AttributeError, TypeError):
        return None
    assert all(map(callable, parts))
    for target, function in table:
        registry.register_op(target, function, is_complex=False)
    return registry


def _operators(program: ExportedProgram) -> frozenset[Any]:
    called = {n.target for n in G.calls(program.graph_module.graph)}
    return frozenset(called - {operator.getitem})


def _promotes_types(node: fx.Node) -> bool:
    """Return whether ATen may promote types here, which ONNX does not."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet in _TYPED:
        return False
    of_where = packet is aten.where
    read = node.args[1:] if of_where else node.args  # a condition is not promoted
    values = pytree.tree_leaves(fx.node.map_arg((read, node.kwargs), G.value))
    types = {v.dtype for v in values if isinstance(v, torch.Tensor)}
    real = all(t.is_floating_point for t in types)
    results = {v.dtype for v in pytree.tree_leaves(G.value(node)) if isinstance(v, torch.Tensor)}
    if len(types) > 1 or (not real and any(isinstance(v, float) for v in values)):
        return True
    return bool(types) and not results <= types | {torch.bool}


def fuse(module: fx.GraphModule, target: Target) -> fx.GraphModule:
    """Return a fused copy of a graph; the graph itself where the target fuses nothing.

    Raises:
        PassError: a fusion broke the contract of passes.
    """
    if not target.file.fusions:
        return module
    fused = G.clone(module)
    run_passes(fused, [FOR_FILES[name] for name in target.file.fusions])
    return fused
