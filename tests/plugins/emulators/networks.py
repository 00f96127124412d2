"""Small files that saturate in 16 bits, and such that cannot; and fake processors."""

import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from torch import nn

import qtool
from qtool.plugins.emulators.cpus import Cpu, Family
from qtool.plugins.emulators.jobs import Launch

FAKE = Cpu("fake", Family.X86, "this machine under another name", "Fake")

_PRETEND = """
import json, sys
from pathlib import Path
import numpy as np
sys.path.insert(0, {scripts!r})
from run_onnx import run_job
run_job(sys.argv[1])
for job in json.loads(Path(sys.argv[1]).read_text())["runs"]:
    stem = Path(job["model"]).stem
    for batch in range(job["batches"]):
        outputs = Path(job["outputs"])
{body}
"""


class Branches(nn.Module):
    """Two convolutions, added; weights of one sign, so that sums of products are large."""

    def __init__(self, spread: float = 0.1) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)
        with torch.no_grad():
            for layer in (self.first, self.second):
                layer.weight.uniform_(1 - spread, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        return self.head((y + torch.relu(self.second(y))).mean((2, 3)))


def batches(count: int = 2, size: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(size, 3, 8, 8, generator=generator) for _ in range(count)]


def by_qtool(path: Path, target: str = "onnxruntime-x86-vnni") -> Path:
    torch.manual_seed(0)
    quantized = qtool.quantize(Branches().eval(), batches(), target=target, recover=[])
    quantized.export(path)
    return path


class _Reader(CalibrationDataReader):
    def __init__(self) -> None:
        self.left = iter(batches())

    def get_next(self) -> dict[str, np.ndarray] | None:
        batch = next(self.left, None)
        return None if batch is None else {"x": batch.numpy()}


def by_onnxruntime(
    path: Path,
    format_: QuantFormat = QuantFormat.QDQ,
    activations: QuantType = QuantType.QUInt8,
    external: bool = False,
) -> Path:
    """A file of ONNX Runtime's own tool, per channel."""
    torch.manual_seed(0)
    plain = path.with_name("float.onnx")
    qtool.capture_model(Branches().eval(), batches()[0]).export_float(plain)
    quantize_static(
        plain,
        path,
        _Reader(),
        quant_format=format_,
        per_channel=True,
        activation_type=activations,
        weight_type=QuantType.QInt8,
    )
    plain.unlink()
    if external:
        whole = onnx.load(path)
        path.unlink()
        place = f"{path.name}.data"
        onnx.save(whole, path, save_as_external_data=True, location=place, size_threshold=100)
        assert path.with_name(place).stat().st_size > 500
    return path


def float_file(path: Path) -> Path:
    """A file without codes."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 3]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str = "pass") -> Cpu:
    """A processor that is this machine, and afterwards does `body` for each batch of outputs."""
    from qtool.plugins.emulators import jobs

    scripts = str(Path(jobs.__file__).parent)
    script = folder / "pretend.py"
    indented = "\n".join(f"        {line}" for line in body.splitlines())
    script.write_text(_PRETEND.format(scripts=scripts, body=indented))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def fake(cpu: Cpu, place: Path) -> Launch:
        return Launch((sys.executable, str(script)), environment, "fake 1.0")

    monkeypatch.setattr(jobs, "launch", fake)
    monkeypatch.setattr(jobs, "_run_in_node", jobs._run_in_qemu)
    return FAKE
