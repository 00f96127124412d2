"""Compare each quantization point of the simulation in torch with the file as written.

Every point returns the codes of the file, so that a difference does not travel to later points.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from qtool.core import graph as G
from qtool.core import value_names
from qtool.core.data import Batch
from qtool.core.graph.float_tolerance import NOISE_FACTOR, TOLERANCE, distance, float_tolerance
from qtool.core.graph.perturbation import DRAWS, PerturbedInterpreter, within_tolerance
from qtool.core.quant_params import QuantParams
from qtool.core.types import Array
from qtool.planning.fake_quantize import QuantPoint, quant_points

CODES = 255
"""Steps in the range of an output: differences of floats are printed in 1/255 of the range."""

_aten = torch.ops.aten


def is_close(a: torch.Tensor, b: torch.Tensor, noise: float, discontinuous: bool) -> bool:
    """Return whether two results agree within the tolerance.

    Args:
        a: the expected tensor; its range is the unit.
        b: the other tensor.
        noise: largest difference that float32 rounding explains, as a share of the range.
        discontinuous: single values may jump, so the mean difference may be one code.
    """
    if distance(a, b) <= max(TOLERANCE, noise):
        return True
    if not discontinuous or a.shape != b.shape or not a.is_floating_point():
        return False
    finite = a[a.isfinite()].double()
    span = float(finite.max() - finite.min()) if finite.numel() else 0.0
    difference = (a.double() - b.double()).abs().where(a != b, 0.0).nan_to_num(nan=float("inf"))
    return float(difference.mean()) <= span / CODES


Pair = tuple[torch.Tensor, torch.Tensor]
Values = Mapping[str, torch.Tensor]


def compare_points(
    module: nn.Module,
    batch: Batch,
    outputs: Mapping[str, Array],
    values: Values,
    discontinuous: Collection[str],
    slack: float = 0.0,
) -> tuple[int, list[str]]:
    """Compare what the simulation computes before each point, and its outputs, with the file.

    A value has to round to the code of the file, up to what float32 rounding explains.

    Args:
        module: the fake-quantized model.
        batch: bound to its inputs.
        outputs: outputs of the file as written, by name.
        values: codes of the file as written, by name.
        discontinuous: names of tensors whose values may jump, see `parity_tolerance`.
        slack: codes that a kernel may be off beyond rounding, where the values are those of integer
            kernels, which round elsewhere than the plan.

    Returns:
        The number of points and outputs compared, and those that differ, each with the difference.
    """
    points, errors = quant_points(module), dict[str, tuple[float, float]]()

    def measure(name: str, x: torch.Tensor) -> None:  # at once: together the tensors are large
        error = _rounding_error(x, values[value_names.quantize(name)], points[name])
        errors[name] = (float(error.max()), float(error.mean())) if error.numel() else (0.0, 0.0)

    with _use_codes(module, values, measure), torch.no_grad(), StableSort():
        results = pytree.tree_leaves(module(*batch.args, **batch.kwargs))
    wrong_points = {
        name: worst
        for name, (worst, _) in errors.items()
        if not worst <= TOLERANCE + slack / _levels(points[name])
    }
    pairs = [
        (name, t.cpu(), torch.from_numpy(o))
        for (name, o), t in zip(outputs.items(), results, strict=True)
        if isinstance(t, torch.Tensor)
    ]
    wrong_outputs = {name: (a, b) for name, a, b in pairs if not distance(a, b) <= TOLERANCE}
    if wrong_points or wrong_outputs:
        noise = _float32_noise(module, batch, values)
        wrong_points = {
            name: error
            for name, error in wrong_points.items()
            if not error <= NOISE_FACTOR * noise.get(name, 0.0)
            and not (value_names.quantize(name) in discontinuous and errors[name][1] <= 1 / CODES)
        }
        wrong_outputs = _beyond_noise(module, batch, values, wrong_outputs, discontinuous)
    if wrong_points or wrong_outputs:
        wrong_points, wrong_outputs = _not_explained_by_rounding(
            module, batch, values, wrong_points, wrong_outputs, list(outputs)
        )
    wrong = [f"{n} ({CODES * e:.3g} codes beyond rounding)" for n, e in wrong_points.items()]
    wrong += [f"output {n} ({CODES * distance(*p):.3g} codes)" for n, p in wrong_outputs.items()]
    return len(errors) + len(pairs), wrong


def _beyond_noise(
    module: nn.Module,
    batch: Batch,
    values: Values,
    outputs: Mapping[str, Pair],
    discontinuous: Collection[str],
) -> dict[str, Pair]:
    """Return the outputs that differ by more than the rounding of the whole model explains."""
    with _use_codes(module, values), StableSort():
        tolerance = float_tolerance(module, batch.args, batch.kwargs)
    return {
        name: pair
        for name, pair in outputs.items()
        if not is_close(*pair, tolerance, name in discontinuous)
    }


def _not_explained_by_rounding(
    module: nn.Module,
    batch: Batch,
    values: Values,
    wrong_points: dict[str, float],
    wrong_outputs: dict[str, Pair],
    outputs: Sequence[str],
) -> tuple[dict[str, float], dict[str, Pair]]:
    """Return the points and outputs that differ by more than perturbed last bits change them.

    A limit for each value replaces that for a whole tensor: see `core.graph.perturbation`.
    """
    if not isinstance(module, fx.GraphModule):
        return wrong_points, wrong_outputs
    points = quant_points(module)
    changes = _perturbed(module, batch, values, wrong_points, wrong_outputs, outputs)
    remaining = {}
    for name, worst in wrong_points.items():
        error = _rounding_error(
            changes.first[name], values[value_names.quantize(name)], points[name]
        )
        allowed = TOLERANCE + NOISE_FACTOR * changes.largest[name] / _range(points[name])
        if error.shape != allowed.shape or not bool((error <= allowed).all()):
            remaining[name] = worst
    return remaining, {
        name: pair
        for name, pair in wrong_outputs.items()
        if not within_tolerance(*pair, changes.largest[f"output {name}"])
    }


def _perturbed(
    module: fx.GraphModule,
    batch: Batch,
    values: Values,
    wrong_points: Collection[str],
    wrong_outputs: Mapping[str, Pair],
    outputs: Sequence[str],
) -> _Changes:
    """Return how far these inputs of points and these outputs change with perturbed last bits.

    Points return the codes of the file, so that only what is behind the last ones is run again.
    """
    points, run, changes = quant_points(module), PerturbedInterpreter(module), _Changes()
    inputs: dict[str, tuple[torch.Size, torch.Tensor]] = {}

    def record_point(name: str, x: torch.Tensor) -> None:
        inputs[name] = x.shape, x.new_empty(0)
        if name in wrong_points:
            changes.record(name, x.cpu())

    def record_outputs(names: Collection[str]) -> None:
        for name, x in zip(outputs, run.outputs(batch.args, batch.kwargs), strict=True):
            if name in names:
                changes.record(f"output {name}", x.cpu())

    with _use_codes(module, values, record_point), StableSort():
        run.exact = True
        record_outputs(wrong_outputs)
        run.exact = False
        nodes = _nodes_of(module, points)
        known = {
            nodes[name]: partial(_result, points[name], values, like)
            for name, (shape, like) in inputs.items()
            if name not in wrong_points and shape == values[value_names.quantize(name)].shape
        }
        ends = zip(outputs, G.output_nodes(module.graph), strict=True)
        wanted = [node for name, node in ends if name in wrong_outputs]
        run.run_only(wanted + [nodes[name] for name in wrong_points], known)
        for _ in range(DRAWS):
            record_outputs(wrong_outputs)
    integers = {name for name, (a, _) in wrong_outputs.items() if not a.is_floating_point()}
    with _use_codes(module, values), StableSort():
        run.amplitude = NOISE_FACTOR  # a position jumps where floats differ by that much
        for _ in range(DRAWS if integers else 0):
            record_outputs(integers)
    return changes


def _nodes_of(module: fx.GraphModule, points: Mapping[str, QuantPoint]) -> dict[str, fx.Node]:
    """Return point -> node that calls it."""
    names = {id(point): name for name, point in points.items()}
    calls = [n for n in module.graph.nodes if n.op == "call_module"]
    owners = {n: names.get(id(G.submodule(module, n))) for n in calls}
    return {name: n for n, name in owners.items() if name is not None}


def _result(point: QuantPoint, values: Values, like: torch.Tensor) -> torch.Tensor:
    """Return what a point computes of the codes of the file."""
    assert point.params is not None
    codes = values[value_names.quantize(point.point)]
    return _cpu(point.params).dequantize(codes).to(like)


class _Changes:
    """The first of several tensors of each name, and how far the others are from it."""

    def __init__(self) -> None:
        self.first: dict[str, torch.Tensor] = {}
        self.largest: dict[str, torch.Tensor] = {}

    def record(self, name: str, x: torch.Tensor) -> None:
        if name not in self.first:
            self.first[name], self.largest[name] = x, torch.zeros(x.shape, dtype=torch.float64)
        elif x.shape == self.first[name].shape:
            change = (x.double() - self.first[name].double()).abs().nan_to_num(nan=0.0, posinf=0.0)
            self.largest[name] = torch.maximum(self.largest[name], change)


@contextmanager
def _use_codes(
    module: nn.Module, values: Values, visit: Callable[[str, torch.Tensor], None] | None = None
) -> Iterator[None]:
    """Make every point return the codes of the file; `visit` is called with each point's input."""

    def hook(point: QuantPoint, args: Any, output: torch.Tensor) -> torch.Tensor | None:
        codes = values.get(value_names.quantize(point.point))
        params = point.params
        if codes is None or params is None:
            return None
        if visit is not None:
            visit(point.point, args[0].detach())
        if codes.shape != output.shape:
            return None
        return _result(point, values, output)

    with ExitStack() as hooks:
        for each in quant_points(module).values():
            hooks.enter_context(each.register_forward_hook(hook))
        yield


def _cpu(params: QuantParams) -> QuantParams:
    return replace(params, scale=params.scale.cpu(), zero_point=params.zero_point.cpu())


def _levels(point: QuantPoint) -> int:
    assert point.params is not None
    return point.params.qtype.levels


def _range(point: QuantPoint) -> float:
    assert point.params is not None
    return float(point.params.scale) * point.params.qtype.levels


def _rounding_error(x: torch.Tensor, codes: torch.Tensor, point: QuantPoint) -> torch.Tensor:
    """Return how far values are from what rounds to these codes, as shares of the range (float64).

    NaN (0 / 0) may have the lowest code or that of zero: processors differ.
    """
    assert point.params is not None
    params = _cpu(point.params)
    if x.shape != codes.shape:
        return torch.tensor(torch.inf)
    real = x.cpu().double() / params.scale.double() + params.zero_point
    clamped = real.clamp(params.qtype.qmin, params.qtype.qmax)
    error = ((clamped - codes.double()).abs() - 0.5).clamp(min=0)
    nan_code = (codes == params.qtype.qmin) | (codes == params.zero_point)
    error = error.where(~clamped.isnan(), torch.where(nan_code, 0.0, torch.inf).double())
    return error / params.qtype.levels


def _float32_noise(module: nn.Module, batch: Batch, values: Values) -> dict[str, float]:
    """Return point -> largest difference of its input between float32 and float64, per range.

    Empty if the network does not run in float64.
    """
    points = quant_points(module)

    def double(x: Any) -> Any:
        floats = isinstance(x, torch.Tensor) and x.is_floating_point()
        return x.double() if floats else x

    inputs: dict[str, torch.Tensor] = {}
    with _use_codes(module, values, inputs.__setitem__), torch.no_grad(), StableSort():
        module(*batch.args, **batch.kwargs)
        single = dict(inputs)
        tensors = (*module.named_parameters(), *module.named_buffers())
        state = {name: double(t.detach()) for name, t in tensors}
        args, kwargs = pytree.tree_map(double, (batch.args, batch.kwargs))
        try:
            torch.func.functional_call(module, state, args, kwargs)
        except Exception:  # noqa: BLE001  # a network may insist on float32 anywhere
            return {}
    return {
        name: float((inputs[name] - x).abs().max()) / _range(points[name]) if x.numel() else 0.0
        for name, x in single.items()
    }


class StableSort(TorchDispatchMode):
    """Make torch order equal values as ONNX does: the lower index first.

    Codes are often equal, and everything gathered in their order depends on it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if func is _aten.topk.default:
            return _topk(*args, **options)
        if func is _aten.sort.default:
            return _sort(*args, **options)
        return func(*args, **options)


def _sort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    return _aten.sort.stable(x, stable=True, dim=dim, descending=descending)


def _topk(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, *_: bool, **__: bool
) -> Any:
    values, indices = _sort(x, dim, largest)
    return (values.narrow(dim, 0, k), indices.narrow(dim, 0, k)) if x.dim() else (values, indices)
