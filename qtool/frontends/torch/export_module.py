"""Captures an nn.Module as a float graph with torch.export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.data.named_tensors import key_text
from qtool.core.data.noise_inputs import Noise
from qtool.core.errors import CaptureError, describe
from qtool.core.graph.finite_outputs import check_outputs
from qtool.core.graph.float_tolerance import (
    COMPARED_SAMPLES,
    TOLERANCE,
    float_tolerance,
    largest_distance,
)
from qtool.core.memory import relaxed_gc
from qtool.core.on_use import OnUse
from qtool.core.process_lock import silence_logging
from qtool.core.remedies import DataEdit, ModelEdit
from qtool.core.shield import defer_signals
from qtool.frontends.torch.example_inputs import (
    check_axes,
    check_inputs,
    double_single_sample,
    is_default,
    name_keyword_inputs,
    sizes_of,
    unshare_inputs,
)
from qtool.frontends.torch.exported_program import from_program
from qtool.frontends.torch.fast_shapes import fast_shapes
from qtool.frontends.torch.shape_decisions import open_lengths, run_model, shape_conditions
from qtool.frontends.torch.stored_numbers import stored_numbers

_ERRORS = "qtool.frontends.torch.export_errors"
_eager_problem = OnUse(f"{_ERRORS}:eager_problem")
_explain_export_error = OnUse(f"{_ERRORS}:explain_export_error")
_run_error = OnUse(f"{_ERRORS}:run_error")
DynamicShapes = Mapping[str, Mapping[int, str]]


@relaxed_gc()
def capture_module(
    model: nn.Module,
    example: Batch,
    dynamic: DynamicShapes | None = None,
    has_weights: bool = True,
) -> G.FloatGraph:
    """Capture a model in eval mode with torch.export.

    Args:
        model: the user's module, which stays unchanged.
        example: one batch of inputs.
        dynamic: input name -> {dimension: name} of dimensions that vary at run time; by default
            dimension 0 ("batch") of every tensor input, to which `AddedSizes` adds others.
        has_weights: False for a model without weight values; the graph is then not compared with
            the model.

    Raises:
        CaptureError: a module is in training mode, the inputs do not fit the model's forward, or
            torch.export cannot trace it; names the line of the user's code if it is known.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise CaptureError(
            "the model is a TorchScript module, which torch.export does not support",
            ModelEdit("give the original nn.Module"),
        )
    _refuse_wrapped(model)
    _refuse_training(model)
    if has_weights:
        _refuse_meta(model)
    with preserve_attributes(model):
        name_keyword_inputs(model, example)
        two = unshare_inputs(double_single_sample(model, example, dynamic))
        graph = from_program(_export(model, example, two, dynamic))
        _name_dims(graph, dynamic)
    if has_weights:
        with preserve_attributes(model):
            _check_outputs(model, graph)
            graph.size_conditions = shape_conditions(model, graph, ranges=dynamic is not None)
    return graph


def _export(
    model: nn.Module, example: Batch, two: Batch, dynamic: DynamicShapes | None
) -> ExportedProgram:
    spec, two = _dynamic_spec(model, two, dynamic), two.to(G.device_of(model))
    try:
        with (
            preserve_attributes(model),
            silence_logging(),
            _no_transformer_fast_path(),
            fast_shapes(),
            open_lengths(model),
            stored_numbers(),
            defer_signals(),
        ):
            return torch.export.export(
                model, two.args, two.kwargs, dynamic_shapes=spec, strict=False
            )
    except (Exception, SystemExit) as error:
        raise _explain_export_error(model, example, two, error) from error


def _check_outputs(model: nn.Module, graph: G.FloatGraph) -> None:
    """Check that the graph computes the model's outputs on the example.

    Raises:
        CaptureError: the outputs differ.
    """
    batch = graph.smaller(Batch(*graph.example), COMPARED_SAMPLES)
    before = scalar_attributes(model)
    try:
        expected = run_model(model, batch)
        again = expected if scalar_attributes(model) == before else run_model(model, batch)
    except (Exception, SystemExit) as error:
        if (problem := _eager_problem(model, batch)) is not None:
            raise _run_error(model, batch, problem) from error
        raise CaptureError(
            f"the captured model fails when it is called again: {describe(error)}"
        ) from error
    with torch.no_grad(), silence_logging():
        runner = _ShapeChecker(graph.module)
        leaves = graph.leaves_of(batch)
        actual = pytree.tree_leaves(runner.run(*leaves, enable_io_processing=False))
    if runner.mismatch is not None:
        node, sizes = runner.mismatch
        raise CaptureError(
            f"{G.name_of(node)} has the shape {sizes} on the example, but torch.export assumes "
            f"{list(G.shape(node))}: it assumes that a size computed from data is never 1",
            ModelEdit("write that size as a number in the model"),
            DataEdit("give a first batch in which it is larger"),
        )
    index, gap = max(
        largest_distance(expected, actual),
        largest_distance(expected, again),
        key=lambda pair: pair[1],
    )
    if gap > TOLERANCE and gap > float_tolerance(graph.module, batch.args, batch.kwargs):
        check_outputs(graph, batch, [*expected, *actual], 0)
        name = graph.outputs[index]
        raise CaptureError(
            f"output '{name}' of the captured graph differs from the model's by {gap:.2g} of its "
            "range: the model changes between calls, or depends on something that torch.export "
            "does not see",
            ModelEdit("make it depend on its inputs alone"),
        )


class _ShapeChecker(fx.Interpreter):
    """Runs a graph and compares the shapes of results with the fixed sizes in the graph.

    Attributes:
        mismatch: the first node with different sizes, and these; None without one.
    """

    mismatch: tuple[fx.Node, list[int]] | None = None

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, torch.Tensor) and self.mismatch is None:
            pairs = zip(G.shape(n), result.shape, strict=True)
            if any(_number(stated) not in (None, size) for stated, size in pairs):
                self.mismatch = n, list(result.shape)
        return result


def _number(size: Any) -> int | None:
    """Return a fixed size, or one that torch.export specialized; None for a dynamic size."""
    return size if isinstance(size, int) else size.node.maybe_as_int()


@contextmanager
def _no_transformer_fast_path() -> Iterator[None]:
    """Run nn.Transformer layer by layer, without its fast paths, which cannot be exported.

    One is a single fused operator, the other inspects the values of a mask to see whether it is
    causal. The result is the same: the mask is applied as it is.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with mock.patch("torch.nn.modules.transformer._detect_is_causal_mask", _declared_causality):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _declared_causality(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
    return bool(is_causal)


_OBSERVING = {"FakeQuantizeBase", "ObserverBase"}
"""Classes of torch.ao, whose import takes long."""


def _refuse_wrapped(model: nn.Module) -> None:
    """Refuse models of torch that hold another one, or codes."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        kind = type(model).__name__
        raise CaptureError(f"the model is a {kind}", ModelEdit("give the one inside, model.module"))
    for path, module in model.named_modules():
        if type(module).__module__.startswith("torch.ao.nn.quantized"):
            where = f"'{path}' is a {type(module).__name__} of torch.ao"
            raise CaptureError(
                f"the model is quantized already ({where})", ModelEdit("give the float model")
            )
        if _OBSERVING & {each.__name__ for each in type(module).__mro__}:
            where = f"'{path}' is a {type(module).__name__}"
            raise CaptureError(
                f"torch.ao prepared the model for quantization ({where})",
                ModelEdit("give the float model"),
            )


def _refuse_training(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if module.training and (not path or type(module).__module__.startswith("torch.nn")):
            where = f"module '{path}' ({type(module).__name__})" if path else "the model"
            raise CaptureError(f"{where} is in training mode", ModelEdit("call model.eval() first"))


def _refuse_meta(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise CaptureError(
                f"'{name}' is on the meta device, which has no values",
                ModelEdit("load the weights first"),
            )


def _dynamic_spec(model: nn.Module, example: Batch, dynamic: DynamicShapes | None) -> Any:
    named = example.arguments_of(model)
    check_inputs(dynamic, named)
    noise = Noise.of(model)

    def spec(path: Any, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return None
        if noise is not None and key_text(path[0]) in noise.names:  # its sizes are of other inputs
            return dict.fromkeys(range(leaf.dim()), Dim.AUTO)
        default = {0: Dim.AUTO} if leaf.dim() and is_default(dynamic) else {}
        if dynamic is None:
            return default or None
        name = ".".join(map(key_text, path))
        wanted = sizes_of(name, dynamic)
        check_axes(name, wanted, leaf)
        return {**default, **dict.fromkeys(wanted, Dim.DYNAMIC)} or None

    leaves, tree = pytree.tree_flatten_with_path(dict(named))
    return _nested(tree, iter([spec(path, leaf) for path, leaf in leaves]))


def _nested(tree: Any, leaves: Iterator[Any]) -> Any:
    """Return leaves in builtin containers for torch.export; a custom one becomes a list."""
    if tree.is_leaf():
        return next(leaves)
    below = tree.children() if hasattr(tree, "children") else tree.children_specs  # torch < 2.10
    children = [_nested(child, leaves) for child in below]
    if tree.type.__module__ in ("builtins", "collections"):
        return pytree.SUPPORTED_NODES[tree.type].unflatten_fn(children, tree.context)
    return children


def _name_dims(graph: G.FloatGraph, dynamic: DynamicShapes | None) -> None:
    """Give dimensions the names in `dynamic`."""
    if dynamic is None:
        return

    first: dict[str, str] = {}  # dimensions that torch.export has as equal have one name
    for node in G.placeholders(graph.graph):
        for axis, name in sizes_of(G.name_of(node), dynamic).items():
            first.setdefault(str(G.shape(node)[axis]), name)
    graph.dims |= first
    sums = _sums(graph.dims)
    graph.dims |= sums
    graph.inputs = tuple(
        replace(
            i,
            shape=tuple(
                sums.get(str(s), first[str(s)] if k in sizes_of(i.name, dynamic) else i.shape[k])
                for k, s in enumerate(G.shape(node))
            ),
        )
        for i, node in zip(graph.inputs, G.placeholders(graph.graph), strict=True)
    )


def _sums(dims: Mapping[str, str]) -> dict[str, str]:
    """Return the sizes that are sums of named ones, each with the names of its terms.

    Args:
        dims: symbol or expression -> name; "s0 + s1" -> "total" becomes "past + sequence".
    """
    terms = {size: size.split(" + ") for size in dims if " + " in size}
    return {
        size: " + ".join(sorted(dims[p] for p in parts))
        for size, parts in terms.items()
        if all(p in dims for p in parts)
    }


# Saves and restores a module's Python attributes, and detects changes to them.
#
# A model may create a mask at its first call and store it. While torch.export traces, that is a
# fake tensor, which must not stay in the user's model.


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
