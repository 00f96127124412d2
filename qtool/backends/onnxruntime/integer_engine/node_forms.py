"""Forms of a node: each is run once, small, in the engine's kernel and in the runtime's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from onnx import ValueInfoProto, helper, numpy_helper

from qtool.backends.onnx.graph import Node, Value
from qtool.backends.onnx.reading import OnnxModel, name_of
from qtool.backends.onnxruntime.integer_engine.integer_program import Kernel
from qtool.backends.onnxruntime.integer_engine.runtime_node import runtime_graph
from qtool.core.errors import KernelError
from qtool.core.types import Array

_OPSET = 17
_matches: dict[NodeForm, bool] = {}


@dataclass(frozen=True)
class RandomInput:
    """A tensor of random values.

    Attributes:
        shape: its shape.
        type: "float32" or an integer type.
        high: exclusive upper bound of indices; 1 for zeros.
        runtime_input: it is an input of the model, not stored.
        std: standard deviation of floats.
    """

    shape: tuple[int, ...]
    type: str = "float32"
    high: int | None = None
    runtime_input: bool = False
    std: float = 1.0

    def values(self, generator: np.random.Generator) -> Array:
        """Draw the values; the first row of integers is the maximum, so that saturation shows."""
        if self.type == "float32":
            normal = generator.standard_normal(self.shape, np.float32)
            return np.asarray(normal * np.float32(self.std))
        if self.high is not None:
            return generator.integers(self.high, size=self.shape).astype(self.type)
        low, high = np.iinfo(self.type).min, np.iinfo(self.type).max
        values = generator.integers(low, high + 1, self.shape)
        if values.ndim > 1:
            values[0] = high
        return values.astype(self.type)


@dataclass(frozen=True)
class NodeForm:
    """What decides how a node computes: operator, attributes and types of inputs."""

    op: str
    inputs: tuple[RandomInput | None, ...]
    domain: str = ""
    attributes: tuple[tuple[str, int | str], ...] = ()
    outputs: int = 1


@dataclass(frozen=True, eq=False)
class BoundKernel:
    """A kernel bound to a node.

    Attributes:
        kernel: takes `inputs`.
        inputs: the inputs of the node that it reads.
        form: form of the node.
    """

    kernel: Kernel
    inputs: Sequence[Value | None]
    form: NodeForm


Bind = Callable[[Node, OnnxModel], BoundKernel | None]


def matches_runtime(form: NodeForm, bind: Bind) -> bool:
    """Return whether the kernels of a form return the bits of the runtime on this CPU.

    The result is computed once for each form. `bind` binds a kernel to a node of the form.
    """
    if form not in _matches:
        _matches[form] = _run(form, bind)
    return _matches[form]


def _run(form: NodeForm, bind: Bind) -> bool:
    file, values = _model(form)
    node = file.nodes[0]
    bound = bind(node, file)
    if bound is None:
        return False
    try:
        run, names = runtime_graph([node], file, [name_of(o) for o in node.outputs], {})
        expected = _tensors(run(*(values[name] for name in names)))
    except KernelError:
        return False
    results = _tensors(bound.kernel(*(values[name_of(i)] for i in bound.inputs)))
    return all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


def _tensors(results: torch.Tensor | Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else results


def _model(form: NodeForm) -> tuple[OnnxModel, dict[str, torch.Tensor]]:
    """Return a model of the node only, and the values of its inputs."""
    generator, values = np.random.default_rng(0), dict[str, Array]()
    stored, inputs = [], list[ValueInfoProto]()
    for index, spec in enumerate(form.inputs):
        if spec is None:
            continue
        array = values[f"i{index}"] = spec.values(generator)
        if spec.runtime_input:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(f"i{index}", kind, array.shape))
        else:
            stored.append(numpy_helper.from_array(array, f"i{index}"))
    made, numbers = [f"o{index}" for index in range(form.outputs)], dict[str, Any](form.attributes)
    names = [f"i{index}" if spec else "" for index, spec in enumerate(form.inputs)]
    node = helper.make_node(form.op, names, made, "form", domain=form.domain, **numbers)
    outputs = [ValueInfoProto(name=name) for name in made]
    graph = helper.make_graph([node], "form", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", _OPSET)]
    opsets += [helper.make_opsetid(form.domain, 1)] if form.domain else []
    file = OnnxModel.of(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    return file, {name: torch.from_numpy(array) for name, array in values.items()}
