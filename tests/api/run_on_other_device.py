"""Quantizes two networks on the CPU and on another device, and prints what differs as JSON."""

import copy
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import qtool
from benchmarks.cuda import DRY, codes, decoder, texts
from tests.other_device import NAME

STEPS = ["gptq", "bias-correction", "cross-layer-equalization", "smooth-quant"]
SETTINGS: dict[str, dict[str, Any]] = {
    "fast": {"accuracy": "fast"},
    "steps": {"recover": STEPS},
    "dynamic": {"mode": "dynamic"},
    "int4": {"mode": "weight-only-int4"},
}


class Net(nn.Module):
    """A convolution of each kind, behind BatchNorms, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.depthwise, self.norm2 = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16)
        self.point, self.up = nn.Conv2d(16, 32, 1), nn.ConvTranspose2d(32, 8, 2, 2)
        self.head = nn.Linear(8, 10)
        for norm in (self.norm, self.norm2):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.first(x)))
        y = F.relu(self.norm2(self.depthwise(y))) + y
        y = F.silu(self.up(F.relu6(self.point(y))))
        logits: Tensor = self.head(y.mean((2, 3)))
        return logits


def compare(make: Any, data: list[Tensor], folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, settings in SETTINGS.items():
        here, there = (qtool.quantize(make(d), data, **settings) for d in ("cpu", NAME))
        own, other = codes(here), codes(there)
        found[name] = {
            "same plan": here.plan.digest == there.plan.digest,
            "steps": [[c.step for c in m.changes] for m in (here, there)],
            "notes": [m.notes for m in (here, there)],
            "codes": sum(int((own[n] != other[n]).sum()) for n in own)
            / sum(t.numel() for t in own.values()),
        }
        if name == "fast":
            files = [folder / side for side in ("here.onnx", "there.onnx")]
            for model, file in zip((here, there), files, strict=True):
                model.export(file)
            found["same file"] = files[0].read_bytes() == files[1].read_bytes()
    return found


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, images = Net().eval(), [torch.randn(16, 3, 12, 12) for _ in range(4)]
    there = copy.deepcopy(net).to(NAME)
    captured = qtool.capture_model(there, images[0])
    on_device = qtool.calibrate(there, [x.to(NAME) for x in images])
    program = torch.export.export(there, (images[0].to(NAME),))
    try:
        mixed = str(images[0].to(NAME) + images[0])
    except RuntimeError as error:
        mixed = str(error)
    with tempfile.TemporaryDirectory() as folder:
        results = {
            "mixed": mixed,
            "device": [str(captured.graph.device), str(there.first.weight.device)],
            "graph": str(next(captured.graph.module.parameters()).device),
            "program": len(qtool.quantize(program, images, recover=[]).notes),
            "data": on_device.to_bytes() == qtool.calibrate(there, images).to_bytes(),
            "cnn": compare(lambda d: copy.deepcopy(net).to(d), images, Path(folder)),
            "decoder": compare(lambda d: decoder(DRY, d), texts(DRY, 32), Path(folder)),
        }
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main()
