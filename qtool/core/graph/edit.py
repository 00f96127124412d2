"""Editing a graph: calls and tensors with names and fake values, copies, clean-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import fx, nn
from torch._dispatch.python import enable_python_dispatcher
from torch.fx._lazy_graph_module import _LazyGraphModule

from qtool.core.graph.arguments import run_operator
from qtool.core.graph.deferred import Slices, as_parameter, defer, is_deferred, read_values
from qtool.core.graph.nodes import NAME, tensor, value
from qtool.core.process_lock import PROCESS_LOCK
from qtool.core.value_names import free_name

SMALL = 1 << 10
"""Elements up to which a tensor is not deferred."""
P = ParamSpec("P")
R = TypeVar("R")


def fake_mode(graph: fx.Graph) -> Any:
    """Return the FakeTensorMode of a captured graph."""
    for node in graph.nodes:
        mode = getattr(value(node), "fake_mode", None)
        if mode is not None:
            return mode
    raise AssertionError("a captured graph holds fake tensors")


def infer(node: fx.Node) -> fx.Node:
    """Set the fake value of a new call_function node from those of its arguments."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), value)
    mode = fake_mode(node.graph)
    # kernels look at sizes to choose an algorithm: that must not pin a dynamic dimension
    env = mode.shape_env
    guards = env.suppress_guards() if env is not None else nullcontext()
    fresh = env.ignore_fresh_unbacked_symbols() if env is not None else nullcontext()
    # C++ compositions (pad) require plain sizes
    with enable_python_dispatcher(), mode, guards, fresh:
        node.meta["val"] = run_operator(node, args, kwargs)
    return node


def add_call(
    anchor: fx.Node,
    target: Any,
    args: Sequence[Any],
    name: str,
    like: fx.Node | None = None,
    value_from: fx.Node | None = None,
) -> fx.Node:
    """Insert a call before `anchor`.

    Args:
        anchor: node of the graph.
        target: operator.
        args: its arguments.
        name: readable name of the node.
        like: node whose module and stack trace the call takes over.
        value_from: node of the same shape and dtype, whose fake value it gets. Without one the
            value is inferred, which takes milliseconds.
    """
    with anchor.graph.inserting_before(anchor):
        node = anchor.graph.call_function(target, tuple(args))
    for key in ("nn_module_stack", "stack_trace"):
        if like is not None and key in like.meta:
            node.meta[key] = like.meta[key]
    node.meta[NAME] = name
    if value_from is None:
        return infer(node)
    node.meta["val"] = value(value_from)
    return node


def add_tensor(module: fx.GraphModule, anchor: fx.Node, data: torch.Tensor, name: str) -> fx.Node:
    """Register `data` as a buffer or parameter of the module; insert its get_attr before `anchor`.

    The attribute has a free name at the top level; the node's readable name is `name`.
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


def set_tensor(module: fx.GraphModule, node: fx.Node, data: torch.Tensor) -> None:
    """Replace the tensor of a get_attr node by one of the same shape; a parameter stays one."""
    owner, _, name = str(node.target).rpartition(".")
    holder = module.get_submodule(owner)
    old = getattr(holder, name)
    if isinstance(old, torch.nn.Parameter):
        data = as_parameter(data, old.requires_grad)
    setattr(holder, name, data)


def defer_tensors(
    module: fx.GraphModule, read: Callable[[str, torch.Tensor, Slices | None], torch.Tensor]
) -> None:
    """Defer the stored tensors of a graph, in place; small ones are read now.

    Args:
        module: the graph.
        read: returns the values of an attribute with this tensor, or a part of them.
    """
    for name in dict.fromkeys(str(n.target) for n in module.graph.nodes if n.op == "get_attr"):
        nodes = [n for n in module.graph.nodes if n.op == "get_attr" and n.target == name]
        stored = tensor(module, nodes[0])
        values = partial(read, name, stored.detach())
        small = stored.numel() <= SMALL
        set_tensor(module, nodes[0], values(None) if small else defer(stored, values))
        for node in nodes:
            set_attr_value(module, node)


def set_attr_value(module: fx.GraphModule, node: fx.Node) -> None:
    """Set the fake value of a get_attr node from its tensor."""
    mode, stored = fake_mode(node.graph), tensor(module, node)
    device = torch.device("cpu")
    if is_deferred(stored):  # with strides of its values
        layout = torch.empty(stored.shape, dtype=stored.dtype, device="meta")
    else:
        layout = torch.empty_strided(
            stored.shape, stored.stride(), dtype=stored.dtype, device="meta"
        )
        device = stored.device
    node.meta["val"] = mode.fake_tensor_converter.from_meta_and_device(mode, layout, device)


def replace(old: fx.Node, new: fx.Node) -> None:
    """Replace all uses of `old` by `new`, and erase it."""
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def clone(module: fx.GraphModule) -> fx.GraphModule:
    """Return a copy of the graph that shares its tensors; it is compiled when it is called."""
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(module.graph, env)
    graph.output(result)
    for node in graph.nodes:
        node.meta = dict(node.meta)
    graph._codegen = module.graph._codegen
    return _LazyGraphModule(module, graph)


def with_values(module: fx.GraphModule) -> fx.GraphModule:
    """Return a clone that has the values of all its deferred tensors."""
    module = clone(module)
    for node in module.graph.find_nodes(op="get_attr"):
        set_tensor(module, node, read_values(tensor(module, node)))
    return module


def clone_with_parameters(module: fx.GraphModule) -> fx.GraphModule:
    """Return a clone with copies of the parameters, for training."""
    module = clone(module)
    for node in module.graph.nodes:
        if node.op != "get_attr":
            continue
        owner, _, name = str(node.target).rpartition(".")
        holder: nn.Module = module.get_submodule(owner)
        data = getattr(holder, name)
        if isinstance(data, nn.Parameter):
            setattr(holder, name, nn.Parameter(data.detach().clone(), data.requires_grad))
    return module


def finish(module: fx.GraphModule, recompile: bool = True) -> None:
    """Remove dead nodes and unused tensors, check the graph and recompile it.

    Args:
        module: edited in place.
        recompile: False skips the recompilation, which takes longest, if more edits follow.
    """
    module.graph.eliminate_dead_code()  # which checks the graph first
    module.delete_all_unused_submodules()
    used = {str(n.target) for n in module.graph.nodes if n.op == "get_attr"}
    prefixes = tuple(str(n.target) + "." for n in module.graph.nodes if n.op == "call_module")
    for store in ("_parameters", "_buffers"):
        for path, owner in list(module.named_modules()):
            for key in list(getattr(owner, store)):
                full = f"{path}.{key}" if path else key
                if full not in used and not full.startswith(prefixes):
                    del getattr(owner, store)[key]
    if recompile:
        module.recompile()


# Functions that run while no other thread traces a model.


def exclusive(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to run under PROCESS_LOCK, and outside of the caller's inference mode, in
    which torch neither traces nor counts changes of tensors."""

    @wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        with PROCESS_LOCK, torch.inference_mode(False):
            return function(*args, **kwargs)

    return locked
