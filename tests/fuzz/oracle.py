"""What became of a random network: right, refused in one sentence, or something that must not be.

Nothing is taken from qtool's word: what it wrote is run again on data that it never saw, and
tolerances are the oracle's own (tests/fuzz/tolerance.py).
"""

import signal
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from torch.utils import _pytree as pytree

from qtool.api.quantized_model import QuantizedModel
from qtool.backends.onnxruntime.verification.bit_exactness import compare_codes
from qtool.core.atomic import scratch_folder
from qtool.core.errors import QtoolError
from qtool.core.graph import shape
from qtool.planning.plan import Execution
from qtool.verification import Verification
from qtool.verification.estimate import NEARER
from qtool.verification.fidelity import Fidelity
from tests.fuzz.tolerance import DRAWS, Perturbed, float_noise, within

KINDS = (
    *("right", "noted", "float", "refused", "invalid", "codes", "silent", "capture", "coverage"),
    *("simulation", "taken", "step", "traceback", "hang"),
)
"""right: verified, and equal on new data. noted: the same, with a warning of accuracy. float:
captured right, with nothing to quantize. refused: one sentence. invalid: refused, and the runtime
refuses it, too. codes: integers differ. silent: far from the float model without a word.
capture: the float graph computes something else. coverage: planned in integers, run in float.
simulation: the file is far from its simulation on new data. taken: what the runtime refuses was
taken. step: a step of recovery failed and was left out. traceback, hang: another error, no end."""
BAD = frozenset(KINDS[5:])

FAILED = "skipped after a failure"
FAR = 15.0  # dB of an output on the sample, below which something has to have been said
GONE = 3.0  # the same on new data, which may lie where the sample did not
APART = 12.0  # dB that a file may lose on new data against its own simulation
ENOUGH = 16  # samples of which so much can be said
UNMOVED = 0.05  # of what a rounding decides no draw may hit so many
IN_BLOCKS = 45.0  # dB of a layer that rounds its inputs in blocks, as the simulation does not
LIMIT, WAITS = 120, 10  # seconds of work; times as many of waiting


@dataclass(frozen=True)
class Verdict:
    kind: str
    why: str = ""

    @property
    def bad(self) -> bool:
        return self.kind in BAD


class _Hangs(BaseException):
    """Nothing that catches errors catches this."""


@contextmanager
def _limited() -> Iterator[None]:
    def stop(number: int, frame: Any) -> None:
        raise _Hangs

    old = [signal.signal(number, stop) for number in (signal.SIGALRM, signal.SIGPROF)]
    signal.alarm(WAITS * LIMIT)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)  # of work: others may have the machine
    try:
        yield
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGALRM, old[0])
        signal.signal(signal.SIGPROF, old[1])


def judged(check: Callable[[], Verdict]) -> Verdict:
    """What a check finds, whatever it raises."""
    try:
        with _limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return check()
    except QtoolError as error:
        if len(str(error).splitlines()) != 1 or "bug in qtool" in str(error):
            return Verdict("traceback", f"{type(error).__name__}: {error}")
        kind = "float" if "nothing in this model can run in integers" in str(error) else "refused"
        return Verdict(kind, f"{type(error).__name__}: {error}")
    except _Hangs:
        return Verdict("hang")
    except Exception as error:  # noqa: BLE001  # what it is for
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())[:300]
        return Verdict(
            "traceback",
            f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {text}",
        )


def check_file(
    quantized: QuantizedModel,
    batches: Sequence[tuple[torch.Tensor, ...]],
    truths: Sequence[Sequence[torch.Tensor]],
    format: str = "qdq",  # noqa: A002  # the word of the field
) -> Verdict:
    """Exports, and runs the file on batches that it was not verified with.

    Args:
        truths: the outputs of the float model for each batch.
    """
    with scratch_folder() as folder:
        path = folder / "model.onnx"
        found = quantized.export(path, format=format)
        assert found is not None
        failed = [note for note in quantized.notes if FAILED in note]
        if failed:
            return Verdict("step", failed[0])
        local = found.exactness is not None  # qtool knows the runtime
        near = found.fidelity
        said = near.warning or near.near_zero_divisions or near.collapsed or _unlike(near)
        unseen = any("on the calibration data it is zero" in note for note in quantized.notes)
        low = _lowest(quantized, path, local)
        if low < FAR and not said:
            return Verdict(
                "noted" if _is_noise(quantized) else "silent", f"{low:.1f} dB on the sample"
            )
        for batch, truth in zip(batches, truths, strict=True):
            verdict = _on(quantized, found, path, batch, truth, format, bool(said) or unseen, low)
            if verdict is not None:
                return verdict
    promised = {d.node for d in quantized.plan.nodes if d.execution is Execution.INTEGER and d.macs}
    lost = (r for r in found.coverage.float_rows if local or r.kernel == "not found")
    floats = [r.name for r in lost if r.name in promised]  # else the runtime's own choice, and said
    if floats:
        return Verdict("coverage", f"in float: {', '.join(floats)}")
    return Verdict("noted" if found.fidelity.warning else "right")


def _unlike(fidelity: Fidelity) -> bool:
    """Whether samples of the estimate decide it, or differ from those of the calibration."""
    estimate = fidelity.estimate
    return bool(estimate.costly or estimate.beyond or estimate.reach > NEARER)


def _lowest(quantized: QuantizedModel, path: Path, optimise: bool) -> float:
    """dB of the worst output on the sample that the file was verified with."""
    tensors = quantized.graph.tensors_of(quantized.sample)
    with torch.no_grad():
        truth = _leaves(
            quantized.reference.module(*quantized.sample.args, **quantized.sample.kwargs)
        )
    actual = _run(path, [t.detach().numpy() for t in tensors], optimise)
    pairs = [
        (a.detach().numpy(), b)
        for a, b in zip(truth, actual, strict=True)
        if tuple(a.shape) == b.shape
    ]
    return min((ratio(a, b) for a, b in pairs if _finite(a)), default=200.0)


def _is_noise(quantized: QuantizedModel) -> bool:
    """Whether an output of the float model is what its own rounding leaves of a zero."""
    module, sample = quantized.reference.module, quantized.sample
    return float_noise(module, sample.args, sample.kwargs) > 10 ** (-FAR / 20)


def _finite(a: np.ndarray[Any, Any]) -> bool:
    return a.dtype.kind == "f" and bool(np.isfinite(a).all())


def _on(
    quantized: QuantizedModel,
    found: Verification,
    path: Path,
    batch: tuple[torch.Tensor, ...],
    truth: Sequence[torch.Tensor],
    form: str,
    said: bool,
    low: float,
) -> Verdict | None:
    """What is wrong on new data. low: dB of the worst output on the sample."""
    arrays = [t.numpy() for t in batch]
    if found.exactness is not None and form == "qdq":
        exact = compare_codes(path, [arrays])
        if not exact.passed:
            return Verdict("codes", str(exact))
    actual = _run(path, arrays, found.exactness is not None)
    in_blocks = any(r.kernel == "MatMulNBits" for r in found.coverage.rows)
    most = min(IN_BLOCKS, low) if in_blocks else 60.0
    with torch.no_grad():
        simulated = [t.numpy() for t in _leaves(quantized(*batch))]
    given = [torch.from_numpy(b) for b in actual]
    for i, name in enumerate(quantized.graph.outputs):
        a, b, c = truth[i], actual[i], simulated[i]
        same = tuple(a.shape) == b.shape == c.shape
        if not same and (b.shape == c.shape or name in _decided(quantized)):
            continue  # values decide how many there are
        if tuple(a.shape) != b.shape:
            return Verdict("capture", f"{name}: {b.shape} for {tuple(a.shape)}")
        if not _finite(a.numpy()):
            continue
        real, fake = ratio(a.numpy(), b), ratio(a.numpy(), c)
        lost = real < GONE and b.ndim and len(b) >= ENOUGH and not said
        if lost and not rounded_alike(quantized.reference.module, batch, truth, given, i):
            return Verdict("silent", f"{name}: {real:.1f} dB, simulated {fake:.1f} dB")
        if min(fake, most) - real > APART and not (in_blocks and _a_code_apart(c, b)):
            planned = [torch.from_numpy(t) for t in simulated]
            if not rounded_alike(quantized.module, batch, planned, given, i):
                return Verdict("simulation", f"{name}: {real:.1f} dB, simulated {fake:.1f} dB")
    return None


def _a_code_apart(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether values are a code of eight bits apart on average, or nearly all of them are at most
    that: single ones may jump (Floor, Sign) where their inputs are rounded in blocks."""
    apart, code = np.abs(one - other), float(np.ptp(one)) / 255
    return float(apart.mean()) <= code or (apart > code).sum() <= max(1, UNMOVED * apart.size)


def _decided(quantized: QuantizedModel) -> set[str]:
    """Outputs of which values decide how many there are."""
    (output,) = quantized.graph.graph.find_nodes(op="output")
    pairs = zip(quantized.graph.outputs, pytree.tree_leaves(output.args[0]), strict=True)
    return {n for n, node in pairs if any(str(s).startswith("u") for s in shape(node))}


def _run(
    path: Path, arrays: Sequence[np.ndarray[Any, Any]], optimise: bool = True
) -> list[np.ndarray[Any, Any]]:
    """In ONNX Runtime; as written where that is not what the file is for."""
    options = ort.SessionOptions()
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return list(session.run(None, dict(zip(names, arrays, strict=True))))


def _leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value
    return [leaf for part in parts for leaf in _leaves(part)]


def ratio(real: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Signal to noise in dB; 200 at most, -200 where a value is not finite. A hundredth of the
    values may be anything: next to a pole (1 / x) little noise goes far."""
    with np.errstate(invalid="ignore"):
        off = np.nan_to_num(np.abs(real.astype(float) - other), nan=np.inf)
    limit = np.quantile(off, 0.99, method="lower") if off.size >= 100 else np.inf
    real, off = real[off <= limit].astype(float), off[off <= limit]
    noise, power = float(np.square(off).sum()), float(np.square(real).sum())
    if noise == 0:
        return 200.0
    if not np.isfinite(noise) or power == 0:
        return -200.0
    return float(np.clip(10 * np.log10(power / noise), -200, 200))


def rounded_alike(
    module: torch.nn.Module,
    batch: tuple[torch.Tensor, ...],
    truth: Sequence[torch.Tensor],
    found: Sequence[torch.Tensor],
    only: int | None = None,
) -> bool:
    """Whether each value (of one output) is as near to the truth as its own rounding lets it be."""
    run = Perturbed(module)
    run.still = True
    plain = run.outputs(batch)
    run.still = False
    draws = [run.outputs(batch) for _ in range(DRAWS)]
    for i, (exact, a, b) in enumerate(zip(plain, truth, found, strict=True)):
        if only in (None, i) and not _near(a, b, exact, [d[i] for d in draws]):
            return False
    return True


def _near(
    a: torch.Tensor, b: torch.Tensor, plain: torch.Tensor, draws: Sequence[torch.Tensor]
) -> bool:
    """Of floats by how far they move; of what is true or false nearly all that differ have to.
    Where last bits decide how many values there are (Unique), any number is as right."""
    if any(d.shape != plain.shape for d in draws):
        return True
    if a.shape != b.shape:
        return False
    if a.is_floating_point():
        return within(
            a, b, torch.stack([(plain.double() - d.double()).abs() for d in draws]).amax(0)
        )
    odd, moved = a != b, torch.stack([plain != d for d in draws]).any(0)
    return int((odd & ~moved).sum()) <= UNMOVED * int(odd.sum())
