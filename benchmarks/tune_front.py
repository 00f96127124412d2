"""Searches of a few evaluations compared with the true Pareto front: all files of ten layers.

    python benchmarks/tune_front.py KEEP [--searches 8] [--network kws --folder FOLDER]

Every choice between static and float for the ten layers of the sample network (or of one of
networks.py, which has few layers) is a file, converted as the searches do: 1,023 and the float
model. Each runs once on all data, which gives its error exactly, and is timed once beside float,
which does not give its time: of a thousand files those that seem fastest were lucky. So this first
look only says which may be on the front: those that no file at least as exact beats by SLACK. They,
and whatever the searches evaluated, are timed again, ROUNDS times, each time in SESSIONS sessions
beside float. The median is their time; the first look does not count. Times are taken in young
processes (timed_alone.py).

A search is judged by the hypervolume of what it evaluated (noise in dB, time, up to that of the
float model), all errors and times from the table. The interval is that of other rounds: a bootstrap
over them. Files in the folder KEEP are reused.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import networks
import numpy as np
import torch
from safetensors.torch import load_file
from timed_alone import times
from torch import nn

import qtool
from qtool.planning.recipe import Recipe, Rule
from qtool.search.judge import Judge
from qtool.search.pareto_front import hypervolume

ROOT = Path(__file__).parents[1]
EVALUATIONS = 20
SLACK = 0.15  # of the time: what one session may be wrong by
AT_ONCE = 11  # files that are made and timed together
ROUNDS, SESSIONS, RUNS = 7, 15, 30  # processes that time a file, sessions in each, runs in those
LEVEL = "fast"
DRAWS = 200
ENOUGH = 0.99

Data = tuple[nn.Module, list[torch.Tensor], list[torch.Tensor], np.ndarray]
"""The module, calibration and evaluation batches, labels."""

Write = Callable[[int, Path], None]
"""Writes the file of a number: bit i, from the left, is 1 where layer i is in float."""


def digits() -> Data:
    sys.path.insert(0, str(ROOT))
    from examples.digits.network import digits_net

    net = digits_net()
    net.load_state_dict(load_file(ROOT / "examples/digits/weights.safetensors"))
    with np.load(ROOT / "calib_data/digits/images.npz") as file:
        seen = torch.from_numpy(file["x"])
    with np.load(ROOT / "examples/digits/eval.npz") as file:
        asked, labels = torch.from_numpy(file["x"]), file["labels"]
    return net.eval(), list(seen.split(50)), list(asked.split(50)), labels


def _of_folder(folder: Path, name: str) -> Data:
    found = networks.load(folder, name)
    assert found.labels is not None
    return found.model, list(found.calibration), list(found.data), found.labels


def _written(found: qtool.TunedModel, number: int, file: Path) -> None:
    names = [layer for g in found.groups for layer in g.layers]
    bits = f"{number:0{len(names)}b}"
    rules = tuple(
        Rule(select=n, scheme="float") for n, b in zip(names, bits, strict=True) if b == "1"
    )
    found.convert(Recipe(rules, accuracy=LEVEL)).export(file, verify=False)


def _kept(path: Path, rows: int, make: Callable[[int], Sequence[Any]]) -> np.ndarray:
    """An array, some rows at a time; goes on where an interrupted run has left off."""
    found = np.load(path).tolist() if path.exists() else []
    while len(found) < rows:
        found += make(len(found))
        np.save(path, found)
    return np.array(found)


def _first_look(write: Write, plain: Path, asked: Any, keep: Path, files: int) -> np.ndarray:
    """[files, 2] noise and time."""
    judge, one = Judge(plain, asked), asked[0][:1].numpy()

    def some(first: int) -> list[tuple[float, float]]:
        numbers = range(first, min(first + AT_ONCE, files))
        with tempfile.TemporaryDirectory() as made:
            there = [Path(made) / f"{number}.onnx" for number in numbers]
            for number, file in zip(numbers, there, strict=True):
                write(number, file)
            noise = [judge.score(file).noise for file in there]
            return list(zip(noise, times(plain, there, one, 1, 5 * RUNS), strict=True))

    return _kept(keep / "first.npy", files, some)


def _contenders(noise: np.ndarray, cost: np.ndarray) -> list[int]:
    """Those that may be on the front, as far as one look can tell."""
    better = (noise[:, None] <= noise) & (cost[:, None] < (1 - SLACK) * cost)
    return np.flatnonzero(~better.any(0)).tolist()


def _again(write: Write, plain: Path, asked: Any, keep: Path, chosen: list[int]) -> np.ndarray:
    """[ROUNDS, chosen] times: every file in one process of each round."""
    one, mark = asked[0][:1].numpy(), hash(tuple(chosen)) % 10**8
    with tempfile.TemporaryDirectory() as made:
        files = [Path(made) / f"{number}.onnx" for number in chosen]
        for number, file in zip(chosen, files, strict=True):
            write(number, file)

        def row(number: int) -> list[list[float]]:
            order = np.random.default_rng(number).permutation(len(files))  # others beside it
            found = np.zeros(len(files))
            for part in np.split(order, range(AT_ONCE, len(order), AT_ONCE)):
                found[part] = times(plain, [files[i] for i in part], one, SESSIONS, RUNS)
            return [found.tolist()]

        return _kept(keep / f"again{mark}.npy", ROUNDS, row)


def _shares(times: np.ndarray, noise: np.ndarray, own: list[list[int]]) -> list[float]:
    """Of the hypervolume of all, that of the places of each search."""
    worst = 1.0, float(noise.max()) + 1.0
    whole = hypervolume(times, noise, worst)
    return [hypervolume(times[o], noise[o], worst) / whole for o in own]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("keep", type=Path)
    parser.add_argument("--searches", type=int, default=8)
    parser.add_argument("--network", help="of the folder; else the sample network")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    name = options.network
    net, seen, asked, labels = _of_folder(options.folder, name) if name else digits()
    keep: Path = options.keep
    keep.mkdir(parents=True, exist_ok=True)
    search = qtool.SearchOptions(choices=("static",), evaluations=EVALUATIONS, front=True)
    searches = []
    for number in range(options.searches):
        start = time.monotonic()
        place = keep / f"search{number}"
        searches.append(
            qtool.tune(net, seen, asked, labels, options=search, accuracy=(LEVEL,), archive=place)
        )
        print(f"search {number}: {time.monotonic() - start:.0f} s", flush=True)
    write = partial(_written, searches[0])
    plain = qtool.capture_model(net, seen[0]).export_float(keep / "float.onnx")
    files = 2 ** len(searches[0].groups) - 1  # the last is the float model
    noise, first = _first_look(write, plain, asked, keep, files).T
    own = [[_number(e.choices) for e in s.evaluated] for s in searches]
    chosen = sorted({*_contenders(noise, first), *itertools.chain(*own)} - {files})
    again = _again(write, plain, asked, keep, chosen)
    decibels = 10 * np.log10(np.maximum(noise[chosen], 1e-9))
    places = [[chosen.index(n) for n in o if n != files] for o in own]
    shares = _shares(np.median(again, 0), decibels, places)
    draw = np.random.default_rng(0)
    drawn = [draw.integers(ROUNDS, size=ROUNDS) for _ in range(DRAWS)]
    others = np.array([_shares(np.median(again[d], 0), decibels, places) for d in drawn])
    off = np.percentile(np.median(again, 0) / first[chosen] - 1, [5, 95])
    print(
        f"{files} files, {len(chosen)} timed again {ROUNDS} times: {off[0]:+.1%} to {off[1]:+.1%} "
        "beside the first look"
    )
    ends = np.percentile(others, [2.5, 97.5], 0).T
    for o, share, (low, high) in zip(own, shares, ends, strict=True):
        print(f"{len(o)} evaluations reach {share:.2%} ({low:.2%} to {high:.2%})")
    enough = sum(share >= ENOUGH for share in shares)
    print(f"median {np.median(shares):.2%}; {enough} of {len(shares)} reach {ENOUGH:.0%}")


def _number(choices: Sequence[str]) -> int:
    return int("".join("1" if c == "float" else "0" for c in choices), 2)


if __name__ == "__main__":
    main()
