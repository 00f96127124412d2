"""From a TFLite model, of qtool or of another tool, to the program of the integer engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from qtool.backends.onnxruntime.integer_engine import Instruction, Program
from qtool.backends.profiles import profile as profile_of
from qtool.core import value_names
from qtool.core.errors import KernelError
from qtool.core.remedies import Package
from qtool.plugins.tflite import litert
from qtool.plugins.tflite.engine.call import Call, params_of
from qtool.plugins.tflite.engine.moves import CONCATENATION, MOVES
from qtool.plugins.tflite.engine.operators import DATA_INPUTS, OPERATORS, dynamic_linear
from qtool.plugins.tflite.file import Model, Operator
from qtool.plugins.tflite.file.codes import is_codes, is_dynamic_linear, tensor_names
from qtool.plugins.tflite.file.model import ABSENT

RunOperator = Callable[[Operator, Sequence[torch.Tensor]], Sequence[torch.Tensor]]
"""Runs one operator of the model in its runtime."""


def lower(
    model: Model,
    profile: str,
    run: RunOperator | None = None,
    others: Mapping[int, str] | None = None,
) -> Program:
    """Return the integer program of a model.

    Args:
        model: a model with one subgraph.
        profile: the numerics profile.
        run: runs operators that stay in float; without it a program with such operators cannot be
            called as a whole.
        others: output of an operator -> the profile of its kernel, where that is another.

    Raises:
        KernelError: a kernel cannot represent an operator; names it.
    """
    if model.subgraphs > 1:
        raise KernelError(
            f"the model has {model.subgraphs} subgraphs (control flow), which the integer engine "
            "does not run"
        )
    names = tensor_names(model)
    by_output = others or {}
    instructions = tuple(
        _instruction(model, op, by_output.get(op.outputs[0], profile), names, run)
        for op in model.operators
    )
    constants = {
        names[i]: torch.from_numpy(t.data.copy())
        for i, t in enumerate(model.tensors)
        if t.data is not None and any(names[i] in s.inputs for s in instructions)
    }
    params = {
        names[i]: params_of(t)
        for i, t in enumerate(model.tensors)
        if is_codes(t) and t.data is None
    }
    return Program(
        profile,
        tuple(names[i] for i in model.inputs),
        tuple(names[i] for i in model.outputs),
        instructions,
        constants,
        params,
        {n: value_names.tensor_of(n) for n in names},
    )


def _instruction(
    model: Model, op: Operator, profile: str, names: Sequence[str], run: RunOperator | None
) -> Instruction:
    call = Call(model, op, profile_of(profile))
    where = names[op.outputs[0]] if op.outputs else op.name
    try:
        kind, kernel, positions = _bind(call, run)
    except KernelError as error:
        raise KernelError(f"{where} ({op.name}): {error.problem}", *error.remedies) from error
    except (IndexError, ValueError, RuntimeError) as error:
        raise KernelError(f"{where} ({op.name}): it is malformed ({error})") from error
    inputs = tuple(names[op.inputs[i]] for i in positions)
    return Instruction(where, kind, kernel, inputs, tuple(names[i] for i in op.outputs))


def _bind(call: Call, run: RunOperator | None) -> tuple[str, Any, Sequence[int]]:
    """Return the kind of an instruction, its kernel, and the positions of its inputs."""
    op = call.operator
    present = [i for i, index in enumerate(op.inputs) if index != ABSENT]
    codes = bool(op.outputs) and is_codes(call.output)
    if op.name in MOVES and not op.custom:
        return "move", MOVES[op.name](call), _moved(op, present)
    if op.name == "CONCATENATION" and not codes:
        return "move", CONCATENATION(call), present
    if op.name == "QUANTIZE" and call.input().type == "float32":
        return "quantize", call.bind("quantize", call.out), [0]
    if op.name == "DEQUANTIZE" and is_codes(call.input()):
        return "dequantize", call.bind("dequantize", call.params()), [0]
    if op.name == "ADD" and call.output.type == "float32" and not _is_fused(call):
        unbounded = call.profile.name == litert.DELEGATE_PROFILE
        return "sum", torch.add if unbounded else _finite_sum, present
    if is_dynamic_linear(call.model, op) and call.profile.name != litert.DELEGATE_PROFILE:
        return "dynamic", dynamic_linear(call), [0]
    if codes and op.name in OPERATORS and not op.custom:
        positions = present if op.name == "CONCATENATION" else DATA_INPUTS.get(op.name, (0,))
        return "integer", OPERATORS[op.name](call), positions
    if codes:
        raise KernelError("there is no integer kernel of this operator in the engine")
    return "float", partial(_run_float, run, op), present


def _finite_sum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the sum within the range of float32, which LiteRT's kernel does not leave."""
    largest = torch.finfo(torch.float32).max
    return torch.add(a, b).clamp(-largest, largest)


def _is_fused(call: Call) -> bool:
    return bool(call.option("fused_activation_function", 0))


def _moved(op: Operator, present: Sequence[int]) -> Sequence[int]:
    """Return the inputs of a move: numbers that are bound to it are none."""
    return present if op.name in ("TILE", "BROADCAST_TO", "GATHER", "PACK") else [0]


def _run_float(run: RunOperator | None, op: Operator, *inputs: torch.Tensor) -> Any:
    if run is None:
        raise KernelError(
            f"{op.name} computes in float, which LiteRT runs", Package("ai-edge-litert")
        )
    results = run(op, inputs)
    return results[0] if len(op.outputs) == 1 else tuple(results)
