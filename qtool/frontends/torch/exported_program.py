"""Turns an ExportedProgram into the float graph."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch.export import ExportedProgram, ExportGraphSignature
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

from qtool.core import graph as G
from qtool.core.argument_names import python_only
from qtool.core.data.named_tensors import key_text, leaf_paths
from qtool.core.downloads import DOWNLOAD, check_archive, check_download
from qtool.core.errors import CaptureError, missing
from qtool.core.ops import Role, row_of
from qtool.core.paths import is_file
from qtool.core.process_lock import silence_logging
from qtool.core.remedies import Argument, ModelEdit, OtherFile
from qtool.core.shield import defer_signals
from qtool.core.value_names import all_unique
from qtool.frontends.torch.common_batch import with_common_batch
from qtool.frontends.torch.fast_shapes import fast_shapes
from qtool.frontends.torch.functionalize import make_functional
from qtool.frontends.torch.node_names import assign_names, with_valid_names
from qtool.frontends.torch.size_expressions import check_size_expressions

aten = torch.ops.aten


def load_program(path: str | Path) -> ExportedProgram:
    """Read a `.pt2` file written by `torch.export.save`.

    Files with pickled objects, compiled libraries, or sizes that are no arithmetic are refused. The
    file is still a program: load files of trusted authors only.

    Raises:
        CaptureError: the file is missing, damaged or foreign.
    """
    if not is_file(path):
        raise missing(path, CaptureError)
    check_download(path, CaptureError)
    check_archive(path, CaptureError)
    check_size_expressions(Path(path))
    try:
        with silence_logging(), _no_unpickling():
            return torch.export.load(path)
    except Exception as error:
        why, write = first_line(error), OtherFile("write it with torch.export.save(program, path)")
        message = f"{path} is not a readable .pt2 file ({why})"
        raise CaptureError(message, write, DOWNLOAD) from error


@contextmanager
def _no_unpickling() -> Iterator[None]:
    """Disable the fallback of torch.export.load to full unpickling, which runs code of the file."""
    load = torch.load

    def safe_load(*args: Any, **kwargs: Any) -> Any:
        return load(*args, **{**kwargs, "weights_only": True})

    def refuse(*_: Any, **__: Any) -> Any:
        raise CaptureError("the file has pickled objects or libraries, which are not loaded")

    package = "torch.export.pt2_archive._package"
    with (
        mock.patch("torch.load", safe_load),
        mock.patch(f"{package}.pickle.loads", refuse),
        mock.patch(f"{package}._load_aoti", refuse),
    ):
        yield


_LIFTED = "lifted_tensor_"  # torch's prefix of their names
_SEPARATORS = re.compile(r"[^0-9A-Za-z]")  # torch writes _ for each of them in a key
_TRACES = 2  # number of times that run_decompositions traces
_WRITES = "", (ModelEdit("if the model writes to its own inputs, let it write to a copy"),)
_LOST = (
    "; torch loses a tensor that the model creates while it runs (a KV cache?)",
    (
        ModelEdit("call it with use_cache=False"),
        ModelEdit("wrap it in an nn.Module that takes and returns the cache as tensors"),
    ),
)


def _with_lifted(program: ExportedProgram) -> ExportedProgram:
    """Return the program with its lifted tensors also under the names of the next traces.

    torch numbers lifted tensors anew at each trace, and looks them up by those names.
    """
    lifted = [t for path, t in program.constants.items() if _LIFTED in path.rpartition(".")[2]]
    if not lifted:
        return program
    unused = (name for i in count() if (name := f"{_LIFTED}{i}") not in program.constants)
    other = copy.copy(program)
    other._constants = {**program.constants, **dict(zip(unused, lifted * _TRACES, strict=False))}
    return other


def from_program(program: ExportedProgram) -> G.FloatGraph:
    """Return the float graph of an exported program: functional ATen, parameters as attributes, on
    the CPU.

    Raises:
        CaptureError: the program was exported in training mode, mutates buffers, has inputs or
            outputs that are not tensors, has branches, or a convolution without batch dimension.
    """
    if program.example_inputs is None:
        raise CaptureError(
            "the program has no example inputs", OtherFile("export it again with torch.export")
        )
    dims = _dimension_names(program)
    stored = pytree.tree_leaves((program.state_dict, program.constants, program.example_inputs))
    tensors = [t for t in stored if isinstance(t, torch.Tensor)]
    device = next((t.device for t in tensors), G.CPU)
    try:
        with silence_logging(), defer_signals(), fast_shapes():
            if device != G.CPU:
                own = copy.deepcopy(program, {id(t): t for t in tensors})  # that pass edits it
                program = move_to_device_pass(own, G.CPU)
            program = with_valid_names(program)
            module = program.module(check_guards=False)
            # a trace gives values the strides of the CPU, which kernels of a device may not have;
            # both leave no in-place operators
            if device != G.CPU or not make_functional(module):
                program = copy.copy(_with_lifted(program))
                program._guards_code = []  # they fail to parse where inputs are nested
                program = program.run_decompositions({})
                module = program.module(check_guards=False)
    except Exception as error:
        why, edits = _LOST if "lifted_tensor" in str(error) else _WRITES
        raise CaptureError(
            f"torch.export cannot replace the model's in-place operators ({first_line(error)})"
            f"{why}",
            *edits,
        ) from error
    assert isinstance(module, fx.GraphModule)
    _drop_effects(module)
    _refuse(program, module)
    _clean(module)
    args, kwargs = program.example_inputs
    assign_names(module.graph, _input_names(module, (tuple(args), dict(kwargs))))
    graph = G.FloatGraph(
        module=module,
        inputs=tuple(_input(n, dims) for n in G.placeholders(module.graph)),
        outputs=_output_names(program, module),
        example=(tuple(args), dict(kwargs)),
        constraints=dict(program.range_constraints),
        dims=dims,
        device=device,
    )
    return with_common_batch(graph)


def _drop_effects(module: fx.GraphModule) -> None:
    """Remove what is not functional: assertions, and copies back into mutated inputs."""
    for node in G.calls(module.graph):
        schema = getattr(node.target, "_schema", None)
        if schema is not None and not schema.returns and not node.users:
            module.graph.erase_node(node)
        elif node.target is aten.copy_.default:
            G.replace(node, G.source(node, 1))


def _refuse(program: ExportedProgram, module: fx.GraphModule) -> None:
    if changed := _mutated_buffers(program.graph_signature):
        names = ", ".join(changed[:3])
        raise CaptureError(
            f"the model changes its own buffers when it runs ({names}): it was exported in "
            "training mode, or keeps state between calls",
            ModelEdit("call model.eval() first, and export again"),
            ModelEdit("give the state as an input, and return it"),
        )
    for node in module.graph.nodes:
        if (error := unsupported(node)) is not None:
            raise error
    leaves = pytree.tree_leaves(module.graph.output_node().args[0])
    if not all(isinstance(n, fx.Node) and isinstance(G.value(n), torch.Tensor) for n in leaves):
        raise CaptureError(
            "the model returns something that is not a tensor (None, a number)",
            ModelEdit("wrap it in an nn.Module that returns tensors only"),
        )


def _mutated_buffers(signature: ExportGraphSignature) -> list[str]:
    """Return buffers that change; `self.table = self.table.to(x.device)` does not count."""
    written = set(signature.buffers_to_mutate.items()) - set(signature.inputs_to_buffers.items())
    return sorted({buffer for _, buffer in written})


def _clean(module: fx.GraphModule) -> None:
    """Remove unused attributes, and give every get_attr a fake value."""
    for node in list(module.graph.nodes):
        if node.op == "get_attr" and not node.users:
            module.graph.erase_node(node)
        elif node.op == "get_attr" and G.value(node) is None:
            G.set_attr_value(module, node)
    G.finish(module)


def _dimension_names(program: ExportedProgram) -> dict[str, str]:
    """Return symbol -> readable name of dynamic dimensions; dimension 0 is the batch."""
    names: dict[str, str] = {}
    user = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        if node.op != "placeholder" or node.name not in user:
            continue
        for axis, size in enumerate(getattr(G.value(node), "shape", ())):
            symbol = str(size)
            if _is_dynamic(size) and symbol not in names:
                wanted = "batch" if axis == 0 else f"{node.name}_dim{axis}"
                names[symbol] = wanted if wanted not in names.values() else f"{node.name}_batch"
    return names


def _is_dynamic(size: Any) -> bool:
    """Return whether a size varies; a symbol that the model specialized does not."""
    return isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None


def _input(node: fx.Node, dims: dict[str, str]) -> G.Input:
    value = G.value(node)
    shape = tuple(dims.get(str(s), str(s)) if _is_dynamic(s) else int(s) for s in value.shape)
    return G.Input(G.name_of(node), str(value.dtype).removeprefix("torch."), shape)


def _input_names(module: fx.GraphModule, example: Any) -> dict[fx.Node, str]:
    """Return the names of the inputs; one inside a list or dict has its path, joined by dots.

    Args:
        module: its placeholders have torch's names, `past_key_values_0_key`.
        example: positional and keyword arguments.
    """
    inputs = module.graph.find_nodes(op="placeholder")
    paths = leaf_paths(example)
    if len(paths) != len(inputs):  # arguments that were None have no placeholder
        leaves = pytree.tree_leaves(example)
        paths = [path for path, leaf in zip(paths, leaves, strict=True) if leaf is not None]
    return {n: _input_name(str(n.target), p[2:]) for n, p in zip(inputs, paths, strict=True)}


def _input_name(target: str, path: tuple[str, ...]) -> str:
    """Return torch's name of an input, with its path inside the argument joined by dots."""
    joined = _SEPARATORS.sub("_", f"_{'_'.join(path)}").lower()
    if not path or not target.lower().endswith(joined):
        return target
    return ".".join((target[: -len(joined)], *path))


def _output_names(program: ExportedProgram, module: fx.GraphModule) -> tuple[str, ...]:
    """Return `output`, `output_0` ..., or the keys of a dict or dataclass."""
    nodes = G.output_nodes(module.graph)
    paths = _output_paths(program, len(nodes))
    names = [".".join(p) or "output" for p in paths]
    names = [f"output_{n}" if n.isdigit() else n for n in names]
    taken = {G.name_of(n) for n in G.placeholders(module.graph)}
    return all_unique((f"{n}_out" if n in taken else n for n in names), taken)


def _output_paths(program: ExportedProgram, count: int) -> list[tuple[str, ...]]:
    leaves = [torch.zeros(1, 1, 1, 1)] * count  # a container may compute with its leaves
    try:
        tree = pytree.tree_unflatten(leaves, program.call_spec.out_spec)
        paths: list[Any] = pytree.tree_flatten_with_path(tree)[0]
    except Exception:  # noqa: BLE001  # a custom container may have no names, or refuse such tensors
        return [(str(i),) for i in range(count)]
    return [tuple(key_text(k) for k in path) for path, _ in paths]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, with the next one after a colon."""
    lines = str(error).strip().splitlines()
    if len(lines) > 1 and lines[0].endswith(":"):
        return f"{lines[0]} {lines[1].strip(' -')}"
    return lines[0] if lines else type(error).__name__


_RECURRENT = (
    aten.lstm.input,
    aten.gru.input,
    aten.rnn_tanh.input,
    aten.rnn_relu.input,
)
_DROPOUTS = (
    aten.dropout.default,
    aten.feature_dropout.default,
    aten.alpha_dropout.default,
    aten.feature_alpha_dropout.default,
)


def unsupported(node: fx.Node) -> CaptureError | None:
    """Return the error for a graph with this node; None if it is supported."""
    if node.op == "placeholder" and not isinstance(G.value(node), torch.Tensor | None):
        return CaptureError(
            f"input '{node.target}' is not a tensor",
            ModelEdit(
                "wrap the model in an nn.Module that takes tensors only and fixes the other "
                "arguments"
            ),
        )
    if node.op == "call_function" and _computes_in_bfloat16(node):
        return CaptureError(
            f"the model computes in bfloat16 ({node.target}), for which the runtimes have no "
            "kernels",
            ModelEdit("leave out torch.autocast in forward, and call float() on that module"),
        )
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return CaptureError(
            f"the model has a branch or loop inside (torch.{node.target}); a graph has one path",
            ModelEdit("use torch.where"),
            ModelEdit("unroll the loop"),
        )
    if _draws_random_numbers(node):
        return CaptureError(
            f"the model draws random numbers ({node.target})",
            ModelEdit(
                "if that is dropout, call model.eval() and give F.dropout training=self.training"
            ),
            Argument("--noise-input", text="if it is noise, make it an input with {}"),
        )
    if node.target is aten.lstm.input and _has_projections(node):
        return CaptureError(
            "ONNX does not support an LSTM with projections (proj_size)",
            ModelEdit("use the projection's size as hidden size"),
            ModelEdit("put a linear layer behind the LSTM"),
        )
    if str(node.target).startswith("transformers.grouped_mm"):
        return CaptureError(
            f"a mixture of experts computes with {node.target}, which ONNX does not support",
            ModelEdit('load the model with experts_implementation="batched_mm"'),
        )
    if str(node.target).startswith("aten.conv"):
        if isinstance(G.argument(node, 6, "groups", 1), fx.Node):
            return CaptureError(
                "a convolution has one group with its own weights per sample, which ONNX does not "
                "support",
                ModelEdit("compute it as a matrix product"),
                *python_only(ModelEdit("fix the batch size with dynamic={}")),
            )
        x, weight = node.args[:2]
        if isinstance(x, fx.Node) and isinstance(weight, fx.Node) and G.rank(x) != G.rank(weight):
            shape = list(G.shape(x))
            return CaptureError(
                f"a convolution gets one sample, {shape}", ModelEdit("give it a batch")
            )
    return None


def _computes_in_bfloat16(node: fx.Node) -> bool:
    value, row = G.value(node), row_of(node)
    computed = row is not None and row.role is not Role.PASS
    return computed and isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16


def _has_projections(lstm: fx.Node) -> bool:
    states: Any = lstm.args[1]
    hidden, cell = (G.shape(state) for state in states)
    return int(hidden[-1]) != int(cell[-1])


def _draws_random_numbers(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    inactive = node.target in _DROPOUTS and not (node.args[1] and node.args[2])
    if node.target in _RECURRENT:
        inactive = not (node.args[5] and node.args[6])
    if node.target is aten.rrelu.default:
        inactive = not G.argument(node, 3, "training", False)
    if node.target is aten.scaled_dot_product_attention.default:
        inactive = not G.argument(node, 4, "dropout_p", 0.0)
    return torch.Tag.nondeterministic_seeded in tags and not inactive
