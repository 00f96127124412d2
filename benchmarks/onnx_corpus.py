"""Conversion of every operator case and small model of the onnx package.

    python benchmarks/onnx_corpus.py [--only PART_OF_A_NAME] [--show KIND] [--jobs 2] [--capture]

`--capture` traces each case with torch.export, too, which takes ten times as long; without it the
file is read, run, and compared.

A case is

    read      taken, with the outputs that ONNX Runtime has
    kept      the same, with operators that run in ONNX Runtime as they are
    refused   one sentence
    wrong     taken, with other outputs than ONNX Runtime has (0 wanted)
    traceback any other error (0 wanted)

Where the runtime differs from the ONNX specification, the runtime counts.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch.utils import _pytree as pytree

from qtool.backends.onnx.subgraph import tensor_of
from qtool.core.errors import QtoolError
from qtool.core.graph.float_tolerance import distance
from qtool.frontends.captured_model import capture_model
from qtool.frontends.onnx.onnx_file import load_onnx
from qtool.frontends.onnx.runtime_values import run_file

KINDS = ("read", "kept", "refused", "wrong", "traceback")
_NEAR = 1e-3  # of the range: the cases of onnx are given with this relative tolerance


@dataclass(frozen=True)
class Case:
    """One model with one set of inputs."""

    name: str
    model: bytes
    inputs: tuple[Any, ...]


@dataclass(frozen=True)
class Result:
    name: str
    kind: str
    why: str = ""


@cache
def _operator_cases() -> tuple[Any, ...]:
    """All of them: onnx collects once in a process, and would return those of its first operator to
    every later call."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return tuple(c for c in collect_testcases(None) if c.model is not None and c.data_sets)


def _is_of(case: Any, operator: str) -> bool:
    """Whether a case, or the one that it expands, is a node of this operator."""
    base = case.name.partition("_expanded")[0]
    return any(
        [n.op_type for n in c.model.graph.node] == [operator]
        for c in _operator_cases()
        if c.name == base
    )


def cases(only: str = "", operator: str | None = None) -> Iterable[Case]:
    """Those of the operators (or of one), then the models of the package."""
    for case in _operator_cases():
        if only in case.name and (operator is None or _is_of(case, operator)):
            inputs, _ = case.data_sets[0]
            data = case.model.SerializeToString()
            yield Case(case.name, data, tuple(map(_array, inputs)))
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for file in sorted(folder.glob("*/*/model.onnx")):
        name = f"{file.parent.parent.name}/{file.parent.name}"
        if only in name:
            sets = sorted(file.parent.glob("test_data_set_0"))
            yield Case(name, file.read_bytes(), _tensors(sets[0]) if sets else ())


def _array(value: Any) -> Any:
    """What a case gives for an input, as an array if it can be one."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic | int | float) else value


def _tensors(folder: Path) -> tuple[Any, ...]:
    found = []
    for file in sorted(folder.glob("input_*.pb"), key=lambda f: int(f.stem.split("_")[1])):
        tensor = onnx.TensorProto.FromString(file.read_bytes())
        found.append(numpy_helper.to_array(tensor))
    return tuple(found)


def sort(case: Case, capture: bool = False) -> Result:
    """Takes a case, and says what became of it."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = Path(folder) / "case.onnx"
        file.write_bytes(case.model)
        try:
            return _taken(case, file, capture)
        except QtoolError as error:
            kind = "refused" if len(str(error).splitlines()) == 1 else "traceback"
            return Result(case.name, kind, str(error).removeprefix(f"{file}: "))
        except Exception as error:  # noqa: BLE001  # what it is for
            return Result(case.name, "traceback", f"{type(error).__name__}: {error}"[:300])


def _taken(case: Case, file: Path, capture: bool) -> Result:
    model = load_onnx(file)
    names = list(model.inputs)
    if len(case.inputs) < len(names) or not all(isinstance(a, np.ndarray) for a in case.inputs):
        return Result(case.name, "refused", "the case gives no tensors for all inputs")
    arrays = dict(zip(names, case.inputs, strict=False))
    batch = {n: tensor_of(a) for n, a in arrays.items()}
    truth = list(run_file(model.model, arrays).values())
    if not all(isinstance(a, np.ndarray) and a.dtype != object for a in truth):
        return Result(case.name, "refused", "an output is no tensor of numbers")
    values = model.observe([batch[n] for n in names])
    outputs = [values[n] for n in model.outputs]
    if capture:
        captured = capture_model(model, batch, {}).graph
        args, kwargs = captured.example
        with torch.no_grad():
            outputs = pytree.tree_leaves(captured.module(*args, **kwargs))
    for name, output, right in zip(model.outputs, outputs, truth, strict=True):
        given = model.as_tensor(name, output)
        if distance(tensor_of(right), given) > _NEAR:
            return Result(case.name, "wrong")
    return Result(case.name, "kept" if model.fallback else "read")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--show", nargs="*", default=["wrong", "traceback"], choices=KINDS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--capture", action="store_true", help="trace each case, too")
    asked = parser.parse_args()
    found = list(cases(asked.only))
    with ProcessPoolExecutor(asked.jobs) as pool:
        results = list(pool.map(partial(sort, capture=asked.capture), found, chunksize=16))
    counts = Counter(r.kind for r in results)
    print("\n".join(f"{kind:10} {counts[kind]:5}" for kind in KINDS))
    for result in results:
        if result.kind in asked.show:
            print(f"{result.kind}: {result.name}: {result.why}")


if __name__ == "__main__":
    main()
