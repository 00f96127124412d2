"""One ONNX file with all that verification computes from it, each thing once.

Parity, exactness and audit share the parsed file, a session, the optimised graph, the outputs for
one batch and the integer program.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch

from qtool.backends.onnx import storage
from qtool.backends.onnx.reading import OnnxModel
from qtool.backends.onnxruntime.cpu import machine_profile
from qtool.backends.onnxruntime.disable_input_rounding import (
    depends_on_threads,
    disable_input_rounding,
    has_input_rounding,
)
from qtool.backends.onnxruntime.integer_engine import Program, lower
from qtool.backends.onnxruntime.integer_engine.matmul_nbits import PRODUCTS
from qtool.backends.onnxruntime.session import optimised_graph, read_graph, run, session
from qtool.backends.runtime import Arrays
from qtool.core.atomic import scratch_folder
from qtool.core.process_lock import trim_memory


class ExportedFile:
    """An ONNX file on disk that does not change. Its properties are computed when first used.

    Args:
        path: the file.
        qdq: the same model in QDQ form, if the file is in another form.
    """

    def __init__(self, path: str | Path, qdq: onnx.ModelProto | None = None) -> None:
        self.path = Path(path)
        self._qdq = qdq
        self._programs: dict[str, Program] = {}
        self._session: ort.InferenceSession | None = None
        self._optimised: onnx.ModelProto | None = None
        self._last: tuple[Arrays, list[np.ndarray[Any, Any]]] | None = None

    @classmethod
    def of(cls, file: ExportedFile | str | Path) -> ExportedFile:
        """Return `file` itself if it is an `ExportedFile`, else one for this path."""
        return file if isinstance(file, ExportedFile) else cls(file)

    @cached_property
    def file(self) -> OnnxModel:
        """The parsed file.

        Raises:
            FileError: not an ONNX file, or its external data is missing.
        """
        return OnnxModel.of(self.path)

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

    def _open_session(self) -> ort.InferenceSession:
        threads = int(depends_on_threads(self.file.outline.graph))  # 0: the runtime decides
        if self._session is None and self._optimised is not None:
            self._session = session(self.path, threads=threads, once=True)
        if self._session is None:
            with scratch_folder() as folder:
                saved = folder / "optimised.onnx"
                self._session = session(self.path, save_to=saved, threads=threads, once=True)
                self._optimised = read_graph(saved)
        return self._session

    def load(self) -> None:
        """Load the file into the runtime.

        Raises:
            VerificationError: the runtime does not load it.
        """
        self._open_session()

    def close(self) -> None:
        """Free the session; computed results stay."""
        self._session = None

    def run(self, arrays: Arrays) -> list[np.ndarray[Any, Any]]:
        """Return outputs with the runtime's default optimisation; the last ones are cached."""
        if self._last is None or self._last[0] is not arrays:
            self._last = arrays, run(self._open_session(), list(arrays))
        return self._last[1]

    def run_as_written(self, arrays: Arrays) -> list[np.ndarray[Any, Any]]:
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
    ) -> tuple[list[np.ndarray[Any, Any]], dict[str, torch.Tensor]]:
        """Run the model in QDQ form without any optimisation.

        Returns:
            The outputs; and by name the outputs and those of the named tensors that are computed.
        """
        outputs = [str(o.name) for o in self.qdq.model.graph.outputs]
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

    @cached_property
    def executed_graph(self) -> onnx.ModelProto:
        """The graph that the runtime executes, without weights.

        Nodes without a name are named after their first output, in `file` too.
        """
        if not self.file.has_unnamed_nodes:
            if self._optimised is None:
                self._open_session()
            assert self._optimised is not None
            return self._optimised
        model = storage.load(self.path)
        for node in model.graph.node:
            node.name = node.name or next(iter(node.output), "")
        with scratch_folder() as folder:
            named = folder / "named.onnx"
            storage.save(model, named)
            return optimised_graph(named)
