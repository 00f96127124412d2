"""Is each step of an exported file what was planned? Step by step, so that depth plays no part.

Differences between two right ways to compute a network travel: a code that rounds the other way in
the first layer is a hundred others in the twentieth. No limit on the outputs of a deep network can
tell them from a mistake. So each step is given the values that the file itself, run as written, has
in front of it:

- what the plan computes in torch between two points has to be what the file rounds to codes there:
  within half a code, and what float32 leaves open;
- an integer kernel, which rounds in places of its own, gives the codes that the file as written
  gives, or their neighbours;
- a part in float that the runtime has optimised gives what it gives as written. MatMulNBits is run
  in float there: that it may round its input to int8 is said in the file, and is no mistake.

What passes is right by induction. That the runtime's integer kernels are the ones compared here is
shown by exact.py, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from qtool.backends.onnx.reading import OnnxModel, name_of, values_read
from qtool.backends.onnxruntime.integer_engine import Program
from qtool.backends.onnxruntime.integer_engine.integer_program import Instruction
from qtool.core import value_names
from qtool.core.data import Batch
from qtool.core.graph.float_tolerance import (
    NOISE_FACTOR,
    TOLERANCE,
    distance,
    float_tolerance,
    last_bit_perturbation,
)
from qtool.core.graph.perturbation import DRAWS, PerturbedInterpreter, within_tolerance
from qtool.core.types import QuantParams
from qtool.planning.fake_quantize import QuantPoint, quant_points
from qtool.verification.exported_file import ExportedFile
from qtool.verification.stable_sort import StableSort

_SPAN = 255  # codes of an output
_NAMED = 3
_JUMPS = frozenset(
    [
        *("ArgMax", "ArgMin", "Cast", "Ceil", "DynamicQuantizeLinear", "DynamicQuantizeMatMul"),
        *("Equal", "Floor", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mod"),
        *("MatMulIntegerToFloat", "MatMulNBits", "NonMaxSuppression", "NonZero", "Round"),
        *("Sign", "TopK"),
    ]
)
"""Operators whose results jump where their inputs move by their last bit, or that round inside."""

Arrays = Sequence[np.ndarray[Any, Any]]
Pair = tuple[torch.Tensor, torch.Tensor]
Values = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class NodeParity:
    """samples: how many were used. compared: values at points and outputs, and kernels. wrong: the
    steps that give something else, each with how far off it is."""

    samples: int
    compared: int
    wrong: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.wrong

    def __str__(self) -> str:
        text = f"node by node ({self.samples} samples): "
        if self.passed:
            return f"{text}all {self.compared} comparisons match the plan"
        more = f" and {len(self.wrong) - _NAMED} more" if len(self.wrong) > _NAMED else ""
        named = ", ".join(self.wrong[:_NAMED])
        return f"{text}{len(self.wrong)} of {self.compared} differ from the plan: {named}{more}"


def compare_nodes(
    exported: ExportedFile, module: nn.Module, batch: Batch, program: Program | None
) -> tuple[NodeParity, Arrays]:
    """Compares a file with the fake-quantized model it was made of, step by step.

    Args:
        module: with its points. batch: bound to its inputs.
        program: the integer program of the file; None where the runtime's kernels are not known.

    Returns also the outputs of the file as written.

    Raises:
        VerificationError: the runtime refuses the file as written.
    """
    arrays = batch.arrays()
    asked = {value_names.quantize(point): None for point in quant_points(module)}
    if program is not None:
        asked |= dict.fromkeys(
            o for step in program.instructions for o in (*step.inputs, *step.outputs)
        )
    outputs, seen = exported.tensors_as_written(arrays, asked)
    jumping = _jumping(exported.qdq)
    named = dict(zip(map(name_of, exported.qdq.outputs), outputs, strict=True))
    planned, wrong = _as_planned(module, batch, named, seen, jumping)
    if program is not None:
        program = exported.program_as_written(program)
        known = {**program.constants, **{n: program.from_file_codes(n, t) for n, t in seen.items()}}
        known |= dict(zip(program.inputs, map(torch.from_numpy, arrays), strict=True))
        kernels, odd = _as_written(program, known, jumping)
        planned, wrong = planned + kernels, [*wrong, *odd]
    return NodeParity(batch.size, planned, tuple(wrong)), outputs


def _as_planned(
    module: nn.Module,
    batch: Batch,
    outputs: Mapping[str, np.ndarray[Any, Any]],
    seen: Values,
    jumping: Collection[str],
) -> tuple[int, list[str]]:
    """How many values were compared, and those that are wrong: torch beside the file, with the
    file's own codes behind each point."""
    points, off = quant_points(module), dict[str, tuple[float, float]]()

    def look(name: str, x: torch.Tensor) -> None:  # at once: all of them together are large
        beyond = _beyond(x, seen[value_names.quantize(name)], points[name])
        off[name] = (float(beyond.max()), float(beyond.mean())) if beyond.numel() else (0.0, 0.0)

    with _given(module, seen, look), torch.no_grad(), StableSort():
        mine = pytree.tree_leaves(module(*batch.args, **batch.kwargs))
    high = {name: worst for name, (worst, _) in off.items() if not worst <= TOLERANCE}
    pairs = [
        (name, t.cpu(), torch.from_numpy(o))
        for (name, o), t in zip(outputs.items(), mine, strict=True)
        if isinstance(t, torch.Tensor)
    ]
    far = {name: (a, b) for name, a, b in pairs if not distance(a, b) <= TOLERANCE}
    if high or far:
        allowed = _own_noise(module, batch, seen)
        high = {
            name: d
            for name, d in high.items()
            if not d <= NOISE_FACTOR * allowed.get(name, 0.0)
            and not (value_names.quantize(name) in jumping and off[name][1] <= 1 / _SPAN)
        }
        with _given(module, seen), StableSort():
            moved = float_tolerance(module, batch.args, batch.kwargs)
        far = {n: p for n, p in far.items() if not _near(*p, moved, n in jumping)}
    if high or far:
        high, far = _beyond_conditioning(module, batch, seen, high, far, list(outputs))
    wrong = [f"{name} ({_SPAN * d:.3g} codes beyond rounding)" for name, d in high.items()]
    wrong += [f"output {name} ({_SPAN * distance(*p):.3g} codes)" for name, p in far.items()]
    return len(off) + len(pairs), wrong


def _beyond_conditioning(
    module: nn.Module,
    batch: Batch,
    seen: Values,
    high: dict[str, float],
    far: dict[str, Pair],
    outputs: Sequence[str],
) -> tuple[dict[str, float], dict[str, Pair]]:
    """What is left of values too far off where each is allowed what its own rounding does."""
    if not isinstance(module, fx.GraphModule):
        return high, far
    points, run = quant_points(module), PerturbedInterpreter(module)
    plain: dict[str, torch.Tensor] = {}
    open_: dict[str, torch.Tensor] = {}

    def look(name: str, x: torch.Tensor) -> None:
        if name in high:
            _widen(plain, open_, name, x.cpu())

    def widen(moved: Collection[str]) -> None:
        for name, x in zip(outputs, run.outputs(batch.args, batch.kwargs), strict=True):
            if name in moved:
                _widen(plain, open_, f"output {name}", x.cpu())

    with _given(module, seen, look), StableSort():
        for draw in range(1 + DRAWS):
            run.exact = draw == 0
            widen(far)
    counted = {name for name, (a, _) in far.items() if not a.is_floating_point()}
    with _given(module, seen), StableSort():
        run.amplitude = NOISE_FACTOR  # a position jumps, as far as floats may be off
        for _ in range(DRAWS if counted else 0):
            widen(counted)
    left = {}
    for name, d in high.items():
        params = points[name].params
        assert params is not None
        beyond = _beyond(plain[name], seen[value_names.quantize(name)], points[name])
        step = float(params.scale) * params.qtype.levels
        if beyond.shape != open_[name].shape or not bool(
            (beyond <= TOLERANCE + NOISE_FACTOR * open_[name] / step).all()
        ):
            left[name] = d
    return left, {n: p for n, p in far.items() if not within_tolerance(*p, open_[f"output {n}"])}


def _widen(
    plain: dict[str, torch.Tensor], open_: dict[str, torch.Tensor], name: str, x: torch.Tensor
) -> None:
    """The first of several is the value, and how far the others are from it is what is open."""
    if name not in plain:
        plain[name], open_[name] = x, torch.zeros(x.shape, dtype=torch.float64)
    elif x.shape == plain[name].shape:
        away = (x.double() - plain[name].double()).abs().nan_to_num(nan=0.0, posinf=0.0)
        open_[name] = torch.maximum(open_[name], away)


@contextmanager
def _given(
    module: nn.Module, seen: Values, look: Callable[[str, torch.Tensor], None] | None = None
) -> Iterator[None]:
    """While it is open every point gives the file's codes; what it is given is looked at."""

    def hook(point: QuantPoint, args: Any, output: torch.Tensor) -> torch.Tensor | None:
        codes = seen.get(value_names.quantize(point.point))
        params = point.params
        if codes is None or params is None:
            return None
        if look is not None:
            look(point.point, args[0].detach())
        if codes.shape != output.shape:
            return None
        return _cpu(params).dequantize(codes).to(output)

    handles = [p.register_forward_hook(hook) for p in quant_points(module).values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _cpu(params: QuantParams) -> QuantParams:
    return replace(params, scale=params.scale.cpu(), zero_point=params.zero_point.cpu())


def _beyond(x: torch.Tensor, codes: torch.Tensor, point: QuantPoint) -> torch.Tensor:
    """How far values lie outside of what rounds to these codes, in shares of the range; float64.
    NaN (0 / 0) has the lowest code, or that of zero, as processors have it."""
    assert point.params is not None
    params = _cpu(point.params)
    if x.shape != codes.shape:
        return torch.tensor(torch.inf)
    real = x.cpu().double() / params.scale.double() + params.zero_point
    kept = real.clamp(params.qtype.qmin, params.qtype.qmax)
    off = ((kept - codes.double()).abs() - 0.5).clamp(min=0)
    allowed = (codes == params.qtype.qmin) | (codes == params.zero_point)
    off = off.where(~kept.isnan(), torch.where(allowed, 0.0, torch.inf).double())
    return off / params.qtype.levels


def _own_noise(module: nn.Module, batch: Batch, seen: Values) -> dict[str, float]:
    """What float32 leaves open in front of each point: how far it is from float64 there, in shares
    of the range of codes. Nothing is known of a network that does not run so."""
    points = quant_points(module)

    def double(x: Any) -> Any:
        floats = isinstance(x, torch.Tensor) and x.is_floating_point()
        return x.double() if floats else x

    before: dict[str, torch.Tensor] = {}
    with _given(module, seen, before.__setitem__), torch.no_grad(), StableSort():
        module(*batch.args, **batch.kwargs)
        single = dict(before)
        tensors = (*module.named_parameters(), *module.named_buffers())
        state = {name: double(t.detach()) for name, t in tensors}
        args, kwargs = pytree.tree_map(double, (batch.args, batch.kwargs))
        try:
            torch.func.functional_call(module, state, args, kwargs)
        except Exception:  # noqa: BLE001  # a network may insist on float32 anywhere
            return {}
    found = {}
    for name, x in single.items():
        params = points[name].params
        assert params is not None
        step = float(params.scale) * params.qtype.levels
        found[name] = float((before[name] - x).abs().max()) / step if x.numel() else 0.0
    return found


def _near(a: torch.Tensor, b: torch.Tensor, noise: float, rounded: bool) -> bool:
    """Whether two results agree as far as they can. `rounded`: something between rounds or
    compares, so that single values may jump; they are a code apart on average then."""
    if distance(a, b) <= max(TOLERANCE, noise):
        return True
    if not rounded or a.shape != b.shape or not a.is_floating_point():
        return False
    finite = a[a.isfinite()].double()
    span = float(finite.max() - finite.min()) if finite.numel() else 0.0
    off = (a.double() - b.double()).abs().where(a != b, 0.0).nan_to_num(nan=float("inf"))
    return float(off.mean()) <= span / _SPAN


def _as_written(program: Program, known: Values, jumping: Collection[str]) -> tuple[int, list[str]]:
    """How many kernels were compared, and those that give something else than the file as written
    where they are given what it has."""
    count, wrong = 0, list[str]()
    for step in program.instructions:
        if not all(n in known for n in step.inputs) or not any(o in known for o in step.outputs):
            continue
        given = [known[n] for n in step.inputs]
        if step.kind == "quantize" and not given[0].is_floating_point():
            continue  # an input that is given in codes
        count += 1
        for name, mine in zip(step.outputs, _run(step, given), strict=True):
            if name not in known:
                continue
            if name in program.params:
                odd = _codes_apart(mine, known[name])
            else:
                odd = _floats_apart(step, given, name, mine, known[name], name in jumping)
            if odd:
                wrong.append(f"{step.name or program.labels.get(name, name)} ({odd})")
                break
    return count, wrong


def _run(step: Instruction, given: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    with torch.inference_mode():
        found = step.kernel(*given)
    several: Sequence[torch.Tensor] = found if len(step.outputs) > 1 else (found,)
    return several


def _codes_apart(mine: torch.Tensor, written: torch.Tensor) -> str:
    """How codes differ by more than one; "" where they do not."""
    if mine.shape != written.shape:
        return f"of shape {list(mine.shape)}, not {list(written.shape)}"
    off = int((mine.long() - written.long()).abs().max()) if mine.numel() else 0
    return "" if off <= 1 else f"{off} codes from what is written"


def _floats_apart(
    step: Instruction,
    given: Sequence[torch.Tensor],
    name: str,
    mine: torch.Tensor,
    written: torch.Tensor,
    jumps: bool,
) -> str:
    """How floats differ by more than what float32 leaves open; "" where they do not."""
    off = distance(written, mine)
    if off <= TOLERANCE:
        return ""
    other = _run(step, list(map(last_bit_perturbation(), given)))[step.outputs.index(name)]
    noise = NOISE_FACTOR * distance(mine, other) if mine.shape == other.shape else 0.0
    if _near(written, mine, noise if noise < 1 else 0.0, jumps):
        return ""
    return f"{_SPAN * off:.3g} codes from what is written, in float"


def _jumping(file: OnnxModel) -> set[str]:
    """Tensors that a rounding or a comparison of floats has a part in, since the last codes."""
    found: set[str] = set()
    for node in file.nodes:
        begins = node.op_type in _JUMPS
        if begins or (
            node.op_type != "DequantizeLinear" and found & set(map(name_of, values_read(node)))
        ):
            found |= {name_of(o) for o in node.outputs}
    return found
