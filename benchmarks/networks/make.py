"""The files of one network: the float one, and those of the tools, each by a fresh process."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.networks.factories import SAMPLES
from benchmarks.networks.subject import Arrays, Places, Subject
from benchmarks.networks.tools import TOOLS, Tool

__all__ = ["INTERNAL", "REMEDY", "Workplace", "make_file", "write_float"]

HERE = Path(__file__).parents[1]
LIMIT = 3600  # seconds of a conversion
IN_BETWEEN = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:])
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
with open("usage.json", "w") as file:
    json.dump({"cpu": usage.ru_utime + usage.ru_stime, "peak": usage.ru_maxrss}, file)
sys.exit(done.returncode)
"""
"""Runs a command from a small process: the peak of a child counts that of its parent, too, which
holds the samples here."""
FLOAT_TFLITE = """
import numpy as np, qtool, sys, torch
from benchmarks.networks import factories
factory, plain = sys.argv[1:]
model = getattr(factories, factory)() if factory else qtool.load_onnx(plain)
with np.load(factories.SAMPLES) as file:
    inputs = {k: torch.from_numpy(file[k][:2]) for k in file.files}
inputs = next(iter(inputs.values())) if len(inputs) == 1 else inputs
qtool.capture_model(model, inputs).export_float("float.tflite", "tflite")
"""
REMEDY = re.compile(r"--(?:batch-size|dynamic|fix|samples|states|shape) [^\s`',;)]+")
INTERNAL = {
    "traceback": r"Traceback|File \"",
    "library warning": r"\w*Warning: |warnings\.warn|\[W:onnxruntime|site-packages",
    "python value": r"<built-in|<class '|<function| object at 0x|tensor\(|FakeTensor|SymInt",
    "operator of torch": r"aten[.:]|prims[.:]|call_function|_ops\.py|sym_",
    "exception name": r"\b(?:Key|Index|Type|Value|Runtime|Attribute)Error\b|index out of range",
}


@dataclass(frozen=True)
class Workplace:
    """Where and with what the files of a network are made.

    Attributes:
        kind: name of the set.
        python: interpreter with the qtool to measure.
        peers: folder that pip has unpacked other tools to, or None.
        folder: of the run; has the calibration samples.
    """

    kind: str
    subject: Subject
    places: Places
    python: str
    peers: Path | None
    folder: Path
    arrays: Arrays = field(repr=False)

    @property
    def factory(self) -> str:
        """Name of the module in factories.py."""
        return f"{self.kind}__{self.subject.name}" if self.subject.build else ""

    def start(self) -> None:
        """Write what processes read: the samples, and benchmarks/ without the qtool next to it."""
        np.savez(self.folder / SAMPLES, **self.arrays)
        (self.folder / "benchmarks").symlink_to(HERE)

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command on one thread, with the modules of benchmarks/ and of the peers."""
        paths = [str(self.folder), *([str(self.peers)] if self.peers else [])]
        environment = {**os.environ, **self.places.environment(), "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
        return subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )


def write_float(work: Workplace) -> Path:
    """Return the package's file; of a module what torch.onnx writes, with a dynamic batch."""
    subject = work.subject
    if subject.build is None:
        return work.places.packages / subject.needs
    plain = work.folder / "float.onnx"
    model = subject.build(work.places).eval()
    example = {k: torch.from_numpy(a[:2]) for k, a in work.arrays.items()}
    dims = {k: {0: "batch", **subject.dynamic.get(k, {})} for k in example}
    options: dict[str, Any] = {"dynamo": True, "external_data": False, "verbose": False}
    named = set(example) <= set(inspect.signature(model.forward).parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if subject.older:
            options = {"dynamo": False, "opset_version": 17, "dynamic_axes": dims}
            options["input_names"] = list(example)
            torch.onnx.export(model, tuple(example.values()), str(plain), **options)
        elif named:
            shapes: Any = {k: _free(d) for k, d in dims.items()}
            torch.onnx.export(
                model, (), str(plain), kwargs=example, dynamic_shapes=shapes, **options
            )
        else:
            shapes = tuple(_free(d) for d in dims.values())
            torch.onnx.export(
                model, tuple(example.values()), str(plain), dynamic_shapes=shapes, **options
            )
    return plain


def _free(dims: Mapping[int, str]) -> dict[int, Any]:
    return dict.fromkeys(dims, torch.export.Dim.DYNAMIC)


def make_file(work: Workplace, name: str, plain: Path) -> dict[str, Any]:
    """Run a tool, which writes by-NAME/model.onnx or by-NAME/model.tflite.

    Returns:
        "file", or "error" with the last line of what it said; "cpu_seconds" and "peak_gib" of the
        process, imports included; of qtool also "command", "remedies" and "internal".
    """
    tool, out = TOOLS[name], work.folder / f"by-{name}"  # a folder `qtool` would be imported
    out.mkdir()
    file = out / f"model{tool.suffix}"
    row: dict[str, Any] = {}
    source = work.folder / "float.tflite" if tool.suffix == ".tflite" else plain
    try:
        unwritten = "" if source.exists() else _write_tflite(work, plain)
        if tool.make is None:
            _quantize(work, tool, file, row)
        elif unwritten:
            row["error"] = unwritten
        else:
            words = [name, str(source), str(file), work.factory]
            words += ["--whole"] if work.subject.whole else []
            command = [sys.executable, "-m", "benchmarks.networks.tools", *words]
            done = _measured(work, command, row)
            if done.returncode:
                row["error"] = _last_line(done)
    except subprocess.TimeoutExpired:
        row["error"] = f"more than {LIMIT} s"
    if "error" not in row:
        row["file"] = str(file)
    return row


def _measured(
    work: Workplace, command: Sequence[str], row: dict[str, Any]
) -> subprocess.CompletedProcess[str]:
    start = time.perf_counter()
    done = work.run([sys.executable, "-c", IN_BETWEEN, *command])
    usage = json.loads((work.folder / "usage.json").read_text())
    row["wall_seconds"] = time.perf_counter() - start
    row["cpu_seconds"], row["peak_gib"] = usage["cpu"], usage["peak"] / 2**20
    return done


def _quantize(work: Workplace, tool: Tool, file: Path, row: dict[str, Any]) -> None:
    """The plain command, and again with what a refusal names."""
    subject = work.subject
    module = f"benchmarks.networks.factories:{work.factory}"
    source = module if work.factory else str(work.places.packages / subject.needs)
    data = "benchmarks.networks.factories:batches" if subject.whole else SAMPLES
    words = ["quantize", source, "--data", data, "-o", str(file.relative_to(work.folder))]
    words += tool.options
    for name, dims in subject.dynamic.items():
        words += [w for d, n in dims.items() if d for w in ("--dynamic", f"{name}:{d}={n}")]
    remedies: list[str] = []
    said = ""
    for _ in range(3):
        command = [work.python, "-m", "qtool", *words, *" ".join(remedies).split()]
        done = _measured(work, command, row)
        said += done.stderr[-6000:]
        row["printed"] = done.stdout[-4000:]
        row.pop("error", None)
        if done.returncode == 0:
            break
        killed = f"killed by signal {-done.returncode}" if done.returncode < 0 else ""
        row["error"] = killed or _sentence(done.stderr)
        option = REMEDY.search(row["error"])
        remedy = _filled(option[0].rstrip("."), work.arrays) if option else ""
        if not remedy or remedy in remedies:
            break
        remedies.append(remedy)
    short = [w.replace(f"{work.places.packages}/", "") for w in words]
    row |= {"command": " ".join(["qtool", *short, *remedies]), "remedies": remedies, "stderr": said}
    text = said + row["printed"]
    row["internal"] = [kind for kind, words in INTERNAL.items() if re.search(words, text)]


def _filled(remedy: str, arrays: Arrays) -> str:
    """Put the number that all samples have in the place of VALUE."""
    name = remedy.partition(" ")[2].partition("=")[0]
    return remedy.replace("VALUE", str(arrays[name].flat[0])) if name in arrays else remedy


def _sentence(text: str) -> str:
    lines = [line.strip() for line in text.splitlines()]
    first = next((i for i, line in enumerate(lines) if line.lower().startswith("error")), -3)
    return " ".join(lines[first:])[:700]


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if line.strip(" ~^")]
    lines = lines or [f"exit code {done.returncode}"]
    return " ".join(" ".join(lines[-1 if ":" in lines[-1] else -2 :]).split())[:200]


def _write_tflite(work: Workplace, plain: Path) -> str:
    """Write the float .tflite file; return what went wrong, or ""."""
    source = str(plain) if not work.factory else ""
    done = work.run([work.python, "-c", FLOAT_TFLITE, work.factory, source])
    return f"no float .tflite file: {_last_line(done)}" if done.returncode else ""
