"""A script as a user writes it: `mypy --strict` accepts it, and it runs.

python typed_script.py FOLDER
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import qtool


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.body(x).relu()
        scores: torch.Tensor = self.head(hidden)
        return scores


def batches(count: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.randn(16, 8, generator=generator)


def quantize(model: nn.Module, mode: qtool.Mode, accuracy: qtool.Accuracy) -> qtool.QuantizedModel:
    recipe = qtool.Recipe(rules=(qtool.Rule(select="head", observer="minmax"),))
    return qtool.quantize(
        model, list(batches(4)), mode=mode, accuracy=accuracy, recipe=recipe, ignore=["body"]
    )


def ship(folder: Path, model: nn.Module, labels: list[int]) -> bool:
    """What comes next in a longer script: type checkers read it, nothing runs it here."""
    data, file = qtool.load_data(folder / "eval.npz", 32, samples=64), folder / "int8.onnx"
    goals, search = qtool.TuneGoals(max_drop=0.5), qtool.SearchOptions(evaluations=3)
    tuned: qtool.TunedModel = qtool.tune(
        model, data, data, labels, goals=goals, options=search, target="openvino"
    )
    tuned.export(file)
    page: qtool.Report = qtool.report(
        file, data, folder / "page", qtool.ReportOptions(labels=labels), model=model
    )
    decided: qtool.GateResult = qtool.gate(file, folder / "float.onnx", data, labels, max_drop=0.5)
    verdict = page.models[1].verdict
    return verdict is not None and not verdict.missed and decided.outcome == "accepted"


def main(folder: Path) -> None:
    torch.manual_seed(0)
    model = Net().eval()
    quantized = quantize(model, "static", "fast")
    plan: qtool.QuantPlan = quantized.plan
    print(plan.decision("head"))
    checks: qtool.Verification = quantized.export(folder / "int8.onnx", format="qdq")
    print(checks.passed, checks.coverage.share, checks.fidelity)

    options = qtool.QuantizeOptions(mode="dynamic", accuracy="fast", ignore=("head",))
    untimed = qtool.FileOptions(timing=0)
    data = list(batches(4))
    file = qtool.quantize_to_file(model, data, folder / "b.onnx", options, untimed, memory=1 << 34)
    sizes: list[int] = [file.size_bytes, file.float_size_bytes]
    print(file.path.name, sizes, file.passed)

    check: qtool.FileCheck = qtool.verify(folder / "int8.onnx")
    evaluation: qtool.Evaluation = qtool.evaluate(folder / "int8.onnx", model, list(batches(2)))
    metrics: tuple[qtool.Metric, ...] = evaluation.accuracy.metrics
    print(check.passed, evaluation.accuracy.models[1].sqnr_db, metrics)
    try:
        qtool.quantize(model, [], accuracy="best")
    except qtool.DataError as error:
        print(error.problem, error.remedies)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
