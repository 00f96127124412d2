"""The integer engine against ONNX Runtime: every code, with tolerance zero."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from qtool.integer import Program
from qtool.onnx_graph.storage import save
from qtool.runtimes.onnxruntime import run, session
from qtool.verification.artefact import Artefact

__all__ = ["Exactness", "compare_codes"]

Arrays = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Exactness:
    """What the comparison of the outputs gave.

    elements: output values compared. identical: how many are the same to the last bit. worst: the
    largest difference in codes (of an output in float: in 1/255 of its range). first: the first
    tensor of the graph whose codes differ. float_steps: nodes that both run in the runtime's
    own kernels, which may round differently when they are fused; exactness is promised where there
    are none.
    """

    samples: int
    elements: int
    identical: int
    worst: float
    first: str | None
    float_steps: int

    @property
    def share(self) -> float:
        return self.identical / self.elements if self.elements else 1.0

    @property
    def exact(self) -> bool:
        return self.identical == self.elements

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "share": self.share, "exact": self.exact}

    def __str__(self) -> str:
        text = (
            f"integer engine against ONNX Runtime on {self.samples} samples: "
            f"{self.identical} of {self.elements} outputs identical"
        )
        if not self.exact:
            text += f" ({100 * self.share:.3f} %), worst difference {self.worst:g} codes"
            text += f", first in {self.first}" if self.first else ""
        if self.float_steps:
            text += f"; {self.float_steps} nodes run in the runtime's own kernels"
        return text


def compare_codes(
    file: Artefact | str | Path, batches: Iterable[Arrays], profile: str | None = None
) -> Exactness:
    """Runs a QDQ file in the integer engine and in ONNX Runtime with default optimisation.

    Args:
        file: what the runtime runs; where that is not in QDQ form, an artefact that knows it.
        batches: inputs in the order of the file's inputs.
        profile: numerics profile; by default that of ONNX Runtime on x86-64.

    Raises:
        KernelError: the engine cannot represent a node.
        VerificationError: the runtime does not load the file.
    """
    artefact = Artefact.of(file)
    program = artefact.program(profile)
    samples = elements = identical = 0
    worst, first = 0.0, None
    for batch in batches:
        expected = artefact.run(batch)
        actual = _as_file(program, program(*map(torch.from_numpy, batch)))
        for a, b in zip(expected, actual, strict=True):
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            elements, identical = elements + a.size, identical + int(same.sum())
            worst = max(worst, _codes_apart(program, a, b))
        samples += len(batch[0]) if batch and batch[0].ndim else 1
        if first is None and identical < elements:
            first = _first_difference(artefact.model, program, batch)
    return Exactness(samples, elements, identical, worst, first, program.float_nodes)


def _as_file(program: Program, outputs: Sequence[torch.Tensor]) -> list[np.ndarray[Any, Any]]:
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


def _first_difference(model: onnx.ModelProto, program: Program, batch: Arrays) -> str | None:
    """The first tensor of codes that differs, found by asking the runtime for all of them."""
    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    present = {o.name for o in asked.graph.output}
    made = {o for n in model.graph.node for o in n.output}
    names = [s.output for s in program.steps if s.output in made and s.output in program.params]
    wanted = [n for n in names if n not in present]
    asked.graph.output.extend(onnx.ValueInfoProto(name=n) for n in wanted)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "all.onnx"
        save(asked, file)
        runtime = session(file)
        values = dict(
            zip((o.name for o in runtime.get_outputs()), run(runtime, list(batch)), strict=True)
        )
    mine = program.trace(*map(torch.from_numpy, batch))
    for name in names:
        label = program.labels.get(name, name)
        if name in values and not np.array_equal(values[name], mine[label].numpy()):
            return label
    return None
