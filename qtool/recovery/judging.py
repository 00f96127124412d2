"""How far a quantized network's outputs are from the float one's, on samples that decide."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from qtool import ranks
from qtool.conversion import Conversion
from qtool.data import Batch
from qtool.graph.fingerprint import fingerprint
from qtool.graph.run import Executor
from qtool.points import insert_points, points_of
from qtool.ranks import Ranks, in_turn

__all__ = [
    "as_near",
    "coded",
    "growths",
    "loss_of",
    "noise_by_sample",
    "noise_of",
    "outputs",
    "sharing",
]

JUDGES = 64  # samples that nothing was made of
CLEAR = 3  # standard errors of a mean
FAINTEST = 1e-30  # the power of an output that is zero throughout
HARDLY = 1e-3  # of the mean noise: less is none, so that no sample counts without end


def outputs(module: nn.Module, batch: Batch) -> list[torch.Tensor]:
    """The float tensors that a module gives."""
    found = pytree.tree_leaves(module(*batch.args, **batch.kwargs))
    return [t for t in found if isinstance(t, torch.Tensor) and t.is_floating_point()]


def loss_of(exact: Iterable[torch.Tensor], coded: Iterable[torch.Tensor]) -> torch.Tensor:
    """The power of the difference over that of the float outputs, added up over outputs."""
    pairs = list(zip(exact, coded, strict=True))
    return torch.stack(
        [(one - two).square().sum() / one.square().sum().clamp(min=FAINTEST) for one, two in pairs]
    ).sum()


def coded(work: Conversion) -> fx.GraphModule:
    """The quantized network, as the conversion has it by now."""
    assert work.parameters is not None
    module = insert_points(work.graph.module, work.plan)
    for name, point in points_of(module).items():
        point.set_params(work.parameters.params[name])
    return module


def noise_of(
    work: Conversion, modules: Sequence[fx.GraphModule], batches: Sequence[Batch]
) -> list[float]:
    """Of each quantized network, the noise of its outputs over their power in the float one."""
    return [float(each.sum()) for each in noise_by_sample(work, modules, batches)]


def noise_by_sample(
    work: Conversion, modules: Sequence[fx.GraphModule], batches: Sequence[Batch]
) -> list[torch.Tensor]:
    """What each sample adds to `noise_of`: float64 [samples]; [batches] where outputs are not of
    one sample each."""
    among, told = sharing(work), list[list[float]]()
    own = batches[among.rank :: among.size]
    with torch.inference_mode():
        wanted = [outputs(work.captured.graph.module, batch) for batch in own]
        powers = _told(among, [[_power(one) for one in each] for each in wanted])
        power = [sum(each) for each in zip(*powers, strict=True)]
        for module in modules:
            run, each = Executor(replace(work.graph, module=module)), list[list[float]]()
            for batch, exact in zip(own, wanted, strict=True):
                results = run.results(batch, run.points)
                given = [t for t in results if t.is_floating_point()]
                each.append(_noise(exact, given, power, batch.size).tolist())
            told.append([noise for noises in _told(among, each) for noise in noises])
    return [torch.tensor(noises, dtype=torch.float64) for noises in told]


def sharing(work: Conversion) -> Ranks:
    """The ranks that share what is done with a conversion's samples: where they have the same one,
    to the last bit."""
    return ranks.sharing(lambda: _mark(work))


def _mark(work: Conversion) -> str:
    digest = hashlib.sha256(fingerprint(work.graph.module).encode())
    if work.parameters is not None:
        for name, params in sorted(work.parameters.params.items()):
            digest.update(name.encode())
            for tensor in (params.scale, params.zero_point):
                digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _told(among: Ranks, own: list[list[float]]) -> list[list[float]]:
    """What was found of each batch, on all ranks: no float loses a bit as text."""
    return in_turn([json.loads(text) for text in among.tell(json.dumps(own))])


def as_near(before: Conversion, after: Conversion, size: int) -> bool:
    """Whether a quantized network after a step is as near to the float one as it was, on samples
    kept aside, so many at once; so it is where there are none.

    Sample by sample, by the mean of the logarithms of how many times the noise is what it was: a
    few that are far off would decide the ratio of sums. Half of the samples where they can tell.
    """
    batches = before.quick_batches(size, JUDGES, aside=True)
    if not batches:
        return True
    modules, half = [coded(each) for each in (before, after)], (len(batches) + 1) // 2
    found = growths(*noise_by_sample(before, modules, batches[:half]))
    if abs(found.mean()) < CLEAR * found.std(correction=0) / len(found) ** 0.5 and batches[half:]:
        rest = growths(*noise_by_sample(before, modules, batches[half:]))
        found = torch.cat([found, rest])
    return bool(found.mean() <= 0)


def growths(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Logarithms of how many times the noise of each sample is what it was."""
    least = (HARDLY * (before + after).mean()).clamp(min=FAINTEST)
    return ((after + least) / (before + least)).log()


def _noise(
    exact: Sequence[torch.Tensor],
    found: Sequence[torch.Tensor],
    power: Sequence[float],
    samples: int,
) -> torch.Tensor:
    pairs = zip(exact, found, power, strict=True)
    squares = [(one.double() - two).square() / max(p, FAINTEST) for one, two, p in pairs]
    if not squares:  # integers alone come out
        return torch.zeros(1, dtype=torch.float64)
    if all(t.dim() and len(t) == samples for t in squares):
        return torch.stack([t[:, None].flatten(1).sum(1).cpu() for t in squares]).sum(0)
    return torch.stack([t.sum().cpu() for t in squares]).sum(0, keepdim=True)


def _power(t: torch.Tensor) -> float:
    return float(t.double().square().sum())
