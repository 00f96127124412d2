"""One ONNX file and all that is found out about it, each thing once.

Parity, exactness and audit ask for the same: the file read, a session, the graph that the runtime
made of it, its outputs for one batch, the integer program.
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
from qtool.backends.onnxruntime.integer_engine import Program, lower
from qtool.backends.onnxruntime.integer_engine.matmul_nbits import PRODUCTS
from qtool.backends.onnxruntime.session import optimised_graph, read_graph, run, session
from qtool.backends.runtime import Arrays
from qtool.core.atomic import scratch_folder
from qtool.core.graph.process_lock import trim_memory
from qtool.verification.disable_input_rounding import (
    depends_on_threads,
    disable_input_rounding,
    has_input_rounding,
)


class ExportedFile:
    """An ONNX file on the disk, that stays as it is.

    Args:
        path: the file; what is asked of it is found out when it is asked first.
        qdq: the same model in QDQ form, where the file is in another one.
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
        return file if isinstance(file, ExportedFile) else cls(file)

    @cached_property
    def file(self) -> OnnxModel:
        """The file, read.

        Raises:
            FileError: it is no ONNX file, or the data that it names is not there.
        """
        return OnnxModel.of(self.path)

    @cached_property
    def qdq(self) -> OnnxModel:
        """The model in QDQ form."""
        return self.file if self._qdq is None else OnnxModel.of(self._qdq)

    def program(self, profile: str | None = None) -> Program:
        """The integer program of the model, by default in the arithmetic of ONNX Runtime on
        this processor."""
        chosen = profile or machine_profile()
        if chosen not in self._programs:
            self._programs[chosen] = lower(self.qdq, chosen)
        return self._programs[chosen]

    def program_as_written(self, program: Program) -> Program:
        """The program whose kernels compute in float what is written in floats."""
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
        threads = int(depends_on_threads(self.file.outline.graph))  # 0: as the runtime likes
        if self._session is None and self._optimised is not None:
            self._session = session(self.path, threads=threads, once=True)
        if self._session is None:
            with scratch_folder() as folder:
                saved = folder / "optimised.onnx"
                self._session = session(self.path, save_to=saved, threads=threads, once=True)
                self._optimised = read_graph(saved)
        return self._session

    def load(self) -> None:
        """Into the runtime.

        Raises:
            VerificationError: it does not take the file.
        """
        self._open_session()

    def close(self) -> None:
        """Lets go of the runtime and of what it holds; what it found out stays."""
        self._session = None

    def run(self, arrays: Arrays) -> list[np.ndarray[Any, Any]]:
        """Outputs with the runtime's default optimisation; those of the last batch are kept."""
        if self._last is None or self._last[0] is not arrays:
            self._last = arrays, run(self._open_session(), list(arrays))
        return self._last[1]

    def run_as_written(self, arrays: Arrays) -> list[np.ndarray[Any, Any]]:
        """Outputs without any optimisation, node by node."""
        if not self._has_input_rounding:
            return run(session(self.path, optimise=False, once=True), list(arrays))
        with scratch_folder() as folder:
            self._write_with_outputs((), folder / "plain.onnx")
            return run(session(folder / "plain.onnx", optimise=False, once=True), list(arrays))

    @cached_property
    def _has_input_rounding(self) -> bool:
        """Whether kernels are allowed to round what they read: not a matter of what is written."""
        return has_input_rounding(self.file.outline.graph)

    def tensors_as_written(
        self, arrays: Arrays, asked: Iterable[str]
    ) -> tuple[list[np.ndarray[Any, Any]], dict[str, torch.Tensor]]:
        """Outputs of the model in QDQ form without any optimisation; and those of the tensors asked
        for that it computes."""
        stated = [str(o.name) for o in self.qdq.model.graph.outputs]
        made = {o.name for n in self.qdq.nodes if n.op_type != "Constant" for o in n.outputs}
        more = [n for n in dict.fromkeys(asked) if n in made and n not in stated]
        with scratch_folder() as folder:
            self._write_with_outputs(more, folder / "seen.onnx")
            found = run(session(folder / "seen.onnx", optimise=False, once=True), list(arrays))
        trim_memory()  # a session as written holds all weights in float
        tensors = map(torch.from_numpy, found)
        return found[: len(stated)], dict(zip((*stated, *more), tensors, strict=True))

    def _write_with_outputs(self, more: Iterable[str], path: Path) -> None:
        """Writes the model in QDQ form with more outputs, and with kernels that compute in float
        what is written in floats. What is one file is copied and added to, without being read:
        protobuf merges messages that stand behind each other."""
        added = onnx.GraphProto(output=[onnx.ValueInfoProto(name=n) for n in more])
        if self._qdq is None and self.file.whole and not self._has_input_rounding:
            shutil.copyfile(self.path, path)
            with path.open("ab") as file:
                file.write(onnx.ModelProto(graph=added).SerializeToString())
            return
        model = self._without_input_rounding()
        model.graph.MergeFrom(added)
        storage.save(model, path)

    def _without_input_rounding(self) -> onnx.ModelProto:
        """A copy of the model in QDQ form, with kernels that do not round what they read."""
        model = onnx.ModelProto()
        model.CopyFrom(storage.load(self.path) if self._qdq is None else self._qdq)
        disable_input_rounding(model.graph)
        return model

    @cached_property
    def executed_graph(self) -> onnx.ModelProto:
        """The graph that the runtime executes, without its weights. Nodes of the file have names in
        it: those without one are called after their first output, in `file` too."""
        if not self.file.unnamed:
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
