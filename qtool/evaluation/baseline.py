"""The float files of a model, which time and outputs of a quantized file are compared with."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from qtool.backends.formats import open_file, open_model, write_float
from qtool.core.errors import ExportError, VerificationError
from qtool.core.option_names import MODEL_SUFFIXES
from qtool.core.paths import is_file
from qtool.evaluation.latency.interleaved_timing import FLOAT
from qtool.evaluation.subject import Subject
from qtool.frontends.captured_model import Captured

ONNX = MODEL_SUFFIXES[0]


class Baseline:
    """The float files of a captured model, each written when it is first needed."""

    def __init__(self, captured: Captured, folder: Path, target: str, suffix: str = ONNX) -> None:
        """
        Args:
            captured: the float model.
            folder: where to write.
            target: target of the quantized file.
            suffix: file name extension of the quantized file.
        """
        self._captured, self._folder, self._target, self._suffix = captured, folder, target, suffix

    @cached_property
    def reference(self) -> Path:
        """The captured graph as ONNX, with the user's names: what outputs are compared with."""
        return write_float(self._captured.graph, self._folder / f"float{ONNX}", self._target)

    @cached_property
    def timed(self) -> Path:
        """What speed is relative to: the file that the user has instead of the quantized one.

        That is the ONNX file that the model was read from, or the float model in the format of the
        quantized file; as ONNX where the format lacks an operator.
        """
        if self._suffix == ONNX:
            own = self._captured.file
            return own if own is not None and self._takes_same(own) else self.reference
        try:
            path = self._folder / f"float{self._suffix}"
            return write_float(self._captured.graph, path, self._target)
        except ExportError:
            return self.reference

    @property
    def profiled(self) -> Path:
        """What times of nodes are relative to: has the names of the user's model."""
        same_format = self._suffix != ONNX and self.timed.suffix == self._suffix
        return self.timed if same_format else self.reference

    @property
    def name(self) -> str:
        """What a speed is relative to, in words: "float", "net.onnx", "float .tflite"."""
        if self.timed == self._captured.file:
            return self.timed.name
        if self._suffix == ONNX:
            return "float"
        return f"float {self.timed.suffix}"

    @property
    def origin(self) -> str:
        """Where the reference and the timed file come from, in words."""
        words = "the float model, exported by qtool"
        return words if self.timed == self.reference else f"{words}; timed: {self.name}"

    @property
    def size_bytes(self) -> int:
        """Size of the ONNX file that the model was read from, with its weights; else of the timed
        file, so that size and speed are relative to one file."""
        own = self._captured.file_bytes
        return own or sum(part.stat().st_size for part in open_file(self.timed).parts)

    @property
    def subject(self) -> Subject:
        """The float model of a report or an evaluation."""
        files = (self.size_bytes, self.timed, self.profiled)
        return Subject(FLOAT, self.reference, self.origin, self.name, *files)

    def _takes_same(self, file: Path) -> bool:
        """Return whether a file runs here and takes the inputs of the graph, whose sizes may be
        dynamic in more dimensions; floating point inputs may have another type than float32."""
        try:
            sources = open_model(file).inputs if is_file(file) else ()
        except VerificationError:  # in bfloat16, which ONNX Runtime has no kernels for
            return False
        own = {i.name: i.shape for i in sources if i.type != "tensor(bfloat16)"}
        inputs = self._captured.graph.inputs
        return list(own) == [i.name for i in inputs] and all(
            len(own[i.name]) == len(i.shape)
            and all(
                not isinstance(size, int) or size == wanted
                for size, wanted in zip(own[i.name], i.shape, strict=True)
            )
            for i in inputs
        )
