"""Networks x tools: files of all tools from the same samples, measured on the same new ones.

    python -m benchmarks.networks SET -o OUT [--tools qtool,static] [--only silero,ppocr]
        [--samples 48,256] [--packages PACKAGES] [--realdata REALDATA] [--peers PEERS]
        [--python OTHER/.venv/bin/python] [--page PAGE]

Sets: `packaged` (trained networks, files of public packages), `realdata` (trained, with labels;
benchmarks/realdata.py says what the folder has); with random weights `usual` (in the sizes in which
they are used), `torchvision`, `timm` and `transformers` (all families, small). What they need:

    python -m benchmarks.networks packaged --list > requirements.txt    # packages, one a line
    pip install --no-deps --target PACKAGES ...     # all but rapidocr-onnxruntime==1.2.3
    pip install --no-deps --target PACKAGES/rapidocr_1_2_3 rapidocr-onnxruntime==1.2.3
    pip install --no-deps torchvision timm && pip install pillow transformers
    pip install --target PEERS nncf torchao         # other tools

A network runs in a process of its own and leaves OUT/COMMIT/NETWORK.SAMPLES.json. What is there is
not measured again, unless measuring failed or another tool is asked for. Run it from the root of
the checkout. 1 to 6 minutes of one core for a network.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.networks.measure import measure, workplace
from benchmarks.networks.page import page
from benchmarks.networks.sets import SETS
from benchmarks.networks.subject import Places
from benchmarks.networks.tools import DEFAULTS, TOOLS
from benchmarks.rows import add_row, has_row, label_of, read, rows_of


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.networks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("set", choices=SETS)
    parser.add_argument("-o", "--output", type=Path, help="of the rows, a folder for each commit")
    parser.add_argument("--tools", default=",".join(DEFAULTS), help=f"of {', '.join(TOOLS)}")
    parser.add_argument("--only", default="", help="parts of names of networks")
    parser.add_argument("--samples", default="48", help="numbers of calibration samples")
    parser.add_argument("--new", type=int, default=0, help="number of new samples")
    parser.add_argument("--seconds", type=float, default=4.0, help="of timing; 0: none")
    parser.add_argument("--packages", type=Path, default=Path("packages"))
    parser.add_argument("--realdata", type=Path, default=Path("realdata"))
    parser.add_argument("--peers", type=Path, help="folder with the packages of other tools")
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter with the qtool to measure"
    )
    parser.add_argument("--label", default="", help="by default the commit of its checkout")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--list", action="store_true", help="print the packages of the set")
    parser.add_argument("--alone", default="", help=argparse.SUPPRESS)
    return parser


def _alone(options: argparse.Namespace, places: Places, tools: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        work, rest = workplace(
            *(options.set, SETS[options.set]()[options.alone], int(options.samples), places),
            *(options.python, Path(folder), options.new, options.peers),
        )
        row = measure(work, rest, tools, options.seconds)
    print(json.dumps({**row, "network": f"{options.alone}.{options.samples}"}))


def _add_rows(options: argparse.Namespace, places: Places, tools: list[str], done: Path) -> None:
    paths = {"--packages": places.packages, "--realdata": places.realdata, "--peers": options.peers}
    words = [str(w) for pair in paths.items() if pair[1] for w in pair]
    words += ["--python", options.python, "--tools", ",".join(tools)]
    words += ["--new", str(options.new), "--seconds", str(options.seconds)]
    for count in options.samples.split(","):
        for name, subject in SETS[options.set]().items():
            if not any(word in name for word in options.only.split(",")):
                continue
            if not subject.is_here(places):
                print(f"{name}: left out, {subject.needs} is not there", flush=True)
                continue
            row = f"{name}.{count}"
            if has_row(done, row) and not set(tools) <= set(read(done, row)["tools"]):
                (done / f"{row}.json").unlink()
            alone = ["-m", "benchmarks.networks", options.set, "--alone", name, "--samples", count]
            add_row(done, row, *alone, *words)


def main() -> None:
    parser = _parser()
    options = parser.parse_args()
    if options.list:
        print(*sorted({s.source for s in SETS[options.set]().values()}), sep="\n")
        return
    tools = options.tools.split(",")
    if unknown := set(tools) - set(TOOLS):
        parser.error(f"unknown tools: {', '.join(sorted(unknown))}")
    options.python = str(Path(options.python).absolute())  # commands run in other folders
    options.peers = options.peers.resolve() if options.peers else None
    places = Places(options.packages.resolve(), options.realdata.resolve())
    if options.alone:
        _alone(options, places, tools)
        return
    if options.output is None:
        parser.error("-o is missing: the folder of the rows")
    label = options.label or label_of(options.python)
    _add_rows(options, places, tools, options.output / label)
    if options.page:
        counts = options.samples.split(",")
        names = [f"{name}.{count}" for name in SETS[options.set]() for count in counts]
        rows = rows_of(options.output / label, names)
        options.page.write_text(page(options.set, label, rows), encoding="utf-8")


if __name__ == "__main__":
    main()
