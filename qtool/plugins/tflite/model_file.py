"""A TFLite file, read and run by LiteRT: facts, and a description in a few lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from qtool.backends.model_file import Conversion, Deployment, NodeKernel, TensorParameters
from qtool.core.errors import VerificationError
from qtool.core.on_use import OnUse
from qtool.core.option_names import TFLITE_SUFFIX
from qtool.core.output_evidence import Evidence, Operator, output_evidence, reads_images
from qtool.core.types import Array, Progress
from qtool.plugins.tflite import deployment, litert
from qtool.plugins.tflite.coverage import tflite_coverage
from qtool.plugins.tflite.file.codes import tensor_names
from qtool.plugins.tflite.litert_file import LitertFile, Port
from qtool.plugins.tflite.self_test import check_self_test, read_self_test
from qtool.verification import Coverage, Exactness, FileCheck, SelfCheck

_HERE = "qtool.plugins.tflite"
_VERIFY: Callable[..., FileCheck] = OnUse(f"{_HERE}.verification:verify")
_COMPARE: Callable[..., Exactness] = OnUse(f"{_HERE}.verification:compare_codes")


class TfliteModelFile:
    """See `ModelFile`.

    Raises:
        FileError: not a TFLite file.
    """

    suffix = TFLITE_SUFFIX

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = LitertFile(path)

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
        return self.target != deployment.TARGET

    @property
    def takes_one_sample(self) -> bool:
        return self.file.is_fixed

    def input_ranges(self) -> Mapping[str, tuple[float, float]]:
        return self.file.input_ranges()

    def known_sizes(self) -> Mapping[str, int]:
        return {}

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

    def constants(self) -> Iterator[Array]:
        return (t.data for t in self.file.model.tensors if t.data is not None)

    def self_test(self) -> str:
        try:
            test = read_self_test(self.file)
        except VerificationError as error:
            return str(error)
        return "no self-test in this file" if test is None else str(test)

    def notes(self) -> str:
        return f"{describe_file(self.file)}\n{self.self_test()}"

    def coverage(self) -> Coverage:
        return tflite_coverage(self.file)

    def output_evidence(self) -> dict[str, Evidence]:
        model = self.file.model
        names = tensor_names(model)
        operators = (
            Operator(
                each.name,
                " ".join(names[i] for i in (*each.outputs[:1], *each.inputs) if i >= 0),
                list(map(str, each.inputs)),
                list(map(str, each.outputs)),
            )
            for each in model.operators
        )
        known = output_evidence(
            operators,
            list(map(str, model.inputs)),
            list(map(str, model.outputs)),
            Evidence(reads_images=reads_images(p.shape for p in self.file.inputs)),
        )
        ports = zip(self.file.outputs, model.outputs, strict=True)
        return {port.name: known[str(i)] for port, i in ports}

    def node_names(self) -> list[str]:
        outputs = (o for op in self.file.model.operators for o in op.outputs)
        return [self.file.layers[i] for i in (*self.file.model.inputs, *outputs)]

    def node_times(self, *_: object, **__: object) -> dict[str, NodeKernel]:
        return {}  # LiteRT's Python package has no profile

    def deployment(self) -> Deployment | None:
        return deployment.measure_deployment(self.file)

    def check_self_test(self) -> SelfCheck:
        litert.require()
        return check_self_test(self.file)

    def verify(self, batches: Iterable[Sequence[Array]], progress: Progress) -> FileCheck:
        return _VERIFY(self, batches, progress)

    def compare_codes(self, batches: Iterable[Sequence[Array]]) -> Exactness:
        return _COMPARE(self.path, batches)


def describe_file(file: LitertFile) -> str:
    """Return origin, interface and memory of a file."""
    lines = [_origin(file), *_interface(file)]
    if deployment.is_deployable(file):
        lines.append(f"microcontroller: {deployment.describe(file)}")
    return "\n".join(lines)


def _origin(file: LitertFile) -> str:
    known = {k: file.metadata.get(k) for k in ("version", "target", "plan")}
    if not all(isinstance(v, str) for v in known.values()):
        return "written by another tool than qtool"
    return f"written by qtool {known['version']} for {known['target']}, plan {known['plan']}"


def _interface(file: LitertFile) -> list[str]:
    lines = [f"input {_port(p)}" for p in file.inputs]
    return [*lines, *(f"output {_port(p)}" for p in file.outputs)]


def _port(port: Port) -> str:
    sizes = [port.shape[i] for i in port.order]
    shape = ", ".join("batch" if s < 0 else str(s) for s in sizes)
    last = ", channels last" if port.order == (0, 2, 3, 1) else ""
    params = port.params
    text = f"'{port.name}': {port.dtype} [{shape}]{last}"
    if params is None:
        return text
    return f"{text}, scale {float(params.scale):.6g}, zero point {int(params.zero_point)}"
