"""The float graph: what capture gives, what passes rewrite, what everything else reads.

An ATen `fx.GraphModule` with parameters as attributes, callable exactly as the user's model.
Every node carries `meta["val"]` (a fake tensor: shape, dtype, device) and a stable, readable name
made from the user's module path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch.utils import _pytree as pytree

from qtool.data import Batch
from qtool.errors import DataError

__all__ = ["FloatGraph", "Input"]

NAME = "qtool_name"


@dataclass(frozen=True)
class Input:
    """One tensor input: dynamic dimensions are names, fixed ones sizes."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass
class FloatGraph:
    """A captured model.

    module: the graph, callable as the user's model was (same arguments, same output structure).
    inputs, outputs: names in order, as they will stand in the ONNX file.
    example: positional and keyword arguments the graph was captured with.
    constraints: ranges of the symbolic dimensions, as torch.export found them.
    dims: symbol -> the name a person gave that dimension ("batch").
    """

    module: fx.GraphModule
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    example: tuple[tuple[Any, ...], dict[str, Any]]
    constraints: dict[Any, Any]
    dims: dict[str, str]

    @property
    def graph(self) -> fx.Graph:
        return self.module.graph

    def bind(self, batch: Batch, index: int = 0) -> Batch:
        """The batch as arguments of this graph, checked against its inputs.

        Raises:
            DataError: missing or unknown inputs, a wrong dtype, rank or fixed size; says which.
        """
        args, kwargs = self.example
        if len(batch.args) != len(args) or set(batch.kwargs) != set(kwargs):
            batch = self._rearranged(batch, index)
        found = [t for t in pytree.tree_leaves((batch.args, batch.kwargs)) if t is not None]
        if len(found) != len(self.inputs):
            raise DataError(
                f"batch {index} has {len(found)} tensors, the model takes {len(self.inputs)}: "
                f"{'; '.join(map(str, self.inputs))}"
            )
        for expected, actual in zip(self.inputs, found, strict=True):
            _check_input(expected, actual, index)
        return batch

    def _rearranged(self, batch: Batch, index: int) -> Batch:
        """Arguments given by name where the example had them by position, or the reverse."""
        names = [i.name for i in self.inputs]
        given = dict(zip(names, batch.args, strict=False)) | batch.kwargs
        args, kwargs = self.example
        if set(given) != set(names) or len(args) + len(kwargs) != len(names):
            raise DataError(
                f"batch {index} gives {', '.join(given) or 'nothing'}; "
                f"the model takes {', '.join(names)}"
            )
        return Batch(
            tuple(given[n] for n in names if n not in kwargs), {n: given[n] for n in kwargs}
        )


def _check_input(expected: Input, actual: object, index: int) -> None:
    where = f"batch {index}, input '{expected.name}'"
    if not isinstance(actual, torch.Tensor):
        raise DataError(f"{where} is a {type(actual).__name__}, not a tensor")
    dtype = str(actual.dtype).removeprefix("torch.")
    if dtype != expected.dtype:
        raise DataError(f"{where} is {dtype}, the model takes {expected.dtype}; convert it first")
    fits = actual.dim() == len(expected.shape) and all(
        isinstance(e, str) or e == a for e, a in zip(expected.shape, actual.shape, strict=True)
    )
    if not fits:
        raise DataError(f"{where} has shape {list(actual.shape)}, the model takes {expected}")


# --- reading ---------------------------------------------------------------------------------


def name_of(node: fx.Node) -> str:
    """The node's readable, unique name ("layer1.0.conv2")."""
    return str(node.meta.get(NAME, node.name))


def value(node: fx.Node) -> Any:
    """The node's fake value: a FakeTensor for tensors, a number or SymInt otherwise."""
    return node.meta.get("val")


def is_float(node: object) -> bool:
    """Whether the node yields a floating-point tensor."""
    return (
        isinstance(node, fx.Node)
        and isinstance(value(node), torch.Tensor)
        and value(node).is_floating_point()
    )


def rank(node: fx.Node) -> int:
    return int(value(node).dim())


def shape(node: fx.Node) -> tuple[Any, ...]:
    return tuple(value(node).shape)


def same_sizes(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two shapes are equal, whatever the sizes of their dynamic dimensions."""
    return [str(size) for size in a] == [str(size) for size in b]


def argument(node: fx.Node, index: int, name: str, default: Any = None) -> Any:
    """An argument given by position or by name."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def tensor(module: fx.GraphModule, node: fx.Node) -> torch.Tensor:
    """The parameter, buffer or constant behind a get_attr node."""
    assert node.op == "get_attr", node.format_node()
    found: Any = module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    assert isinstance(found, torch.Tensor)
    return found


def calls(graph: fx.Graph) -> Iterable[fx.Node]:
    """The call_function nodes, in order; safe while editing."""
    return [n for n in graph.nodes if n.op == "call_function"]


def placeholders(graph: fx.Graph) -> list[fx.Node]:
    return [n for n in graph.nodes if n.op == "placeholder"]


def output_nodes(graph: fx.Graph) -> list[fx.Node]:
    """The nodes a graph returns, flattened, in order."""
    return [n for n in pytree.tree_leaves(graph.output_node().args[0]) if isinstance(n, fx.Node)]


# --- editing ---------------------------------------------------------------------------------


def fake_mode(graph: fx.Graph) -> Any:
    for node in graph.nodes:
        mode = getattr(value(node), "fake_mode", None)
        if mode is not None:
            return mode
    raise AssertionError("a captured graph holds fake tensors")


def infer(node: fx.Node) -> fx.Node:
    """Sets the fake value of a new call_function node from those of its arguments."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), value)
    mode = fake_mode(node.graph)
    # kernels look at sizes to choose an algorithm: that must not pin a dynamic dimension
    guards = mode.shape_env.suppress_guards() if mode.shape_env is not None else nullcontext()
    with enable_python_dispatcher(), mode, guards:  # C++ compositions (pad) want plain sizes
        node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]  # an OpOverload
    return node


def add_call(
    anchor: fx.Node, target: Any, args: Sequence[Any], name: str, like: fx.Node | None = None
) -> fx.Node:
    """A new call before `anchor`, named, its value inferred; provenance is taken from `like`."""
    with anchor.graph.inserting_before(anchor):
        node = anchor.graph.call_function(target, tuple(args))
    for key in ("nn_module_stack", "stack_trace"):
        if like is not None and key in like.meta:
            node.meta[key] = like.meta[key]
    node.meta[NAME] = name
    return infer(node)


def add_tensor(module: fx.GraphModule, anchor: fx.Node, data: torch.Tensor, name: str) -> fx.Node:
    """A new attribute holding `data` (a parameter if it is one) and its get_attr before `anchor`.

    The attribute is made at the top level under a free name; the readable name is `name`.
    """
    attribute = free_name(module, name)
    if isinstance(data, torch.nn.Parameter):
        module.register_parameter(attribute, data)
    else:
        module.register_buffer(attribute, data)
    with anchor.graph.inserting_before(anchor):
        node = anchor.graph.get_attr(attribute)
    node.meta[NAME] = name
    set_attr_value(module, node)
    return node


def set_attr_value(module: fx.GraphModule, node: fx.Node) -> None:
    """Sets the fake value of a get_attr node from the tensor it reads."""
    mode = fake_mode(node.graph)
    node.meta["val"] = mode.from_tensor(tensor(module, node).detach(), static_shapes=True)


def free_name(module: torch.nn.Module, wanted: str) -> str:
    """An attribute name made from `wanted` that the module does not use yet."""
    base = "".join(c if c.isalnum() else "_" for c in wanted) or "t"
    base = base if base[0].isalpha() and not iskeyword(base) else "t_" + base
    name, k = base, 1
    while hasattr(module, name):
        name, k = f"{base}_{k}", k + 1
    return name


def replace(old: fx.Node, new: fx.Node) -> None:
    """`new` takes over the users of `old`, which is erased."""
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def clone(module: fx.GraphModule) -> fx.GraphModule:
    """An independent graph over the same tensors (tensors are shared, not copied)."""
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(module.graph, env)
    graph.output(result)
    for node in graph.nodes:
        node.meta = dict(node.meta)
    graph._codegen = module.graph._codegen
    return fx.GraphModule(module, graph)


def finish(module: fx.GraphModule) -> None:
    """Removes dead nodes and unused tensors, checks the graph and recompiles it."""
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.delete_all_unused_submodules()
    used = {str(n.target) for n in module.graph.nodes if n.op == "get_attr"}
    prefixes = tuple(str(n.target) + "." for n in module.graph.nodes if n.op == "call_module")
    for store in ("_parameters", "_buffers"):
        for path, owner in list(module.named_modules()):
            for key in list(getattr(owner, store)):
                full = f"{path}.{key}" if path else key
                if full not in used and not full.startswith(prefixes):
                    del getattr(owner, store)[key]
    module.recompile()


__all__ += [
    "NAME",
    "add_call",
    "add_tensor",
    "argument",
    "calls",
    "clone",
    "fake_mode",
    "finish",
    "free_name",
    "infer",
    "is_float",
    "name_of",
    "output_nodes",
    "placeholders",
    "rank",
    "replace",
    "same_sizes",
    "set_attr_value",
    "shape",
    "tensor",
    "value",
]
