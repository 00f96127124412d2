"""One case: the command in a fresh process, then the same numbers measured anew."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fresh_process import run_fresh
from benchmarks.measured import (
    Runner,
    agreement,
    agreement_of,
    files_size,
    integer_share,
    open_file,
    sqnr,
)
from benchmarks.truth.cases import Case
from benchmarks.truth.pools import Folders, Pool, pools
from benchmarks.truth.printed import printed
from benchmarks.truth.sequences import PACKAGES
from benchmarks.truth.subjects import Subject, prepare

__all__ = ["measure"]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIMIT = 1200  # seconds of a command
TIMED = 2.0  # seconds of a measurement of speed
ONE_BY_ONE = 1000  # samples measured at batch 1, where ranges depend on the batch
FLOAT_TFLITE = """
import importlib, numpy as np, qtool, sys, torch
source, weights, example = sys.argv[1:]
if source.endswith(".onnx"):
    model = qtool.load_onnx(source)
else:
    module, _, name = source.partition(":")
    from safetensors.torch import load_file
    model = getattr(importlib.import_module(module), name)()
    model.load_state_dict(load_file(weights))
with np.load(example) as file:
    inputs = {k: torch.from_numpy(file[k][:2]) for k in file.files}
qtool.capture_model(model, inputs).export_float("float.tflite", "tflite")
"""


def measure(case: Case, python: str, folders: Folders, folder: Path) -> dict[str, Any]:
    """The row of a case: "printed", "measured", and "outcome", which is "ok", "refused" (the
    command failed) or "failed" (the measurement did), with the sentence."""
    os.environ[PACKAGES] = str(folders.packages)
    paths = [str(HERE), *(str(folders.realdata / p) for p in ("cifar10", "kws"))]
    sys.path.extend(paths)
    (folder / "examples").symlink_to(ROOT / "examples")
    pool = pools(folders)[case.network]
    row: dict[str, Any] = {"network": case.name, "case": asdict(case), "outcome": "failed"}
    try:
        subject = prepare(case, pool, folder)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        document = _quantize(case, [python, "-m", "qtool"], subject, folder, environment, row)
        if document is not None:
            row["printed"] = printed(document, subject.output)
            _measure(case, pool, subject, folder, row)
            _time(case, pool, subject, [python, environment], folder, row)
            row["outcome"] = "ok"
    except Exception as error:  # noqa: BLE001  # a row says what went wrong
        row["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    return row


def _quantize(
    case: Case,
    qtool: Sequence[str],
    subject: Subject,
    folder: Path,
    environment: dict[str, str],
    row: dict[str, Any],
) -> dict[str, Any] | None:
    """Run the command; a file of a fixed batch again with that size, where the plain command is
    refused. None, and the reason in the row, where it fails."""
    (folder / "out").mkdir()
    words = [*qtool, "quantize", *subject.command, "-o", f"out/model.{case.suffix}", "--json"]
    for option in ("mode", "target", "accuracy", "memory"):
        if value := getattr(case, option):
            words += [f"--{option}", value]
    row["command"] = " ".join(["qtool", *words[3:]])
    for more in ([], ["--batch-size", "1"]):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [*words, *more],
            cwd=folder,
            env={**environment, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        row["cpu_seconds"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        document = json.loads(done.stdout) if done.stdout.lstrip().startswith("{") else {}
        if document and "error" not in document:
            row.pop("error", None)
            return {**document, "exit": done.returncode}
        row["error"] = document.get("error", {}).get("message") or _sentence(done.stderr)
        if "--batch-size" not in row["error"] or "--batch-size" in subject.command:
            break
        row["again"] = "--batch-size 1"
    row["outcome"] = "refused"
    return None


def _sentence(text: str) -> str:
    lines = [s for line in text.splitlines() if (s := line.strip()) and '"event"' not in s]
    return " ".join(lines[-4:])[-400:]


def _measure(case: Case, pool: Pool, subject: Subject, folder: Path, row: dict[str, Any]) -> None:
    file = folder / "out" / f"model.{case.suffix}"
    coded = open_file(file)
    pairs = _pairs(case, subject, coded, row)
    measured = row["measured"] = {
        "outputs": sqnr(pairs, whole=pool.whole),
        "agreement": agreement(pairs, pool.yardstick),
        "agreements": _agreements(pairs, row),
        "size_bytes": files_size(folder / "out", set()),
        "float_size_bytes": subject.plain.stat().st_size if subject.plain else None,
        "integer_share": None,
        "perplexity": None,
    }
    if case.suffix == "onnx" and case.form != "folder":  # where it depends on the length
        measured["integer_share"] = integer_share(file, subject.batches[0])
    if case.network == "language_model":
        measured["perplexity"] = _perplexity(subject, pairs)
    if case.mode == "dynamic" and case.batch > 1 and case.form not in ("folder", "onnx-1"):
        count = len(next(iter(subject.batches[0].values())))
        sizes = ((b, i) for b in subject.batches for i in range(count))
        rows = [{k: a[i : i + 1] for k, a in b.items()} for b, i in sizes]
        rows = [r for r in rows if len(next(iter(r.values())))][:ONE_BY_ONE]
        alone = [(subject.reference(r), coded(r)) for r in rows]
        measured["one_by_one"] = sqnr(alone)
        if row["printed"]["batch"] == 1:
            measured["agreements"] = _agreements(alone, row)


def _agreements(pairs: Sequence[Any], row: dict[str, Any]) -> list[float | None]:
    said = row["printed"]["agreements"]
    return [agreement_of(pairs, a["place"], a["kind"], a["threshold"]) for a in said]


def _pairs(case: Case, subject: Subject, coded: Runner, row: dict[str, Any]) -> list[Any]:
    """Outputs of the float model and of the file; a file that does not take the last batch, which
    may be smaller, is measured without it, and the row says so."""
    *batches, last = subject.batches
    pairs = [(subject.reference(b), coded(b)) for b in batches]
    try:
        pairs.append((subject.reference(last), coded(last)))
    except Exception as error:
        if len(next(iter(last.values()))) == case.batch:
            raise
        row["last_batch"] = " ".join(str(error).split())[:200]
    return pairs


def _perplexity(subject: Subject, pairs: Sequence[tuple[Any, Any]]) -> float:
    """Over every next token of the new texts, in double precision."""
    loss, count = 0.0, 0
    for batch, (_, coded) in zip(subject.batches, pairs, strict=True):
        logits, ids = coded["logits"][0, :-1].astype(np.float64), batch["input_ids"][0, 1:]
        top = logits.max(1, keepdims=True)
        log_sum = np.log(np.exp(logits - top).sum(1)) + top[:, 0]
        loss += float((log_sum - logits[np.arange(len(ids)), ids]).sum())
        count += len(ids)
    return float(np.exp(loss / count))


def _time(
    case: Case, pool: Pool, subject: Subject, how: Sequence[Any], folder: Path, row: dict[str, Any]
) -> None:
    """Against the user's float file, the faster one of the two that torch.onnx writes; a .tflite
    file against the float one that qtool writes, since nothing else here writes one."""
    plains = subject.plains
    if case.suffix == "tflite":
        python, environment = how
        source = str(pool.source if case.form in ("torch", "file") else subject.plain)
        subprocess.run(
            [python, "-c", FLOAT_TFLITE, source, "weights.safetensors", "calibration.npz"],
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
        )
        plains = (folder / "float.tflite",)
    if not plains:
        row["measured"]["speed"] = None
        return
    size = row["printed"]["speed_batch"] or 1
    arrays = subject.timed if pool.whole else {k: a[:size] for k, a in subject.timed.items()}
    np.savez(folder / "timed.npz", **arrays)
    file = folder / "out" / f"model.{case.suffix}"
    first = [str(HERE.parent / "timed.py"), str(folder / "timed.npz"), str(TIMED)]
    timings: list[Any] = [run_fresh(*first, str(p), str(file))["files"][0] for p in plains]
    row["measured"]["speed"] = min(timings, key=lambda timing: timing["ratio"])
    row["measured"]["speeds"] = [timing["ratio"] for timing in timings]
