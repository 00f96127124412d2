"""How far a quantized network's outputs are from the float one's, on samples that decide."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from qtool import distributed
from qtool.algorithms.pipeline import ConversionState
from qtool.core.data import Batch
from qtool.core.data.calibration_samples import content_hash as mark_of_samples
from qtool.core.graph import FloatGraph
from qtool.core.graph.executor import Executor
from qtool.core.graph.fingerprint import fingerprint, state_hash
from qtool.distributed import Ranks, interleave
from qtool.planning.fake_quantize import insert_points, quant_points

HELD_OUT_SAMPLES = 64  # samples that nothing was made of
STANDARD_ERRORS = 3  # standard errors of a mean
MIN_POWER = 1e-30  # the power of an output that is zero throughout
NOISE_FLOOR = 1e-3  # of the mean noise: less is none, so that no sample counts without end


@dataclass(frozen=True, eq=False)
class Errors:
    """Of one batch, float64 [outputs, samples]: the power of the float network's outputs, and of
    the difference from them; [outputs, 1] where they are not of one sample each. What is not finite
    in the float network is left out."""

    signal: torch.Tensor
    noise: torch.Tensor


def float_outputs(module: nn.Module, batch: Batch) -> list[torch.Tensor]:
    """The float tensors that a module gives."""
    found = pytree.tree_leaves(module(*batch.args, **batch.kwargs))
    return [t for t in found if isinstance(t, torch.Tensor) and t.is_floating_point()]


def relative_error(exact: Iterable[torch.Tensor], coded: Iterable[torch.Tensor]) -> torch.Tensor:
    """The power of the difference over that of the float outputs, added up over outputs."""
    pairs = list(zip(exact, coded, strict=True))
    return torch.stack(
        [(one - two).square().sum() / one.square().sum().clamp(min=MIN_POWER) for one, two in pairs]
    ).sum()


def quantized_module(state: ConversionState) -> fx.GraphModule:
    """The quantized network, as the conversion has it by now."""
    assert state.parameters is not None
    module = insert_points(state.graph.module, state.plan)
    for name, point in quant_points(module).items():
        point.set_params(state.parameters.params[name])
    return module


def output_noise(
    state: ConversionState, modules: Sequence[fx.GraphModule], batches: Sequence[Batch]
) -> list[float]:
    """Of each quantized network, the noise of its outputs over their power in the float one."""
    return [float(each.sum()) for each in output_noise_per_sample(state, modules, batches)]


def output_noise_per_sample(
    state: ConversionState, modules: Sequence[fx.GraphModule], batches: Sequence[Batch]
) -> list[torch.Tensor]:
    """Return what each sample adds to `output_noise`, per module: float64 [samples].

    [batches] where an output does not have one row per sample.
    """
    among = ranks_for(state, f"judge by {len(batches)} batches", modules)
    known = state.calibration.kept_samples.cache if state.calibration is not None else {}
    graphs = [replace(state.graph, module=module) for module in modules]
    own = batches[among.rank :: among.size]
    found = [
        _gather_errors(among, each)
        for each in measure_errors(state.captured.graph.module, graphs, own, known)
    ]
    power = torch.stack([e.signal.sum(1) for e in found[0]]).sum(0).clamp(min=MIN_POWER)
    return [torch.cat([(e.noise / power[:, None]).sum(0) for e in each]) for each in found]


def ranks_for(state: ConversionState, task: str, modules: Sequence[fx.GraphModule] = ()) -> Ranks:
    """The ranks that share a task: where all are at the same one, of the same conversion and
    networks, to the last bit. One that left a step out would else be waited for in the middle of
    another."""
    return distributed.step_ranks(lambda: _task_fingerprint(state, task, modules))


def _task_fingerprint(state: ConversionState, task: str, modules: Sequence[fx.GraphModule]) -> str:
    marks = [task, fingerprint(state.graph.module), *map(state_hash, modules)]
    digest = hashlib.sha256("\n".join(marks).encode())
    if state.parameters is not None:
        for name, params in sorted(state.parameters.params.items()):
            digest.update(name.encode())
            for tensor in (params.scale, params.zero_point):
                digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _gather_errors(among: Ranks, own: list[Errors]) -> list[Errors]:
    """What was found of each batch, on all ranks: no float loses a bit as text."""
    if not among.is_distributed:
        return own
    given = [[e.signal.shape[1], e.signal.tolist(), e.noise.tolist()] for e in own]
    found = interleave([json.loads(text) for text in among.all_gather(json.dumps(given))])
    return [Errors(*(_matrix(t, count) for t in both)) for count, *both in found]


def _matrix(rows: list[list[float]], columns: int) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), columns)


def not_worse(before: ConversionState, after: ConversionState) -> bool:
    """Whether a quantized network after a step is as near to the float one as it was, on samples
    kept aside; so it is where there are none.

    Sample by sample, by the mean of the logarithms of how many times the noise is what it was: a
    few that are far off would decide the ratio of sums. Half of the samples where they can tell.
    """
    batches = before.quick_batches(limit=HELD_OUT_SAMPLES, holdout=True)
    if not batches:
        return True
    modules, half = [quantized_module(each) for each in (before, after)], (len(batches) + 1) // 2
    found = error_ratios(*output_noise_per_sample(before, modules, batches[:half]))
    if (
        abs(found.mean()) < STANDARD_ERRORS * found.std(correction=0) / len(found) ** 0.5
        and batches[half:]
    ):
        rest = error_ratios(*output_noise_per_sample(before, modules, batches[half:]))
        found = torch.cat([found, rest])
    return bool(found.mean() <= 0)


def error_ratios(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Logarithms of how many times the noise of each sample is what it was."""
    least = (NOISE_FLOOR * (before + after).mean()).clamp(min=MIN_POWER)
    return ((after + least) / (before + least)).log()


def measure_errors(
    exact: nn.Module,
    graphs: Sequence[FloatGraph],
    batches: Sequence[Batch],
    known: dict[tuple[str, str], Errors],
) -> list[list[Errors]]:
    """How far quantized networks are from the float one, by network and batch.

    Args:
        graphs: with points. known: what was found out before, for this and later calls.
    """
    contents = [_content_key(batch) for batch in batches]
    marks = [state_hash(graph.module) for graph in graphs]
    runs: dict[str, Executor] = {}
    with torch.inference_mode():
        for batch, content in zip(batches, contents, strict=True):
            new = {m: g for m, g in zip(marks, graphs, strict=True) if (m, content) not in known}
            wanted = float_outputs(exact, batch) if new else []
            for mark, graph in new.items():
                if mark not in runs:
                    runs[mark] = Executor(graph)
                run = runs[mark]
                given = [t for t in run.output_values(batch, run.points) if t.is_floating_point()]
                known[mark, content] = _errors(wanted, given, batch.size)
    return [[known[mark, content] for content in contents] for mark in marks]


def _content_key(batch: Batch) -> str:
    """Tells batches apart; also by how they lie in memory, which gives other last bits."""
    tensors = [t.detach().cpu() for _, t in batch.tensors()]
    return f"{mark_of_samples(tensors)} {[t.stride() for t in tensors]}"


def _errors(exact: Sequence[torch.Tensor], found: Sequence[torch.Tensor], samples: int) -> Errors:
    alone = bool(exact) and all(t.dim() and len(t) == samples for t in exact)
    count = samples if alone else 1
    signal, noise = [torch.zeros(0, count)], [torch.zeros(0, count)]
    for one, two in zip(exact, found, strict=True):
        number, real = one.isfinite(), one.double()
        off = real - two if one.shape == two.shape else torch.full_like(real, math.nan)
        for each, values in ((signal, real), (noise, off)):
            power = values.square().masked_fill(~number, 0)
            each.append(power.reshape(1, count, -1).sum(2).cpu())
    return Errors(torch.cat(signal).double(), torch.cat(noise).double())
