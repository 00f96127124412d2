"""TFLite files of qtool and of litert-torch: accuracy, size, and what it takes to make them.

    python -m venv PEER && PEER/bin/pip install torch litert-torch safetensors
    PYTHONPATH=. python benchmarks/tflite_peer.py --peer PEER/bin/python [--realdata FOLDER]

litert-torch (github.com/google-ai-edge/litert-torch) quantizes as its documentation says: PT2E with
`get_symmetric_quantization_config`, as it is (weights per tensor) and per channel, and images in
PyTorch's layout.
Networks are those of tflite_networks.py; both tools calibrate on the same samples, and both files
run in LiteRT, with its default delegate and with its reference kernels, on the same evaluation
data. Each file is made in a process of its own, with one thread, whose seconds include the import
of the tool, since a user waits for it; qtool's file is verified, too. The installed size is that of
the packages which pip installs with the tool (of qtool: with its extra `tflite`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import tflite_networks
import torch
from networks import Network

HOME = Path(__file__).resolve().parent
PEER = "litert-torch"
NETWORKS = ("digits", "resnet20", "mobilenetv2_w05")
ROW = (
    "| {network} | {tool} | {default:.1f} | {reference:.1f} | {kib:.0f} | {wall:.0f} | {cpu:.0f} "
    "| {mib:.0f} |"
)
HEAD = "| network | tool | dB default | dB reference | KiB | seconds | CPU s | MiB memory |"
RULE = "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"


# --- the tools -----------------------------------------------------------------------------------


def _qtool(accuracy: str) -> Callable[[Network, Path], None]:
    def make(network: Network, path: Path) -> None:
        import qtool

        model = qtool.quantize(
            network.model, network.calibration, target="tflite", accuracy=accuracy
        )
        model.export(path)

    return make


def _litert_torch(per_channel: bool, network: Network, path: Path) -> None:
    import litert_torch
    from litert_torch.quantize.pt2e_quantizer import (
        PT2EQuantizer,
        get_symmetric_quantization_config,
    )
    from litert_torch.quantize.quant_config import QuantConfig
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = PT2EQuantizer().set_global(
        get_symmetric_quantization_config(is_per_channel=per_channel, is_dynamic=False)
    )
    sample = (network.calibration[0][:1],)
    exported = torch.export.export(network.model.eval(), sample).module()
    prepared = prepare_pt2e(exported, quantizer)
    with torch.no_grad():
        for image in torch.cat(list(network.calibration)).split(1):
            prepared(image)
    quantized = convert_pt2e(prepared, fold_quantize=False)
    options = QuantConfig(pt2e_quantizer=quantizer)
    litert_torch.convert(quantized, sample, quant_config=options).export(str(path))


TOOLS: dict[str, Callable[[Network, Path], None]] = {
    "qtool fast": _qtool("fast"),
    "qtool balanced": _qtool("balanced"),
    f"{PEER}, defaults": partial(_litert_torch, False),
    f"{PEER}, per channel": partial(_litert_torch, True),
}


# --- installed size ------------------------------------------------------------------------------


def installed_mib(package: str, extras: Sequence[str]) -> tuple[float, int]:
    """Return MiB of a package and of all that it needs, and how many packages that are."""
    sizes: dict[str, int] = {}
    _add_sizes(package, extras, sizes)
    return sum(sizes.values()) / 2**20, len(sizes)


def _add_sizes(package: str, extras: Sequence[str], sizes: dict[str, int]) -> None:
    name = re.sub(r"[-_.]+", "-", package).lower()
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return  # of another platform
    if name in sizes and not extras:
        return
    places = (Path(str(f.locate())) for f in files)
    sizes[name] = sum(p.stat().st_size for p in places if p.is_file())
    for line in metadata.requires(package) or []:
        needed, _, marker = line.partition(";")
        named = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
        if named and named[1] not in extras:
            continue
        match = re.match(r"[A-Za-z0-9_.-]+", needed.strip())
        assert match is not None
        _add_sizes(match[0], (), sizes)


# --- measuring -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """Seconds of a process until its file is there, and its peak memory."""

    wall: float
    cpu: float
    mib: float


def make_one(options: argparse.Namespace) -> None:
    """Write a file, in the process of a tool; the last line is its cost."""
    torch.set_num_threads(1)
    network = tflite_networks.all_networks(options.realdata)[options.networks]()
    wall, cpu = time.monotonic(), time.process_time()
    TOOLS[options.make](network, options.file)
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cost = {"wall": time.monotonic() - wall, "cpu": time.process_time() - cpu, "mib": usage}
    print("\n" + json.dumps(cost))


def make(options: argparse.Namespace, network: str, tool: str, path: Path) -> Cost:
    python = options.peer if tool.startswith(PEER) else sys.executable
    command = [str(python), str(HOME / "tflite_peer.py"), "--make", tool, "--networks", network]
    command += ["--file", str(path)]
    command += ["--realdata", str(options.realdata)] if options.realdata else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HOME.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{tool} fails on {network}:\n{done.stderr[-2000:]}")
    return Cost(**json.loads(done.stdout.strip().splitlines()[-1]))


def decibels(path: Path, network: Network, exact: np.ndarray, default: bool) -> float:
    """Return the SQNR of a file against the float network on the evaluation data."""
    from qtool.backends.tflite.tflite_file import TfliteFile
    from qtool.core.sqnr import sqnr

    file = TfliteFile(path)
    outputs: list[Any] = [
        file.run([image.numpy()], default=default)[0]
        for batch in network.data
        for image in batch.split(1)
    ]
    value = sqnr(exact, np.concatenate(outputs).reshape(exact.shape))
    return np.inf if value is None else value


def measure(options: argparse.Namespace, name: str, folder: Path) -> None:
    network = tflite_networks.all_networks(options.realdata)[name]()
    with torch.no_grad():
        exact = np.concatenate([network.model(batch).numpy() for batch in network.data])
    for number, tool in enumerate(options.tools):
        path = folder / f"{name}{number}.tflite"
        cost = make(options, name, tool, path)
        values = {kind: decibels(path, network, exact, kind == "default") for kind in KERNELS}
        kib = path.stat().st_size / 1024
        print(ROW.format(network=name, tool=tool, kib=kib, **values, **vars(cost)), flush=True)


KERNELS = ("default", "reference")


def size_line(options: argparse.Namespace) -> None:
    """Print the installed size of both tools."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import tflite_peer as t; "
    for python, tool, extras in (
        (sys.executable, "qtool-onnx", ("tflite",)),
        (options.peer, PEER, ()),
    ):
        call = f"print('%.0f MiB, %d packages' % t.installed_mib({tool!r}, {extras!r}))"
        done = subprocess.run(
            [str(python), "-c", code + call, str(HOME)], capture_output=True, text=True, check=True
        )
        print(f"{tool}: {done.stdout.strip()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", type=Path, help="the Python with litert-torch")
    parser.add_argument("--realdata", type=Path, metavar="FOLDER", help="trained networks")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--tools", nargs="*", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--make", choices=TOOLS, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        make_one(options)
        return
    from qtool.core.atomic import scratch_folder

    size_line(options)
    print(HEAD, RULE, sep="\n")
    with scratch_folder() as folder:
        for name in options.networks.split(","):
            measure(options, name, folder)


if __name__ == "__main__":
    main()
