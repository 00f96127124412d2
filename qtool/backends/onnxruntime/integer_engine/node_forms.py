"""Forms of a node, each run once and small in the engine's kernel and in the runtime's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx import ValueInfoProto, helper, numpy_helper

from qtool.backends.onnx.reading import OnnxModel, name_of
from qtool.backends.onnxruntime.integer_engine.runtime_node import runtime_graph
from qtool.core.errors import KernelError

_OPSET = 17
_matches: dict[NodeForm, bool] = {}


@dataclass(frozen=True)
class RandomInput:
    """A tensor of random values. type: "float32" or of integers. below: of indices; 1 for zeros.
    fed: it comes in when the model runs, and is not stored. size: of floats, about."""

    shape: tuple[int, ...]
    type: str = "float32"
    high: int | None = None
    runtime_input: bool = False
    std: float = 1.0

    def values(self, generator: np.random.Generator) -> np.ndarray[Any, Any]:
        """The first row of integers is as high as they are: sums that saturate are seen."""
        if self.type == "float32":
            drawn = generator.standard_normal(self.shape, np.float32) * np.float32(self.std)
            return np.asarray(drawn)
        if self.high is not None:
            return generator.integers(self.high, size=self.shape).astype(self.type)
        low, high = np.iinfo(self.type).min, np.iinfo(self.type).max
        found = generator.integers(low, high + 1, self.shape)
        if found.ndim > 1:
            found[0] = high
        return found.astype(self.type)


@dataclass(frozen=True)
class NodeForm:
    """What decides how a node computes: its operator and attributes, and what it reads."""

    op: str
    inputs: tuple[RandomInput | None, ...]
    domain: str = ""
    attributes: tuple[tuple[str, int | str], ...] = ()
    outputs: int = 1


@dataclass(frozen=True, eq=False)
class BoundKernel:
    """A kernel, what it reads of its node's inputs, and the form that it is known by."""

    kernel: Callable[..., Any]
    inputs: Sequence[ir.Value | None]
    form: NodeForm


Bind = Callable[[ir.Node, OnnxModel], BoundKernel | None]


def matches_runtime(form: NodeForm, bind: Bind) -> bool:
    """Whether the kernels that `bind` makes for nodes of a form give the bits that the runtime
    gives, here; found out once."""
    if form not in _matches:
        _matches[form] = _run(form, bind)
    return _matches[form]


def _run(form: NodeForm, bind: Bind) -> bool:
    file, values = _model(form)
    node = file.nodes[0]
    mine = bind(node, file)
    if mine is None:
        return False
    try:
        run, names = runtime_graph([node], file, [name_of(o) for o in node.outputs], {})
        expected = _tensors(run(*(values[name] for name in names)))
    except KernelError:
        return False
    found = _tensors(mine.kernel(*(values[name_of(i)] for i in mine.inputs)))
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def _tensors(found: Any) -> Sequence[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else found


def _model(form: NodeForm) -> tuple[OnnxModel, dict[str, torch.Tensor]]:
    """The node by itself, and the values of its inputs."""
    generator, values = np.random.default_rng(0), dict[str, np.ndarray[Any, Any]]()
    stored, inputs = [], list[ValueInfoProto]()
    for index, drawn in enumerate(form.inputs):
        if drawn is None:
            continue
        array = values[f"i{index}"] = drawn.values(generator)
        if drawn.runtime_input:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(f"i{index}", kind, array.shape))
        else:
            stored.append(numpy_helper.from_array(array, f"i{index}"))
    made, numbers = [f"o{index}" for index in range(form.outputs)], dict[str, Any](form.attributes)
    names = [f"i{index}" if drawn else "" for index, drawn in enumerate(form.inputs)]
    node = helper.make_node(form.op, names, made, "form", domain=form.domain, **numbers)
    outputs = [ValueInfoProto(name=name) for name in made]
    graph = helper.make_graph([node], "form", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", _OPSET)]
    opsets += [helper.make_opsetid(form.domain, 1)] if form.domain else []
    file = OnnxModel.of(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    return file, {name: torch.from_numpy(array) for name, array in values.items()}
