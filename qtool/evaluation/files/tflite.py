"""A TFLite file, run by LiteRT."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from qtool.backends.tflite import microcontroller
from qtool.backends.tflite.dequantized import without_quantization
from qtool.backends.tflite.engine import tensor_names
from qtool.backends.tflite.file import save
from qtool.backends.tflite.tflite_file import TfliteFile
from qtool.backends.tflite.verification import compare_litert_codes, describe_file, tflite_coverage
from qtool.core.option_names import TFLITE_SUFFIX
from qtool.core.types import Array
from qtool.evaluation.files.deployment import Deployment, measure_deployment
from qtool.evaluation.files.model_file import Conversion, NodeKernel
from qtool.evaluation.files.parameters import TensorParameters
from qtool.verification import Coverage, Exactness


class TfliteModelFile:
    """See `ModelFile`.

    Raises:
        FileError: not a TFLite file.
    """

    suffix = TFLITE_SUFFIX

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = TfliteFile(path)

    @property
    def parts(self) -> list[Path]:
        return [self.path]

    @property
    def is_quantized(self) -> bool:
        return any(t.quantization is not None for t in self.file.model.tensors)

    @property
    def maker(self) -> str:
        version = self.file.metadata.get("version")
        return f"qtool {version}" if version else self.file.model.description or "unknown"

    @property
    def target(self) -> str | None:
        name = self.file.metadata.get("target")
        return name if isinstance(name, str) else None

    @property
    def runs_here(self) -> bool:
        return self.target != microcontroller.TARGET

    def conversion(self) -> Conversion | None:
        record = self.file.record
        return None if record is None else Conversion(record.info, record)

    def parameters(self) -> list[TensorParameters]:
        rows, names = [], tensor_names(self.file.model)
        for name, tensor in zip(names, self.file.model.tensors, strict=True):
            q = tensor.quantization
            if q is not None:
                scales, zeros = map(float, q.scale), map(int, q.zero_point)
                rows.append(TensorParameters(name, tensor.type, tuple(scales), tuple(zeros)))
        return rows

    def notes(self) -> str:
        return describe_file(self.file)

    def coverage(self) -> Coverage:
        return tflite_coverage(self.file)

    def compare_codes(self, batches: Iterable[Sequence[Array]]) -> Exactness:
        return compare_litert_codes(self.file, batches)

    def node_names(self) -> list[str]:
        outputs = (o for op in self.file.model.operators for o in op.outputs)
        return [self.file.layers[i] for i in (*self.file.model.inputs, *outputs)]

    def node_times(self, inputs: Sequence[Array], threads: int, runs: int) -> dict[str, NodeKernel]:
        """Time each operator alone: LiteRT's Python package has no profile."""
        kernels: dict[str, dict[str, None]] = {}
        spent: dict[str, float] = {}
        for op, microseconds in self.file.time_operators(inputs, threads, runs):
            name = self.file.layers[op.outputs[0]]
            kernels.setdefault(name, {})[op.name] = None
            spent[name] = spent.get(name, 0.0) + microseconds
        return {name: NodeKernel(" + ".join(kernels[name]), spent[name]) for name in kernels}

    def write_float(self, path: Path) -> Path:
        path = path.with_suffix(self.suffix)
        save(without_quantization(self.file.model), path)
        return path

    def deployment(self) -> Deployment | None:
        return measure_deployment(self.file)
