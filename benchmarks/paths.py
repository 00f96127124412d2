"""The functions that the data of `qtool report FILE` passes through, counted by a tracer.

    python benchmarks/report_path.py

A small network is quantized, then the command reports on its file. The values of the evaluation
data end in bits that no other values have, so that an array or tensor is data if its first values
have that mark, and so are a container, a dataclass of qtool or a generator that holds such a value,
and what `load_data` returned.

- A function is *passed through* if it has data, as an argument or from the function around it, and
  hands it on: to another function, or to its caller.
- A function *reads* data if it has it and hands it to no other.

Comprehensions count as the function that they are in. Methods of the data (`self`) and what
a runtime does inside (the folders in `qtool/backends`) are left out. A package is a folder.
The trace needs no change of the library, so that an older tree is counted with PYTHONPATH=TREE,
in which qtool/cli is a link to ../cli.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType, GeneratorType
from typing import Any

import numpy as np
import qtool.cli
import torch

import qtool

ROOT = f"{Path(qtool.__file__).resolve().parent.parent}/"
RUNTIMES = f"{ROOT}qtool/backends/"
MASK, MARK = np.uint32(0x3FF), np.uint32(0x2A5)  # last bits of a float32
DEPTH, SEEN = 4, 8  # nested containers, entries of each

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


class Tracer:
    """A profile function; `passed` and `given` are the functions so far."""

    def __init__(self) -> None:
        self.given: set[Function] = set()
        self.passed: set[Function] = set()
        self.loaded: list[Any] = []

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        function = _function(frame.f_code)
        if function is None or event not in ("call", "return"):
            return
        if event == "return":
            if function[1] == "load_data":
                self.loaded.append(result)
            if function in self.given and function not in self.passed and self.is_data(result):
                self.passed.add(function)
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
            return _is_marked(value)
        if any(value is each for each in self.loaded):
            return True
        return depth > 0 and any(self.is_data(each, depth - 1) for each in _held(value))


def _function(code: CodeType) -> Function | None:
    path = code.co_filename
    inside = path.startswith(RUNTIMES) and "/" in path.removeprefix(RUNTIMES)
    if not path.startswith(ROOT) or inside or code.co_name[0] == "<":
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
        value = value.detach().reshape(-1)[:DEPTH].numpy()
    if value.dtype != np.float32 or not value.size:
        return False
    first = np.ascontiguousarray(value.reshape(-1)[:DEPTH]).view(np.uint32)
    return bool((first & MASK == MARK).all())


def _held(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from list(value.values())[:SEEN]
    elif isinstance(value, list | tuple):
        yield from value[:SEEN]
    elif isinstance(value, GeneratorType):
        if value.gi_frame is not None and value.gi_code.co_filename.startswith(ROOT):
            yield from list(value.gi_frame.f_locals.values())
    elif type(value).__module__.startswith("qtool") and not isinstance(value, type):
        yield from list(getattr(value, "__dict__", {}).values())


def _samples(generator: np.random.Generator, is_marked: bool) -> np.ndarray[Any, Any]:
    x = generator.standard_normal((96, 3, 8, 8)).astype(np.float32)
    if is_marked:
        bits = x.view(np.uint32)
        bits[:] = bits & ~MASK | MARK
    return x


def trace(folder: Path) -> Tracer:
    """Return the functions of a report, which is written to a folder."""
    generator, tracer = np.random.default_rng(0), Tracer()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    Path("report_path_network.py").write_text(NETWORK, encoding="utf-8")
    np.savez("calibration.npz", x=_samples(generator, False))
    labels = generator.integers(0, 10, 96)
    np.savez("evaluation.npz", x=_samples(generator, True), labels=labels)
    made = ["report_path_network:net", "--data", "calibration.npz", "-o", "net.onnx"]
    qtool.cli.main(["quantize", *made], standalone_mode=False)
    options = ["--data", "evaluation.npz", "--labels", "labels", "-o", "out", "--seconds", "0.1"]
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    try:
        qtool.cli.main(["report", "net.onnx", *options], standalone_mode=False)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return tracer


def main() -> None:
    """Print the functions, and how many there are."""
    with tempfile.TemporaryDirectory() as folder:
        tracer = trace(Path(folder))
    for title, functions in (
        ("only read by", tracer.given - tracer.passed),
        ("passed through", tracer.passed),
        ("had by", tracer.given),
    ):
        folders = {str(Path(path).parent) for path, _ in functions}
        print(f"\n{title} {len(functions)} functions in {len(folders)} packages")
        if functions is not tracer.given:
            print("\n".join(f"  {path} {name}" for path, name in sorted(functions)))


if __name__ == "__main__":
    main()
