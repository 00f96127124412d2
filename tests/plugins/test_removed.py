"""A checkout without the folder of a plugin works, and says what it lacks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qtool.core.plugins import plugins

ROOT = Path(__file__).parents[2]
WORKS = """
import sys
from pathlib import Path
import torch
from torch import nn
import qtool
from qtool.core.errors import InstallError
from qtool.planning.targets import TARGETS, target

assert Path(qtool.__file__).is_relative_to(sys.argv[1])
assert "onnxruntime" in TARGETS
net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3)).eval()
data = [torch.randn(8, 1, 8, 8)]
calibration = qtool.calibrate(net, data)
qtool.convert(net, calibration).export("a.onnx", timing=0)
assert qtool.verify("a.onnx").passed

def lacks(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except InstallError as error:
        assert "is a part of qtool that this installation lacks" in str(error), error
        return
    raise AssertionError(call)
"""
LACKS = {
    "checkpoints": """
import json
Path("q").mkdir()
Path("q/model.safetensors").write_bytes(bytes(9))
config = {"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}
Path("q/config.json").write_text(json.dumps(config))
lacks(qtool.load_model, "q")
""",
    "emulators": """
from qtool.backends.formats import open_model
lacks(getattr, qtool, "verify_on")
lacks(open_model, "a.onnx", runtime="node")
""",
    "scales": """
lacks(qtool.convert, net, calibration, scales="a.onnx")
""",
    "search": """
for name in ("tune", "TunedModel"):
    lacks(getattr, qtool, name)
""",
    "tflite": """
from qtool.backends.profiles import profile
for name in ("tflite", "tflite-micro"):
    lacks(target, name)
    lacks(qtool.quantize, net, data, target=name)
lacks(qtool.quantize_to_file, net, data, "b.tflite")
lacks(profile, "xnnpack")
Path("c.tflite").write_bytes(bytes(4) + b"TFL3")
lacks(qtool.verify, "c.tflite")
lacks(qtool.inspect, "c.tflite")
""",
}


def test_every_plugin_is_removed_once() -> None:
    assert set(LACKS) == set(plugins())


@pytest.mark.matrix
@pytest.mark.parametrize("name", LACKS)
def test_without_it_the_rest_works(name: str, tmp_path: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__", "cli")
    shutil.copytree(ROOT / "qtool", tmp_path / "qtool", ignore=ignore)
    shutil.copytree(ROOT / "cli", tmp_path / "qtool" / "cli")
    shutil.rmtree(tmp_path / "qtool" / "plugins" / name)
    child = subprocess.run(
        [sys.executable, "-c", WORKS + LACKS[name], str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not child.returncode, child.stderr
