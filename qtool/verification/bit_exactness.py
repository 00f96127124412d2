"""The integer engine against ONNX Runtime: every code, with tolerance zero."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from qtool.backends.onnx.storage import load, save
from qtool.backends.onnxruntime.integer_engine import Program
from qtool.backends.onnxruntime.session import run, session
from qtool.backends.profiles import PROFILES
from qtool.core.atomic import scratch_folder
from qtool.core.errors import DataError
from qtool.verification.exported_file import ExportedFile

Arrays = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Exactness:
    """What the comparison of the outputs gave.

    elements: output values compared. identical: how many are the same to the last bit. worst: the
    largest difference in codes (of an output in float: in 1/255 of its range). first: the first
    tensor of the graph whose codes differ. float_steps: nodes that both run in the runtime's
    own kernels, which may round differently when they are fused. wrong: where outputs differ, what
    no float node explains: outputs that depend on none, and integer kernels that give other codes
    than the runtime's when they are given its own. profile: the numerics profile of the
    engine, by default that of this processor.
    """

    samples: int
    elements: int
    identical: int
    worst: float
    first: str | None
    float_steps: int
    wrong: tuple[str, ...] = ()
    profile: str = ""

    @property
    def passed(self) -> bool:
        """Every integer kernel is exact; what differs comes from nodes in float."""
        return self.exact or (self.float_steps > 0 and not self.wrong)

    @property
    def share(self) -> float:
        return self.identical / self.elements if self.elements else 1.0

    @property
    def exact(self) -> bool:
        return self.identical == self.elements

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "share": self.share, "exact": self.exact, "passed": self.passed}

    def __str__(self) -> str:
        text = (
            f"integer engine vs ONNX Runtime ({self.samples} samples): "
            f"{self.identical} of {self.elements} output values identical"
        )
        if not self.exact:
            text += f" ({100 * self.share:.3f} %), max difference {self.worst:g} codes"
            text += f", first difference in {self.first}" if self.first else ""
            if self.wrong:
                text += f"; not explained by float nodes: {', '.join(self.wrong[:3])}"
        if self.float_steps:
            text += f"; float nodes run by ONNX Runtime on both sides: {self.float_steps}"
        if self.profile:
            text += f"\narithmetic: {PROFILES[self.profile]}"
        return text


def compare_codes(
    file: ExportedFile | str | Path, batches: Iterable[Arrays], profile: str | None = None
) -> Exactness:
    """Run a QDQ file in the integer engine and in ONNX Runtime with default optimisation.

    Args:
        file: the file to run; for another form than QDQ, an `ExportedFile` with the QDQ model.
        batches: inputs in the order of the file's inputs.
        profile: numerics profile; by default that of ONNX Runtime on this processor.

    Raises:
        DataError: there is no sample.
        KernelError: the engine cannot represent a node.
        VerificationError: the runtime does not load the file.
    """
    exported = ExportedFile.of(file)
    if exported is not file:
        exported.load()  # what the runtime refuses is not to be understood
    program = exported.program(profile)
    behind = program.influenced_by_float
    samples = elements = identical = 0
    worst, first, wrong = 0.0, None, dict[str, None]()
    for batch in batches:
        expected = exported.run(batch)
        actual = file_outputs(program, program(*map(torch.from_numpy, batch)))
        before = elements - identical
        for name, a, b in zip(program.outputs, expected, actual, strict=True):
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            elements, identical = elements + a.size, identical + int(same.sum())
            worst = max(worst, _codes_apart(program, a, b))
            if not same.all() and name not in behind:
                wrong[program.labels.get(name, name)] = None
        samples += len(batch[0]) if batch and batch[0].ndim else 1
        if elements - identical > before:
            seen = _seen(exported.path, program, batch)
            first = first or _first_difference(program, seen, batch)
            wrong |= dict.fromkeys(_wrong_kernels(program, seen))
    if not samples:
        raise DataError("the data is empty, so nothing was compared; give at least one sample")
    floats = program.float_nodes
    found = (samples, elements, identical, worst, first, floats, tuple(wrong))
    return Exactness(*found, profile=program.profile)


def file_outputs(program: Program, outputs: Sequence[torch.Tensor]) -> list[np.ndarray[Any, Any]]:
    """Outputs as the file gives them: dequantized where it ends in a DequantizeLinear."""
    found = []
    for name, value in zip(program.outputs, outputs, strict=True):
        params = program.params.get(name)
        found.append((value if params is None else params.dequantize(value)).numpy())
    return found


def _codes_apart(program: Program, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    if a.dtype.kind != "f" or not a.size:
        return float(np.abs(a.astype(np.float64) - b).max()) if a.size else 0.0
    scales = [float(p.scale) for n in program.outputs if (p := program.params.get(n)) is not None]
    step = scales[0] if len(scales) == len(program.outputs) == 1 else float(np.ptp(a)) / 255 or 1.0
    return float(np.nan_to_num(np.abs(a.astype(np.float64) - b), nan=np.inf).max()) / step


def _seen(path: Path, program: Program, batch: Arrays) -> dict[str, torch.Tensor]:
    """The inputs, and all tensors of codes as the runtime has them. (Not those that it turns into
    uint8: those who ask for them see int8, and other kernels.)"""
    asked = load(path)
    present = {o.name for o in asked.graph.output}
    made = {o for n in asked.graph.node for o in n.output}
    codes = (s.output for s in program.instructions if s.output in program.params)
    names = [name for name in codes if name in made and name not in program.held_as_uint8]
    asked.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in present)
    with scratch_folder() as folder:
        file = folder / "all.onnx"
        save(asked, file)
        runtime = session(file)
        outputs = [o.name for o in runtime.get_outputs()]
        values = zip(outputs, run(runtime, list(batch)), strict=True)
        found = {name: torch.from_numpy(v) for name, v in values if name in names}
    return found | dict(zip(program.inputs, map(torch.from_numpy, batch), strict=True))


def _first_difference(
    program: Program, seen: Mapping[str, torch.Tensor], batch: Arrays
) -> str | None:
    mine = program.trace(*map(torch.from_numpy, batch))
    for step in program.instructions:
        label = program.labels.get(step.output, step.output)
        if step.output in seen and not torch.equal(seen[step.output], mine[label]):
            return label
    return None


def _wrong_kernels(program: Program, seen: Mapping[str, torch.Tensor]) -> list[str]:
    """Integer kernels that give other codes than the runtime did, for the same codes."""
    known = {**program.constants, **seen}
    found = []
    for step in program.instructions:
        kernel = step.kind in ("integer", "move", "quantize") and step.output in seen
        if not kernel or not all(name in known for name in step.inputs):
            continue
        with torch.inference_mode():
            mine = step.kernel(*(known[name] for name in step.inputs))
        if not torch.equal(mine, seen[step.output]):
            found.append(program.labels.get(step.output, step.output))
    return found
