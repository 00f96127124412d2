"""What a model file holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from qtool.backends.formats import open_file
from qtool.backends.model_file import TensorParameters
from qtool.core.number_texts import table
from qtool.core.records import JsonRecord
from qtool.core.summary import Printed, Summary
from qtool.verification import Coverage


@dataclass(frozen=True)
class ModelContents(Printed, JsonRecord):
    """Contents of a model file.

    Attributes:
        file: its path.
        coverage: the kernel that the runtime has for every operator.
        parameters: parameters of the quantized tensors.
        self_test: the self-test in an ONNX file, in a sentence; origin, interface and memory of a
            TFLite file.
    """

    file: str
    coverage: Coverage
    parameters: tuple[TensorParameters, ...]
    self_test: str

    def summary(self, title: str | None = None) -> Summary:
        """Return what the file is in a few lines."""
        types = Counter(p.dtype for p in self.parameters)
        each = ", ".join(f"{count} {dtype}" for dtype, count in types.items())
        count = f"{len(self.parameters)} quantized" + (f": {each}" if each else "")
        rows = [self.coverage.row(), ("tensors", count)]
        for line in self.self_test.splitlines():
            label = "self-test" if "self-test" in line else "file"
            rows.append((label, line.removeprefix("self-test: ")))
        return Summary(title or self.file, f"in {self.coverage.runtime}", tuple(rows))

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.summary()}"

    def table(self) -> str:
        """Return tables of the operators and of the quantized tensors."""
        operators = table(
            ("name", "operator", "runs as", "MACs", "why float"),
            [(r.name, r.op, r.kernel, f"{r.macs:,}", r.reason) for r in self.coverage.rows],
            "operators",
            "lllrl",
        )
        params = table(
            ("tensor", "type", "scale", "zero point"),
            [p.row() for p in self.parameters],
            "parameters",
            "llrr",
        )
        return f"{operators}\n\n{params}"


def model_contents(file: str | Path) -> ModelContents:
    """Return the contents of a model file of any tool.

    Raises:
        FileError: not a model file.
        VerificationError: the runtime does not load it.
    """
    model = open_file(file)
    coverage = model.coverage()  # first: refuses files that the runtime does not load
    return ModelContents(str(file), coverage, tuple(model.parameters()), model.notes())
