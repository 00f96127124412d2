"""Results of a file on other CPUs, computed by the integer engine.

Which operators give other codes elsewhere is decided for all codes, and no input is run: a product
differs where a pair of its weights can saturate 16 bits, a sum of codes where two profiles differ
for any of the 65,536 pairs of codes. If some do, the integer engine computes the file under the
other CPU's profile on a few samples. Float nodes run in this machine's runtime; on other CPUs their
last bits differ, so they are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from qtool.backends.onnx.reading import OnnxModel, Source
from qtool.backends.onnxruntime.integer_engine import Program, lower
from qtool.backends.onnxruntime.integer_engine.matmul_nbits import (
    ON_CODES,
    PRODUCTS,
    match_product,
)
from qtool.backends.onnxruntime.verification.bit_exactness import file_outputs
from qtool.backends.onnxruntime.verification.exported_file import ExportedFile
from qtool.backends.profiles import (
    PROFILES,
    Binder,
    Profile,
    codes_of_pairs,
    codes_of_table,
    profile,
)
from qtool.core.errors import KernelError
from qtool.core.sqnr import sqnr
from qtool.core.types import Array
from qtool.core.weight_pairs import consecutive_pairs, excess
from qtool.verification.portability import PORTABLE, OtherCpu, Portability

_TABLES = frozenset({"sigmoid", "tanh"})

_STATIC = frozenset({"conv", "linear"})  # the others round their input to uint8

_WEIGHTS: Mapping[str, Callable[[Sequence[Any]], Sequence[Tensor]]] = {
    "conv": lambda arguments: [arguments[3]],
    "linear": lambda arguments: [arguments[3]],
    "matmul_integer": lambda arguments: [arguments[1]],
    "dynamic_matmul": lambda arguments: [arguments[1]],
    "dynamic_lstm": lambda arguments: [
        codes for d in arguments[0] for codes in (d.weight, d.recurrent)
    ],
}
"""Products with stored weights -> the codes [out, in / groups, *kernel] among their arguments."""


def portability(
    exported: ExportedFile, here: str, inputs: Sequence[Array], portable: bool
) -> Portability | None:
    """Return the results of a file on other CPUs; None if the engine cannot represent it.

    Args:
        exported: the file.
        here: this machine's profile.
        inputs: a few samples, arrays in the order of the file's inputs.
        portable: see `Portability`.
    """
    others = [n for n, p in PROFILES.items() if p.family == PORTABLE and n != here]
    try:
        nodes = diverging_nodes(exported.qdq, here, others)
        own = exported.program(here)
        rows, expected = [], None
        for name in others:
            row = OtherCpu(name, PROFILES[name].cpus, nodes[name])
            if row.nodes:
                expected = expected or _outputs(own, inputs)
                there = _outputs(lower(exported.qdq, name), inputs)
                row = _compared(row, expected, there)
            rows.append(row)
    except KernelError:
        return None
    samples = 0 if expected is None else len(inputs[0])
    rounding = _rounding_nodes(exported.qdq)
    return Portability(tuple(rows), samples, own.float_nodes, portable, rounding)


def _rounding_nodes(file: OnnxModel) -> int:
    """Return the number of operators that round their inputs as the kernels of a CPU do.

    Products with stored codes at accuracy level 4, and those that the runtime makes of a
    DequantizeLinear and a product.
    """
    return sum(
        node.attributes.get("accuracy_level") == ON_CODES
        if node.op_type == "MatMulNBits"
        else node.op_type in PRODUCTS and match_product(node, file) is not None
        for node in file.nodes
    )


def _outputs(program: Program, inputs: Sequence[Array]) -> list[Array]:
    return file_outputs(program, program(*map(torch.from_numpy, inputs)))


def _compared(row: OtherCpu, here: Sequence[Array], there: Sequence[Array]) -> OtherCpu:
    ratios = [r for a, b in zip(here, there, strict=True) if (r := sqnr(a, b)) is not None]
    changed, first = None, here[0]
    if first.ndim == 2 and first.shape[1] > 1:
        changed = float((first.argmax(1) != there[0].argmax(1)).mean())
    return OtherCpu(row.profile, row.cpu, row.nodes, min(ratios, default=None), changed)


@dataclass(frozen=True, eq=False)
class _Call:
    """A kernel with its parameters, bound when it is run.

    Attributes:
        key: key of the kernel.
        binder: what makes the kernel in the profile of this CPU.
        arguments, options: positional and keyword arguments of the binder.
    """

    key: str
    binder: Binder
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    def __call__(self, *tensors: Tensor) -> Any:
        return self.binder(*self.arguments, **self.options)(*tensors)


def diverging_nodes(model: Source, here: str, others: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return, for each profile, the nodes that return other codes there for some input.

    Args:
        model: a QDQ model of any tool.
        here, others: names of numerics profiles of ONNX Runtime.

    Raises:
        FileError: not a readable ONNX file. KernelError: the engine cannot represent a node.
    """
    own, elsewhere = profile(here), [profile(name) for name in others]
    nodes: dict[str, list[str]] = {name: [] for name in others}
    recorder = replace(own, binders={key: _record(key, b) for key, b in own.binders.items()})
    for instruction in lower(OnnxModel.of(model), recorder).instructions:
        if isinstance(instruction.kernel, _Call):
            for there in _differing(instruction.kernel, own, elsewhere):
                nodes[there.name].append(instruction.name)
    return {name: tuple(each) for name, each in nodes.items()}


def _record(key: str, binder: Binder) -> Callable[..., _Call]:
    return lambda *arguments, **options: _Call(key, binder, arguments, options)


def _differing(call: _Call, own: Profile, others: Sequence[Profile]) -> list[Profile]:
    """Return the profiles under which a kernel returns other codes."""
    if call.key in _WEIGHTS:
        saturating = [p for p in others if p.saturates is not own.saturates]
        return saturating if saturating and _can_saturate(call) else []
    candidates = [p for p in others if p.binders.get(call.key, call.binder) is not call.binder]
    if not candidates:
        return []
    here = _results(call, own)
    return [p for p in candidates if here is None or not torch.equal(here, _tensor(call, p))]


def _tensor(call: _Call, chosen: Profile) -> Tensor:
    results = _results(call, chosen)
    assert results is not None  # one profile has them all or none
    return results


def _results(call: _Call, chosen: Profile) -> Tensor | None:
    """Return all results of a kernel under a profile, None where these are too many."""
    if call.key in ("add", "mul"):
        return codes_of_pairs(chosen, call.key, *call.arguments)
    if call.key in _TABLES:
        return codes_of_table(chosen, call.key, *call.arguments, **call.options)
    return None


def _can_saturate(call: _Call) -> bool:
    """Return whether any pair of the weights of a product can saturate."""
    layers, x = _WEIGHTS[call.key](call.arguments), call.arguments[0]
    if call.key in _STATIC and x.qtype.signed:
        return False
    groups = call.options.get("groups", 1)
    return any(
        codes.dtype == torch.int8
        and bool(excess(codes, consecutive_pairs(codes.shape, groups)).any())
        for codes in layers
    )
