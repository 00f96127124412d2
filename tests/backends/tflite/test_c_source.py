"""C source of a network, linked with TensorFlow Lite Micro, gives the codes of the engine.

Runs where TFLM_CHECKOUT names a checkout of tensorflow/tflite-micro in which `make microlite` has
built the library (docs/tutorial-microcontroller.md).
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from torch import nn

import qtool
from examples.digits.network import digits_net
from examples.keywords.network import keyword_net
from examples.keywords.sounds import sounds
from qtool.backends.tflite import tflm
from qtool.backends.tflite.c_source import resolver_method
from qtool.backends.tflite.microcontroller import OPERATORS
from qtool.backends.tflite.tflite_file import TfliteFile

ROOT = Path(__file__).parents[3]
CHECKOUT = Path(os.environ.get("TFLM_CHECKOUT", ""))
DOWNLOADS = CHECKOUT / "tensorflow/lite/micro/tools/make/downloads"
FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-DTF_LITE_STATIC_MEMORY")
SAMPLES = 4

needs_checkout = pytest.mark.skipif(
    "TFLM_CHECKOUT" not in os.environ, reason="TFLM_CHECKOUT names no checkout of tflite-micro"
)


def example(name: str) -> tuple[nn.Module, np.ndarray]:
    """A trained network, and samples of its data."""
    network = {"digits": digits_net, "keywords": keyword_net}[name]()
    network.load_state_dict(load_file(ROOT / "examples" / name / "weights.safetensors"))
    if name == "keywords":
        return network.eval(), sounds(64, seed=3)[0].numpy()
    return network.eval(), np.load(ROOT / "examples/digits/eval.npz")["x"][:64]


def build(folder: Path, stem: str) -> Path:
    """Compile as the tutorial says, with the sample from standard input; return the program."""
    main = folder / f"{stem}_main.cc"
    text, count = re.subn(r"\[i\] = 0;", "[i] = static_cast<int8_t>(getchar());", main.read_text())
    assert count == 1
    main.write_text(f"#include <stdio.h>\n{text}")
    folders = ("flatbuffers/include", "gemmlowp", "ruy")
    includes = (CHECKOUT, *(DOWNLOADS / folder for folder in folders))
    paths = [option for path in includes for option in ("-isystem", str(path))]
    (library,) = CHECKOUT.glob("gen/*/lib/libtensorflow-microlite.a")
    program = folder / stem
    sources = (str(folder / f"{stem}.cc"), str(main), str(library))
    subprocess.run(["g++", *FLAGS, *paths, *sources, "-o", str(program)], check=True)
    return program


@needs_checkout
@pytest.mark.parametrize("name", ["digits", "keywords"])
def test_the_program_computes_the_codes_of_the_engine(name: str, tmp_path: Path) -> None:
    network, data = example(name)
    model = qtool.quantize(network, [data], target="tflite-micro", accuracy="fast")
    model.export(tmp_path / "net.tflite", verify=False)
    model.export(tmp_path / "net.cc", format="c-array", verify=False)
    arena = int(re.findall(r"kArenaSize = (\d+)", (tmp_path / "net_main.cc").read_text())[0])
    program, file = build(tmp_path, "net"), TfliteFile(tmp_path / "net.tflite")
    batch = [data[:SAMPLES]]
    (codes,), (expected,) = file.arrays(batch), file.engine_codes(file.program(tflm.PROFILE), batch)
    for sample, row in zip(codes, expected, strict=True):
        done = subprocess.run([program], input=sample.tobytes(), capture_output=True, check=True)
        *results, used = (done.stdout + done.stderr).decode().split("\n")[: row.size + 1]
        assert list(map(int, results)) == row.ravel().tolist()
        assert int(used.removeprefix("arena used: ")) <= arena


@needs_checkout
def test_the_resolver_has_every_operator() -> None:
    header = CHECKOUT / "tensorflow/lite/micro/micro_mutable_op_resolver.h"
    adds = r"TfLiteStatus (Add\w+)\([^{]*\{\s*return AddBuiltin\(\s*BuiltinOperator_(\w+)"
    methods = {operator: method for method, operator in re.findall(adds, header.read_text())}
    assert {operator: resolver_method(operator) for operator in OPERATORS} == {
        operator: methods.get(operator) for operator in OPERATORS
    }
