"""One network with one number of samples: the plain command in a fresh process, what it printed,
and its file measured anew, as are those of onnxruntime.quantization."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.fresh_process import run_fresh
from benchmarks.packages import modules
from benchmarks.packages.networks import Network
from benchmarks.packages.sizes import other_sizes
from benchmarks.truth.measured import Runner, open_file, sqnr
from benchmarks.truth.sequences import PACKAGES

__all__ = ["convert", "measure"]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIMIT = 1800  # seconds of a command
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
TIMED = 1.0  # seconds of a measurement of speed
REMEDY = re.compile(r"--(?:batch-size|dynamic|fix|samples|states|shape) [^\s`',;)]+")
INTERNAL = {
    "traceback": r"Traceback|File \"|qtool-error",
    "library warning": r"\w*Warning: |warnings\.warn|\[W:onnxruntime|site-packages",
    "python value": r"<built-in|<class '|<function| object at 0x|tensor\(|FakeTensor|SymInt",
    "operator of torch": r"aten[.:]|prims[.:]|call_function|_ops\.py|sym_",
    "exception name": r"\b(?:Key|Index|Type|Value|Runtime|Attribute)Error\b|index out of range",
}
Arrays = dict[str, np.ndarray]


def measure(
    network: Network, count: int, python: str, packages: Path, folder: Path
) -> dict[str, Any]:
    """The row: "command", "outcome" ("ok", "refused", or "failed" where the measurement did),
    "internal" (kinds of messages that are no user's), "files" (figures of qtool's file, "static"
    and "dynamic")."""
    row: dict[str, Any] = {
        "network": f"{network.name}.{count}",
        "name": network.name,
        "samples": count,
        "outcome": "failed",
    }
    try:
        plain, arrays, new = convert(network, count, python, packages, folder, row)
        _measure(network, plain, arrays, new, folder, row)
    except Exception as error:  # noqa: BLE001  # a row says what went wrong
        row["outcome"] = "failed"
        row["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    return row


def convert(
    network: Network, count: int, python: str, packages: Path, folder: Path, row: dict[str, Any]
) -> tuple[Path, Arrays, Arrays]:
    """Run the plain command, which writes `folder`/out/model.onnx; the row has what came of it.

    Returns:
        The float file, the samples of the calibration, and new ones with their labels.
    """
    os.environ[PACKAGES] = str(packages)
    arrays, new = _split(network, count, packages)
    np.savez(folder / "calibration.npz", **arrays)
    plain = _float_file(network, arrays, packages, folder)
    _quantize(network, plain, python, arrays, folder, row)
    return plain, arrays, new


def _split(network: Network, count: int, packages: Path) -> tuple[Arrays, Arrays]:
    """Calibration samples, and new ones with their labels."""
    rng = np.random.default_rng([7, count])
    made = network.make(packages, rng, count + network.new)
    order = rng.permutation(len(next(iter(made.values()))))
    arrays = {k: a[order[:count]] for k, a in made.items() if k != "label"}
    return arrays, {k: a[order[count:]] for k, a in made.items()}


def _float_file(network: Network, arrays: Arrays, packages: Path, folder: Path) -> Path:
    """The package's file; of a module what torch.onnx writes, with a dynamic batch."""
    if not network.factory:
        return packages / network.file
    plain = folder / "float.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            getattr(modules, network.factory)(),
            tuple(torch.from_numpy(a[:2]) for a in arrays.values()),
            str(plain),
            input_names=list(arrays),
            dynamic_axes={k: {0: "N"} for k in arrays},
            opset_version=17,
            dynamo=False,
        )
    return plain


def _quantize(
    network: Network,
    plain: Path,
    python: str,
    arrays: Arrays,
    folder: Path,
    row: dict[str, Any],
) -> None:
    """The plain command, and again with what a refusal names."""
    source = f"modules:{network.factory}" if network.factory else str(plain)
    data = "modules:batches" if network.whole else "calibration.npz"
    words = ["quantize", source, "--data", data, "-o", "out/model.onnx"]
    (folder / "benchmarks").symlink_to(HERE.parent)  # not its checkout, which has a qtool
    environment = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
    remedies: list[str] = []
    for _ in range(3):
        (folder / "out").mkdir(exist_ok=True)
        start = time.perf_counter()
        command = [python, "-m", "qtool", *words, *" ".join(remedies).split()]
        done = subprocess.run(
            [sys.executable, "-c", IN_BETWEEN, *command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )
        usage = json.loads((folder / "usage.json").read_text())
        row["exit"] = done.returncode
        row["wall_seconds"] = time.perf_counter() - start
        row["cpu_seconds"] = usage["cpu"]
        row["peak_gib"] = usage["peak"] / 2**20
        row["printed"] = done.stdout[-4000:]
        row["stderr"] = row.get("stderr", "") + done.stderr[-6000:]
        if done.returncode == 0:
            row["outcome"] = "ok"
            break
        if done.returncode < 0:
            row["outcome"] = "refused"
            row["refusals"] = [f"killed by signal {-done.returncode}"]
            break
        row["outcome"] = "refused"
        row.setdefault("refusals", []).append(_sentence(done.stderr))
        option = REMEDY.search(row["refusals"][-1])
        remedy = _filled(option[0].rstrip("."), arrays) if option else ""
        if not remedy or remedy in remedies:
            break
        remedies.append(remedy)
    short = [Path(w).name if "/" in w and w != "out/model.onnx" else w for w in words]
    row["command"] = " ".join(["qtool", *short, *remedies])
    row["remedies"] = remedies
    said = row["stderr"] + row["printed"]
    row["internal"] = [kind for kind, words in INTERNAL.items() if re.search(words, said)]


def _filled(remedy: str, arrays: Arrays) -> str:
    """Put the number that all samples have in the place of VALUE."""
    name = remedy.partition(" ")[2].partition("=")[0]
    return remedy.replace("VALUE", str(arrays[name].flat[0])) if name in arrays else remedy


def _sentence(text: str) -> str:
    lines = [line.strip() for line in text.splitlines()]
    first = next((i for i, line in enumerate(lines) if line.lower().startswith("error")), -3)
    return " ".join(lines[first:])[:700]


def _measure(
    network: Network, plain: Path, arrays: Arrays, new: Arrays, folder: Path, row: dict[str, Any]
) -> None:
    float_run = open_file(plain)
    labels = new.pop("label", None)
    each = [
        {k: np.asarray(a[i]) if network.whole else a[i : i + 1] for k, a in new.items()}
        for i in range(len(next(iter(new.values()))))
    ]
    real = [float_run(x) for x in each]
    choices = [network.task.decide(o) for o in real]
    row["task"] = network.task.words
    row["before"] = network.task.score(choices, choices)
    if labels is not None:
        row["before"] = network.task.score(list(labels), choices)
    size = 1 if network.whole else None
    timed = {k: np.asarray(a[0]) if size else a[:1] for k, a in arrays.items()}
    np.savez(folder / "timed.npz", **timed)
    files = {"qtool": folder / "out" / "model.onnx"}
    for mode in ("static", "dynamic"):
        files[mode] = folder / mode / "model.onnx"
    row["float_bytes"] = _bytes(plain)
    row["files"] = {}
    for name, file in files.items():
        figures = row["files"][name] = {}
        if name != "qtool":
            figures.update(_peer(network, plain, file, folder))
        if file.exists():
            try:
                coded = open_file(file)
                figures.update(_compared(network, real, choices, labels, each, coded))
                figures["bytes"] = _bytes(file)
                words = [str(plain), str(file), str(folder / "timed.npz"), str(TIMED)]
                figures["speed"] = run_fresh(str(ROOT / "benchmarks/truth/timed.py"), *words)
            except Exception as error:  # noqa: BLE001  # a file that does not run is a result
                text = " ".join(str(error).split()).replace(f"{folder}/", "")
                figures["error"] = text[:160]
            if name == "qtool":
                try:
                    row["sizes"] = other_sizes(plain, float_run, open_file(file), each[0])
                except Exception as error:  # noqa: BLE001  # a result
                    row["sizes"] = {"loading": " ".join(str(error).split())[:200]}


def _compared(
    network: Network, real: list[Any], choices: list[Any], labels: Any, each: list[Any], run: Runner
) -> dict[str, Any]:
    """Against the float file, and against the labels where there are some."""
    coded = [run(x) for x in each]
    outputs = {}
    if any(v.dtype.kind == "f" for v in real[0].values()):  # else class numbers alone
        outputs = sqnr(list(zip(real, coded, strict=True)), whole=True)
        outputs.pop("together")
    found = [network.task.decide(o) for o in coded]
    same = network.task.score(choices, found)
    return {
        "outputs": outputs,
        "agreement": same,
        "after": same if labels is None else network.task.score(list(labels), found),
    }


def _peer(network: Network, plain: Path, out: Path, folder: Path) -> dict[str, Any]:
    """Of a file that another tool makes: seconds, or the last line of what it said."""
    out.parent.mkdir()
    words = [str(HERE / "peer.py"), str(plain), str(out), out.parent.name]
    words += [str(folder / "calibration.npz"), *(["--whole"] if network.whole else [])]
    try:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"more than {LIMIT} s"}
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip(" ~^")]
        lines = lines or [f"exit code {done.returncode}"]
        out.unlink(missing_ok=True)
        return {"error": " ".join(" ".join(lines[-1 if ":" in lines[-1] else -2 :]).split())[:200]}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def _bytes(file: Path) -> int:
    """With its external data."""
    return sum(p.stat().st_size for p in (file, Path(f"{file}.data")) if p.exists())
