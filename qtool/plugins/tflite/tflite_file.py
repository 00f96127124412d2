"""A TFLite file with its programs for the integer engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from qtool.backends.onnxruntime.integer_engine import Program
from qtool.backends.runtime import Arrays
from qtool.core.atomic import scratch_folder
from qtool.core.types import Array
from qtool.plugins.tflite import litert
from qtool.plugins.tflite.engine import lower
from qtool.plugins.tflite.file import Model, Operator, PortNames, to_bytes
from qtool.plugins.tflite.file.codes import tensor_names
from qtool.plugins.tflite.litert_file import LitertFile


class TfliteFile(LitertFile):
    """See `LitertFile`.

    Args:
        path: the file.

    Raises:
        FileError: not a TFLite file.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._programs: dict[str, Program] = {}

    def engine_codes(self, program: Program, batch: Arrays) -> list[Array]:
        """Return the outputs of the file's program as the file has them."""

        def run(arrays: Arrays) -> list[Array]:
            return [o.numpy() for o in program(*map(torch.from_numpy, arrays))]

        return self.split(self.arrays(batch), run)

    def trace(self, batch: Arrays) -> dict[str, torch.Tensor]:
        """Return the inputs and every computed tensor by its name, as the file has them."""
        arrays = self._in_one_run(batch)
        names = tensor_names(self.model)
        values = litert.trace(self.path, arrays)
        tensors = {names[i]: torch.from_numpy(v.copy()) for i, v in values.items()}
        ports = zip(self.model.inputs, arrays, strict=True)
        return {**tensors, **{names[i]: torch.from_numpy(a.copy()) for i, a in ports}}

    def run_observed(self, batch: Arrays, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return inputs and tensors by name from a run with XNNPACK, of samples in one run.

        The tensors become outputs of a copy of the file.
        """
        arrays = self._in_one_run(batch)
        every = tensor_names(self.model)
        outputs = tuple(every.index(n) for n in names)
        ports = self.model.names._replace(outputs=tuple(map(str, outputs)))
        copy = replace(self.model, outputs=outputs, names=ports)
        with scratch_folder() as folder:
            path = folder / "observed.tflite"
            path.write_bytes(to_bytes(copy))
            values = [*arrays, *litert.run_default(path, arrays)]
        indices = (*self.model.inputs, *outputs)
        return {every[i]: torch.from_numpy(v.copy()) for i, v in zip(indices, values, strict=True)}

    def program(self, profile: str | None = None) -> Program:
        """Return the integer program; its float operators run in LiteRT.

        Args:
            profile: numerics profile; by default that of LiteRT's reference kernels.
        """
        profile = profile or litert.reference_profile()
        if profile not in self._programs:
            run = self._run_operator if litert.version() is not None else None
            self._programs[profile] = lower(self.model, profile, run)
        return self._programs[profile]

    def default_program(self) -> Program:
        """Return the program in the arithmetic of the default delegate, XNNPACK.

        The operators that it leaves to LiteRT have the kernels of that.
        """
        if litert.DELEGATE_PROFILE not in self._programs:
            remaining = litert.left_by_delegate(self.path)
            others = dict.fromkeys(remaining, litert.OPTIMIZED_PROFILE)
            run = self._run_operator
            self._programs[litert.DELEGATE_PROFILE] = lower(
                self.model, litert.DELEGATE_PROFILE, run, others
            )
        return self._programs[litert.DELEGATE_PROFILE]

    def _run_operator(self, op: Operator, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run one operator as a model of its own."""
        operands = dict(zip((i for i in op.inputs if i >= 0), inputs, strict=True))
        part, computed = self._alone(op)
        with scratch_folder() as folder:
            path = folder / "operator.tflite"
            path.write_bytes(to_bytes(part))
            results = litert.run_reference(path, [operands[i].numpy() for i in computed])
        return [torch.from_numpy(r.copy()) for r in results]

    def _alone(self, op: Operator) -> tuple[Model, list[int]]:
        """Return one operator as a model, and the tensors that it takes."""
        used = dict.fromkeys(i for i in (*op.inputs, *op.outputs) if i >= 0)
        place = {index: at for at, index in enumerate(used)}
        tensors = tuple(self.model.tensors[i] for i in used)
        present = dict.fromkeys(i for i in op.inputs if i >= 0)
        computed = [i for i in present if self.model.tensors[i].data is None]
        inputs, outputs = tuple(place[i] for i in computed), tuple(place[i] for i in op.outputs)
        moved = replace(op, inputs=tuple(place.get(i, i) for i in op.inputs), outputs=outputs)
        ports = PortNames(tuple(map(str, inputs)), tuple(map(str, outputs)))
        return Model(tensors, (moved,), inputs, outputs, names=ports), computed

    def _in_one_run(self, batch: Arrays) -> list[Array]:
        """Return the samples that the file takes at a time."""
        arrays = self.arrays(batch)
        return [a[:1] for a in arrays] if self.is_fixed else arrays
