"""The search on real networks, on hostile ones, and when it is killed.

    python benchmarks/tune.py goals FOLDER [--networks kws,resnet20] [--drop 0.002] [--twins fast]
    python benchmarks/tune.py hostile FOLDER [--accuracy fast]
    python benchmarks/tune.py kills [--kills 100]
    python benchmarks/tune.py explain FOLDER [--networks resnet20] [--flips 200] [--exported 10]

goals: networks of the folder (see networks.py) and their unbalanced twins, without recovery (fast)
and with its levels to choose from. hostile: three layers whose weights hold pairs of huge values
that cancel. kills: a search is killed at random moments until it ends, and has to find what an
undisturbed one finds. explain: changed answers that the named layers restore, some of them as
exported files.
"""

from __future__ import annotations

import argparse
import copy
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networks
import numpy as np
import torch
from kills import run as ended
from kills import warm
from torch import nn
from unbalanced import twin_of

import qtool
from qtool.backends.onnxruntime.session import run, session
from qtool.core.data import to_batch
from qtool.evaluation.sensitivity import split_batch
from qtool.search.explain import Explainer

ROOT = Path(__file__).parents[1]
EVALUATIONS = 20
SAMPLES = 10  # that are explained one by one, to time it


# --- goals -------------------------------------------------------------------------------------


TWINS: dict[str, dict[str, Any]] = {"fast": {"accuracy": ("fast",)}, "levels": {}}
HEAD = "network             reached  speed   MACs    size  evaluations  minutes  CPU s  metric"


def of_goals(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--networks", default="kws,resnet20,mobilenetv2_w05,densenet40,minilm")
    parser.add_argument("--drop", type=float, default=0.002)
    parser.add_argument(
        "--twins", nargs="*", default=["none", *TWINS], help="and the network: none"
    )


def cases(options: argparse.Namespace) -> Iterator[tuple[str, Any, nn.Module, dict[str, Any]]]:
    """Name, network with its data, the model, and what the search is told besides."""
    for name in options.networks.split(","):
        network = networks.load(options.folder, name)
        if "none" in options.twins:
            yield name, network, network.model, {}
        if set(options.twins) & set(TWINS):
            twin = twin_of(network)
            yield from (
                (f"{name} twin, {t}", network, twin, TWINS[t]) for t in options.twins if t in TWINS
            )


def goals(options: argparse.Namespace) -> None:
    print(HEAD)
    for name, network, model, more in cases(options):
        drop = options.drop * (100 if network.metric else 1)
        start, spent = time.monotonic(), time.process_time()
        found = qtool.tune(
            model,
            network.calibration,
            network.data,
            network.labels,
            goals=qtool.TuneGoals(max_drop=drop),
            options=qtool.SearchOptions(evaluations=EVALUATIONS),
            function=network.metric,
            dynamic=network.dynamic,
            **more,
        )
        best, took = found.best, time.monotonic() - start
        print(
            f"{name:22} {found.reached!s:>5}  {best.speedup:.2f}x  {best.share:6.1%} "
            f"{best.size / found.float_size:6.2f}  {found.fresh:11}  {took / 60:7.1f}  "
            f"{time.process_time() - spent:5.0f}  {best.score.text}",
            flush=True,
        )
        print(found, flush=True)


# --- hostile layers ----------------------------------------------------------------------------


class _Hostile(nn.Module):
    """A layer that reads some of its inputs twice, with huge weights that cancel: in float they add
    up to nothing, and in int8 they leave the other weights no codes."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        twice = 2 * layer.in_channels
        self.layer = nn.Conv2d(
            twice,
            layer.out_channels,
            layer.kernel_size,
            layer.stride,
            layer.padding,
            bias=layer.bias is not None,
        )
        weight = torch.cat([layer.weight / 2, layer.weight / 2], 1).detach()
        huge = 1e4 * float(layer.weight.detach().abs().median())
        weight[:, 0] += huge
        weight[:, layer.in_channels] -= huge
        self.layer.weight = nn.Parameter(weight)
        if layer.bias is not None:
            self.layer.bias = nn.Parameter(layer.bias.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([x, x], 1))


HOSTILE_DROP = 0.005
HOSTILE = ("layer1.1.conv1", "layer2.1.conv1", "layer3.1.conv1")


def hostile(options: argparse.Namespace) -> None:
    network = networks.load(options.folder, "resnet20")
    net = copy.deepcopy(network.model)
    for name in HOSTILE:
        parent, _, last = name.rpartition(".")
        setattr(net.get_submodule(parent), last, _Hostile(net.get_submodule(name)))
    found = qtool.tune(
        net.eval(),
        network.calibration,
        network.data,
        network.labels,
        goals=qtool.TuneGoals(max_drop=HOSTILE_DROP),
        options=qtool.SearchOptions(choices=("static",), evaluations=EVALUATIONS),
        accuracy=tuple(options.accuracy.split(",")),
    )
    print(found)
    lifted = sorted(n for g in found.groups if g.choice != "static" for n in g.layers)
    wanted = sorted(f"{name}.layer" for name in HOSTILE)
    print(
        f"hostile {wanted}\nlifted  {lifted}\n{'exactly those' if lifted == wanted else 'OTHERS'}"
    )


# --- kills -------------------------------------------------------------------------------------


def _command(folder: Path) -> tuple[str, ...]:
    base = ["tune", "examples.digits.network:digits_net"]
    base += ["--weights", "examples/digits/weights.safetensors", "--data", "calib_data/digits"]
    base += ["--eval-data", "examples/digits/eval.npz", "--labels", "labels", "--accuracy", "fast"]
    base += ["--min-sqnr", "45", "--smallest", "--evaluations", "10"]
    return (*base, "--archive", str(folder / "archive"), "-o", str(folder / "best.onnx"))


def _kept(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (folder / "archive").glob("*.json")}


def kills(options: argparse.Namespace) -> None:
    """An evaluation is lost where its file is gone or was written anew; a search has ended as the
    one that was left alone where it made the same file from the same evaluations."""
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    warm()
    draw, count = np.random.default_rng(options.seed), Counter[str]()
    with tempfile.TemporaryDirectory() as made:
        alone, killed = Path(made) / "alone", Path(made) / "killed"
        alone.mkdir()
        start = time.monotonic()
        assert ended(_command(alone)) == 0
        whole, expected = time.monotonic() - start, (alone / "best.onnx").read_bytes()
        while count["kills"] < options.kills:
            killed.mkdir(exist_ok=True)
            before = _kept(killed)
            code = ended(_command(killed), draw.uniform(0, 0.6) * whole, signal.SIGKILL)
            after = _kept(killed)
            count["kills"] += code == -signal.SIGKILL
            count["evaluations lost"] += sum(after.get(n) != b for n, b in before.items())
            count["refused to go on"] += code not in (0, -signal.SIGKILL)
            if code == 0:
                same = (killed / "best.onnx").read_bytes() == expected
                count["searches ended"] += 1
                count["otherwise"] += not (same and after.keys() == _kept(alone).keys())
                shutil.rmtree(killed)
        evaluations = len(_kept(alone)) - 1
    print(f"{evaluations} evaluations in {whole:.1f} s when left alone; {dict(count)}")


# --- explain -----------------------------------------------------------------------------------


def explain(options: argparse.Namespace) -> None:
    for name in options.networks.split(","):
        network = networks.load(options.folder, name)
        model = twin_of(network) if options.twin else network.model
        captured = qtool.capture_model(model, network.calibration[0], network.dynamic)
        level = {"recover": []} if options.accuracy == "off" else {"accuracy": options.accuracy}
        with tempfile.TemporaryDirectory() as made:
            file = Path(made) / "int8.onnx"
            qtool.quantize(captured, network.calibration, **level).export(file)
            explainer = Explainer(
                file, captured, captured.graph.bind(to_batch(network.calibration[0]))
            )
            bound = [captured.graph.bind(b) for b in map(to_batch, network.data)]
            found = explainer.explain(bound, None, options.flips)
            few, spent, work = found.flips[:SAMPLES], time.monotonic(), time.process_time()
            for flip in few:
                part, place = divmod(flip.index, networks.EVALUATION_BATCH)
                one = split_batch(bound[part], 1)[place]
                assert explainer.explain([one], None, 1).flips[0].layers == flip.layers
            spent = (time.monotonic() - spent) / len(few)
            work = (time.process_time() - work) / len(few)
            tried = found.flips[: options.exported]
            right = [_exported(explainer, network, f, Path(made)) for f in tried]
        flips, fixed = len(found.flips), sum(f.fixed for f in found.flips)
        sizes = [len(f.layers) for f in found.flips]
        print(
            f"{name}: {found.changed} of {found.samples} predictions changed; {fixed} of {flips} "
            f"mended, median {np.median(sizes):.0f} layers (most {max(sizes)}), "
            f"{spent:.2f} s a sample ({work:.2f} of the processor); "
            f"{sum(right)} of {len(right)} mended as exported"
        )
        for layer, count in found.layers[:5]:
            print(f"  {layer}: {count}")


def _exported(explainer: Explainer, network: Any, flip: Any, folder: Path) -> bool:
    """Whether the file with the layers in float gives the float model's answer."""
    file = folder / "mended.onnx"
    explainer.restored_model(flip.layers).export(file, verify=False)
    samples = torch.cat(list(network.data))
    scores = run(session(file), [samples[flip.index : flip.index + 1].numpy()])[0]
    return int(scores[0].argmax()) == flip.expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for command in (goals, hostile, kills, explain):
        sub = commands.add_parser(command.__name__)
        sub.set_defaults(run=command)
        if command in (goals, hostile, explain):
            sub.add_argument("folder", type=Path)
        if command is goals:
            of_goals(sub)
        if command is hostile:
            sub.add_argument("--accuracy", default="fast,balanced", help="levels to choose from")
        if command is kills:
            sub.add_argument("--kills", type=int, default=100)
            sub.add_argument("--seed", type=int, default=0)
        if command is explain:
            sub.add_argument("--networks", default="resnet20,mobilenetv2_w05")
            sub.add_argument("--flips", type=int, default=200)
            sub.add_argument("--exported", type=int, default=10)
            sub.add_argument("--accuracy", default="fast", help="off: no recovery at all")
            sub.add_argument("--twin", action="store_true", help="unbalanced")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
