"""Integer coverage of an ONNX file by the kernels that its runtime reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qtool.backends.onnx.graph import Node, Value
from qtool.backends.onnx.reading import OnnxModel, array_of, is_constant, name_of
from qtool.backends.runtime import ExecutedKernel, Runtime
from qtool.planning.plan import Execution, QuantPlan
from qtool.verification.coverage import AuditRow, Coverage, audited_operators, runs_on_codes

_AFFINE = ("Add", "BatchNormalization", "Div", "Mul", "Sub")


def executed_coverage(path: str | Path, plan: QuantPlan, runtime: Runtime) -> Coverage:
    """Return the coverage that a runtime reports for a file.

    Args:
        path: the file.
        plan: the plan of the file.
        runtime: one that reports its kernels.

    Raises:
        VerificationError: the runtime does not load the file.
    """
    assert runtime.executed_kernels is not None
    kernels = {name: kernel for kernel in runtime.executed_kernels(path) for name in kernel.nodes}
    nodes = {n.name: n for n in OnnxModel.of(path).nodes if n.outputs}
    duplicates = _find_duplicates(nodes.values())
    rows, fused = [], set[str]()
    for d in audited_operators(plan):
        kernel = _kernel_of(nodes.get(d.node), d.node, kernels)
        if kernel is None and d.node in duplicates:
            kernel = _kernel_of(None, duplicates[d.node], kernels)
        followers = _affine_followers(nodes.get(d.node)) if kernel is None and d.macs else ()
        for follower in followers:
            fused.add(str(follower.name))
            if (kernel := _kernel_of(follower, str(follower.name), kernels)) is not None:
                break
        planned = runs_on_codes(d.execution)
        other = f"{runtime.title} runs it in float" if planned else d.reason
        if d.node in fused or (kernel is None and not d.macs):
            kind, integer = "part of another kernel", planned
        else:
            kind = "not found" if kernel is None else kernel.kind
            integer = planned and kernel is not None and kernel.integer
        reason, weights = "" if integer else other, d.execution is Execution.WEIGHTS
        rows.append(AuditRow(d.node, d.op, kind, integer, d.macs, reason, weights, d.macs_known))
    return Coverage(str(runtime), tuple(rows))


def _kernel_of(
    node: Node | None, name: str, kernels: Mapping[str, ExecutedKernel]
) -> ExecutedKernel | None:
    """Return the kernel of a node, found by the node's name or by that of its output."""
    return kernels.get(name) or (kernels.get(name_of(node.outputs[0])) if node else None)


def _affine_followers(node: Node | None) -> Iterator[Node]:
    """Iterate over affine nodes that are the only reader of the result before them.

    A runtime fuses them into the first kernel, which gets the name of the last.
    """
    while node is not None:
        uses = list(node.outputs[0].uses)
        node = uses[0].node if len(uses) == 1 else None
        affine = node is not None and node.op_type in _AFFINE and any(map(is_constant, node.inputs))
        if node is None or not (affine or node.op_type == "Neg"):
            return
        yield node


_SMALL = 1 << 16  # values: a larger weight is identified by its name


def _find_duplicates(nodes: Iterable[Node]) -> Mapping[str, str]:
    """Return the name of each duplicate -> that of the first node like it; a runtime computes one.

    Args:
        nodes: nodes in topological order.
    """
    source: dict[str, Any] = {}  # tensor -> what it is computed from
    first: dict[Any, str] = {}
    duplicates = {}
    for node in nodes:
        inputs = tuple(_source(value, source) for value in node.inputs)
        key = (node.domain, node.op_type, str(sorted(node.attributes.items())), inputs)
        original = first.setdefault(key, str(node.name))
        if original != node.name:
            duplicates[str(node.name)] = original
        source |= {name_of(o): (original, i) for i, o in enumerate(node.outputs)}
    return duplicates


def _source(value: Value | None, source: Mapping[str, Any]) -> Any:
    if value is None:
        return None
    name = name_of(value)
    array = array_of(value) if is_constant(value) and name not in source else None
    if array is None or array.size > _SMALL:
        return source.get(name, name)
    return str(array.dtype), array.shape, array.tobytes()
