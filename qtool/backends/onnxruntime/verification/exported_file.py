"""One ONNX file with all that verification computes from it, each thing once.

Parity, exactness and audit share the parsed file, a session, the optimised graph, the outputs for
one batch and the integer program.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import onnx
import torch

from qtool.backends.onnx import storage
from qtool.backends.onnx.reading import OnnxModel
from qtool.backends.onnxruntime.cpu import machine_profile
from qtool.backends.onnxruntime.disable_input_rounding import (
    disable_input_rounding,
    has_input_rounding,
)
from qtool.backends.onnxruntime.executed_file import ExecutedFile
from qtool.backends.onnxruntime.integer_engine import Program, lower
from qtool.backends.onnxruntime.integer_engine.matmul_nbits import PRODUCTS
from qtool.backends.onnxruntime.session import ONNXRUNTIME, run, session
from qtool.backends.runtime import Arrays, Runtime
from qtool.core.atomic import scratch_folder
from qtool.core.memory import trim_memory
from qtool.core.types import Array


class ExportedFile(ExecutedFile):
    """See `ExecutedFile`.

    Args:
        path: the file.
        qdq: the same model in QDQ form, if the file is in another form.
    """

    def __init__(self, path: str | Path, qdq: onnx.ModelProto | None = None) -> None:
        super().__init__(path)
        self._qdq = qdq
        self._programs: dict[str, Program] = {}

    @classmethod
    def of(cls, file: ExecutedFile | str | Path) -> ExportedFile:
        """Return `file` itself if it is an `ExportedFile`, else one for this path."""
        if isinstance(file, ExportedFile):
            return file
        return cls(file.path if isinstance(file, ExecutedFile) else file)

    @cached_property
    def qdq(self) -> OnnxModel:
        """The model in QDQ form."""
        return self.file if self._qdq is None else OnnxModel.of(self._qdq)

    def program(self, profile: str | None = None) -> Program:
        """Return the integer program of the model.

        Args:
            profile: numerics profile; by default that of ONNX Runtime on this processor.
        """
        profile = profile or machine_profile()
        if profile not in self._programs:
            self._programs[profile] = lower(self.qdq, profile)
        return self._programs[profile]

    def program_as_written(self, program: Program) -> Program:
        """Return the program whose kernels compute in float what the file writes in float."""
        products = {str(n.name) for n in self.qdq.nodes if n.op_type in PRODUCTS}
        fused = any(
            s.kind == "integer" and s.name in products and s.inputs[0] not in program.params
            for s in program.instructions
        )
        if not fused and not self._has_input_rounding:
            return program
        source = self._without_input_rounding() if self._has_input_rounding else self.qdq
        return lower(source, program.profile, as_written=True)

    def run_in(self, runtime: Runtime | None, arrays: Arrays) -> list[Array]:
        """Return outputs of a runtime; None: of ONNX Runtime without optimisation."""
        if runtime is None:
            return self.run_as_written(arrays)
        return self.run(arrays) if runtime is ONNXRUNTIME else runtime.run(self.path, arrays)

    def run_as_written(self, arrays: Arrays) -> list[Array]:
        """Return outputs without any optimisation, node by node."""
        if not self._has_input_rounding:
            return run(session(self.path, optimise=False, once=True), list(arrays))
        with scratch_folder() as folder:
            self._write_with_outputs((), folder / "plain.onnx")
            return run(session(folder / "plain.onnx", optimise=False, once=True), list(arrays))

    @cached_property
    def _has_input_rounding(self) -> bool:
        """Whether kernels may round their inputs, which is no part of the file as written."""
        return has_input_rounding(self.file.outline.graph)

    def tensors_as_written(
        self, arrays: Arrays, names: Iterable[str]
    ) -> tuple[list[Array], dict[str, torch.Tensor]]:
        """Run the model in QDQ form without any optimisation.

        Returns:
            The outputs; and by name the outputs and those of the named tensors that are computed.
        """
        outputs = [str(o.name) for o in self.qdq.outputs]
        computed = {o.name for n in self.qdq.nodes if n.op_type != "Constant" for o in n.outputs}
        extra = [n for n in dict.fromkeys(names) if n in computed and n not in outputs]
        with scratch_folder() as folder:
            self._write_with_outputs(extra, folder / "seen.onnx")
            values = run(session(folder / "seen.onnx", optimise=False, once=True), list(arrays))
        trim_memory()  # an unoptimised session holds all weights in float
        tensors = map(torch.from_numpy, values)
        return values[: len(outputs)], dict(zip((*outputs, *extra), tensors, strict=True))

    def _write_with_outputs(self, names: Iterable[str], path: Path) -> None:
        """Write the model in QDQ form with extra outputs and without input rounding.

        A single file is copied and appended to: protobuf merges concatenated messages.
        """
        added = onnx.GraphProto(output=[onnx.ValueInfoProto(name=n) for n in names])
        if self._qdq is None and self.file.is_single_file and not self._has_input_rounding:
            shutil.copyfile(self.path, path)
            with path.open("ab") as file:
                file.write(onnx.ModelProto(graph=added).SerializeToString())
            return
        model = self._without_input_rounding()
        model.graph.MergeFrom(added)
        storage.save(model, path)

    def _without_input_rounding(self) -> onnx.ModelProto:
        """Return a copy of the model in QDQ form whose kernels do not round their inputs."""
        model = onnx.ModelProto()
        model.CopyFrom(storage.load(self.path) if self._qdq is None else self._qdq)
        disable_input_rounding(model.graph)
        return model
