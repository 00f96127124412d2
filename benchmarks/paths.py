"""Paths through the code, counted by a tracer: of data, and of one convolution.

    python benchmarks/paths.py [report] [report-of-module] [quantize] [convolution]

Each runs in a process of its own, without a change of the library: an older tree is counted with
PYTHONPATH=TREE, in which qtool/cli is a link to ../cli.

`report` and `quantize`: the functions that the data of a command passes through, the evaluation
data of `qtool report FILE --model FLOAT` and the calibration data of `qtool quantize MODEL`.
FLOAT is a file; of `report-of-module` it is a module in Python, which is captured with the data's
first samples, and whose layers are measured, too.

- The *stream* is what `load_data` returned, and a container, an iterator, a generator or a value
  of qtool that holds it.
- A *batch* is an array or tensor whose first values end in bits that no other values have, and what
  holds one.
- A function is *passed through* if it has data, as an argument or from the function around it, and
  hands it on: to another function, or to its caller. It *reads* data if it hands it to no other.

Comprehensions count as the function that they are in. Methods of the data (`self`), and what
a runtime or an observer does inside (the folders in `qtool/backends`, `qtool/observers`), are left
out. A package is a folder. `quantize` ends with the calibration, whose statistics and samples are
a value with a file of its own; its first batch has no mark, as the example that the network is
captured with, which is part of the graph from then on.

`convolution`: a network of one convolution is planned, converted, written and verified, and not
timed. Counted are the modules of qtool in which a function runs, and those with a function that
gets the convolution: its name, its node, or a value of qtool that holds one of them.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, GeneratorType
from typing import Any

import numpy as np
import qtool.cli
import torch

import qtool

ROOT = f"{Path(qtool.__file__).resolve().parent.parent}/"
OWN = (f"{ROOT}qtool/", f"{ROOT}cli/")  # and not an environment in the same folder
RUNTIMES, OBSERVERS = f"{ROOT}qtool/backends/", f"{ROOT}qtool/observers/"
MASK, MARK = np.uint32(0x3FF), np.uint32(0x2A5)  # last bits of a float32
VALUES = 4  # first ones of an array
DEPTH, ENTRIES = 4, 8  # nested containers, entries of each
BUILT_IN = ("builtins", "itertools")
BATCH = 32  # samples, as the command line has it
LAYER, LAYER_DEPTH = "the_convolution", 2
COMMANDS = ("report", "report-of-module", "quantize")
STEPS = ("plan", "convert", "write and verify")

NETWORK = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(8, 10)).eval()
"""

Function = tuple[str, str]
"""Path below the root, and qualified name."""


# ------------------------------------------------------------------------------------------- data


class Tracer:
    """A profile function; `passed` and `given` are the functions so far.

    Args:
        last: name of the function after which nothing counts; None: all do.
        batches: whether batches count, too; else streams alone do.
    """

    def __init__(self, last: str | None = None, batches: bool = True) -> None:
        self.given: set[Function] = set()
        self.passed: set[Function] = set()
        self.loaded: list[Any] = []
        self._last, self._batches, self._is_over = last, batches, False

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        function = _function(frame.f_code)
        if function is None or event not in ("call", "return") or self._is_over:
            return
        if event == "return":
            if function[1] == "load_data":
                self.loaded.append(result)
            if function in self.given and function not in self.passed and self.is_data(result):
                self.passed.add(function)
            self._is_over = function[1] == self._last
            return
        has, own = self.is_given(frame), _caller(frame)
        if has and own is not None:
            caller = _function(own.f_code)
            if caller is not None and self.is_given(own):
                self.passed.add(caller)
                self.given.add(caller)
        if has:
            self.given.add(function)

    def is_given(self, frame: FrameType) -> bool:
        """Return whether an argument, or a variable of the function around, is data."""
        code, values = frame.f_code, frame.f_locals
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & 4) + bool(code.co_flags & 8)  # *args, **kwargs
        names = (*code.co_varnames[:count], *code.co_freevars)
        return any(self.is_data(values.get(name)) for name in names if name != "self")

    def is_data(self, value: Any, depth: int = DEPTH) -> bool:
        if isinstance(value, np.ndarray | torch.Tensor):
            return self._batches and _is_marked(value)
        if any(value is each for each in self.loaded):
            return True
        depth -= not isinstance(value, Iterator)  # they are nested deeply
        return depth >= 0 and any(self.is_data(each, depth) for each in _held(value))


def _function(code: CodeType) -> Function | None:
    path = code.co_filename
    inside = path.startswith(RUNTIMES) and "/" in path.removeprefix(RUNTIMES)
    inside |= path.startswith(OBSERVERS)
    if not path.startswith(OWN) or inside or code.co_name[0] == "<":
        return None
    return path.removeprefix(ROOT), code.co_qualname


def _caller(frame: FrameType) -> FrameType | None:
    """Return the nearest frame above of a function of qtool, past libraries."""
    above = frame.f_back
    while above is not None:
        code = above.f_code
        if code.co_filename.startswith(ROOT) and code.co_name[0] != "<":
            return above
        above = above.f_back
    return None


def _is_marked(value: np.ndarray[Any, Any] | torch.Tensor) -> bool:
    if isinstance(value, torch.Tensor):
        if type(value) is not torch.Tensor or value.dtype is not torch.float32 or not value.dim():
            return False
        value = value.detach().reshape(-1)[:VALUES].numpy()
    if value.dtype != np.float32 or value.size < VALUES:
        return False
    first = np.ascontiguousarray(value.reshape(-1)[:VALUES]).view(np.uint32)
    return bool((first & MASK == MARK).all())


def _held(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from list(value.values())[:ENTRIES]
    elif isinstance(value, list | tuple):
        yield from value[:ENTRIES]
    elif isinstance(value, GeneratorType):
        if value.gi_frame is not None and value.gi_code.co_filename.startswith(ROOT):
            yield from list(value.gi_frame.f_locals.values())
    elif isinstance(value, type):
        return
    elif type(value).__module__.startswith("qtool"):
        yield from list(getattr(value, "__dict__", {}).values())
    elif isinstance(value, Iterator) and type(value).__module__ in BUILT_IN:
        yield from gc.get_referents(value)


def _samples(generator: np.random.Generator, first: int | None) -> np.ndarray[Any, Any]:
    """Return samples with a mark from the first one on; None: no marks."""
    x = generator.standard_normal((3 * BATCH, 3, 8, 8)).astype(np.float32)
    if first is not None:
        bits = x[first:].view(np.uint32)
        bits[:] = bits & ~MASK | MARK
    return x


def trace_data(command: str) -> dict[str, Tracer]:
    """Return the functions that the data of a command goes through; writes into this folder."""
    generator = np.random.default_rng(0)
    sys.path.insert(0, str(Path.cwd()))
    Path("network_of_path.py").write_text(NETWORK, encoding="utf-8")
    np.savez("calibration.npz", x=_samples(generator, BATCH if command == "quantize" else None))
    labels = generator.integers(0, 10, 3 * BATCH)
    np.savez("evaluation.npz", x=_samples(generator, 0), labels=labels)
    made = ["quantize", "network_of_path:net", "--data", "calibration.npz", "-o", "net.onnx"]
    if command == "quantize":
        return _traced("collect_statistics", made)
    qtool.cli.main(made, standalone_mode=False)
    model = "network_of_path:net"
    if command == "report":
        net = importlib.import_module("network_of_path").net()
        torch.onnx.export(net, (torch.zeros(2, 3, 8, 8),), model := "float.onnx")
    options = ["--data", "evaluation.npz", "--labels", "labels", "-o", "out", "--seconds", "0.1"]
    return _traced(None, ["report", "net.onnx", "--model", model, *options])


def _traced(last: str | None, arguments: list[str]) -> dict[str, Tracer]:
    """Run a command; return the functions of its stream alone, and of its batches, too."""
    tracers = {"stream": Tracer(last, batches=False), "stream or a batch": Tracer(last)}

    def profile(frame: FrameType, event: str, result: Any) -> None:
        for tracer in tracers.values():
            tracer(frame, event, result)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        qtool.cli.main(arguments, standalone_mode=False)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return tracers


def print_data(command: str) -> None:
    """Print the functions that the data of a command goes through, and how many there are."""
    for data, tracer in trace_data(command).items():
        for title, functions in (
            ("only read by", tracer.given - tracer.passed),
            ("passed through", tracer.passed),
            ("had by", tracer.given),
        ):
            folders = {str(Path(path).parent) for path, _ in functions}
            count = f"{len(functions)} functions in {len(folders)} packages"
            print(f"\n{command}, {data}: {title} {count}")
            if functions is not tracer.given:
                print("\n".join(f"  {path} {name}" for path, name in sorted(functions)))


# -------------------------------------------------------------------------------- one convolution


def walk() -> dict[str, tuple[set[str], set[str]]]:
    """Step -> modules in which a function ran, and those of them that got the convolution."""
    torch.manual_seed(0)
    model = torch.nn.Sequential()
    model.add_module(LAYER, torch.nn.Conv2d(3, 8, 3, padding=1))
    data = [torch.randn(8, 3, 8, 8) for _ in range(4)]
    root = f"{ROOT}qtool/"
    captured = qtool.capture_model(model.eval(), data[0])
    steps: dict[str, tuple[set[str], set[str]]] = {}

    def traced(step: str, call: Callable[..., Any], *arguments: Any) -> Any:
        entered: set[str] = set()
        of_layer: set[str] = set()

        def profile(frame: FrameType, event: str, _: Any) -> None:
            code = frame.f_code
            if event != "call" or not code.co_filename.startswith(root) or code.co_name[0] == "<":
                return
            module = code.co_filename.removeprefix(root)
            entered.add(module)
            if module not in of_layer and _has_layer(list(frame.f_locals.values()), LAYER_DEPTH):
                of_layer.add(module)

        sys.setprofile(profile)
        try:
            return call(*arguments)
        finally:
            sys.setprofile(None)
            steps[step] = entered, of_layer

    calibration = traced(STEPS[0], qtool.calibrate, captured, data)
    quantized = traced(STEPS[1], qtool.convert, captured, calibration)
    traced(STEPS[2], partial(quantized.export, timing=0), Path("model.onnx"))
    return steps


def _has_layer(value: Any, depth: int) -> bool:
    """Return whether a value is the convolution's name or node, or holds one."""
    if isinstance(value, str):
        return value == LAYER
    kind = type(value)
    if kind.__module__ == "torch.fx.node":
        return getattr(value, "name", "") == LAYER
    if isinstance(value, Mapping):
        held = [*list(value)[:ENTRIES], *list(value.values())[:ENTRIES]]
    elif isinstance(value, list | tuple):
        held = list(value[:ENTRIES])
    elif kind.__module__.startswith("qtool") and not isinstance(value, type):
        held = list(getattr(value, "__dict__", {}).values())
    else:
        return False
    return depth > 0 and any(_has_layer(each, depth - 1) for each in held)


def print_convolution() -> None:
    """Print the modules that get the convolution, and how many run."""
    steps = walk()
    ran, got = (set[str]().union(*(s[kind] for s in steps.values())) for kind in (0, 1))
    print(f"\nconvolution: {len(ran)} modules run, {len(got)} get the layer")
    for module in sorted(got):
        print(f"  {module}: {', '.join(step for step in STEPS if module in steps[step][1])}")


PATHS: Mapping[str, Callable[[], None]] = {
    **{command: partial(print_data, command) for command in COMMANDS},
    "convolution": print_convolution,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", choices=[*PATHS, []], help="all by default")
    chosen = parser.parse_args().paths or list(PATHS)
    if len(chosen) > 1:
        for path in chosen:
            subprocess.run([sys.executable, str(Path(__file__).absolute()), path], check=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        PATHS[chosen[0]]()


if __name__ == "__main__":
    main()
