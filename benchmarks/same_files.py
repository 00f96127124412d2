"""Do two versions of qtool write the same files? For changes that must not change behaviour.

    python benchmarks/same_files.py BEFORE AFTER -o FOLDER [--zoo] [--realdata FOLDER]
        [--packages FOLDER] [--only digits,blocks]

BEFORE and AFTER are Python interpreters, each with one version of qtool installed; this script runs
in a third or in one of them. Both convert, each case in a fresh process:

- digits, keywords, detector, sentences, tagger: the examples in all modes, digits also for each
  target, format and level of accuracy; language-model, also with its KV cache;
- tflite: the examples, random networks and those of torchvision as .tflite files;
- memory, blocks: folders of language models made here, an encoder and an ONNX file with external
  weights, in memory and block by block;
- zoo (--zoo): the sets `torchvision` and, of `transformers`, well-known ones of
  benchmarks/networks;
- realdata (--realdata): the trained networks of benchmarks/realdata.py;
- packaged (--packages): the set `packaged` of benchmarks/networks, unpacked as that says.

A file is the same if its graph, weights and codes are equal byte for byte, and its metadata up to
the wording of sentences. A plan is the same if all numbers, names and types in it
are equal in order. AFTER also reads what BEFORE wrote: it converts with its calibration to the same
bytes, and verifies its files. What is in FOLDER already is kept, so that a run that was ended goes
on; remove a case's files to repeat it. Exit code 1 if a case differs or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import qtool  # the installed version, before this checkout is on the path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.same import cases, commands
from benchmarks.same.differences import differences, folder_differences, leaves

LIMIT = 3600  # seconds for one case
REFUSED = "refused by both"
SIDES = ("before", "after")


def _cases(options: argparse.Namespace) -> dict[str, cases.Case]:
    made = {**cases.examples(), **cases.language_model(), **cases.tflite()}
    if options.zoo:
        made |= cases.zoo()
    if options.realdata:
        made |= cases.realdata(options.realdata)
    return made


def _commands(options: argparse.Namespace) -> dict[str, commands.Command]:
    made = commands.language_folders()
    return made | commands.packaged(options.packages) if options.packages else made


# ------------------------------------------------------------------------------------ one process


def write(name: str, case: cases.Case, folder: Path, former: Path | None) -> None:
    """FOLDER/NAME/model.{onnx,tflite}, NAME.json and NAME.calibration: a file, its plan's values,
    its calibration.

    With `former`, the calibration and the file of another version are read, too.
    """
    arguments = dict(case())
    model, data = arguments.pop("model"), arguments.pop("data")
    dynamic, form = arguments.pop("dynamic", None), arguments.pop("format", "qdq")
    one_step = arguments.pop("one_step", False)
    example = next(iter(cases.digits_model()["data"] if data is None else data))
    captured = qtool.capture_model(model, example, dynamic)
    calibration = None
    if data is not None and not one_step:
        calibration = qtool.calibrate(captured, data, **arguments)
        calibration.save(folder / f"{name}.calibration")
        quantized = qtool.convert(captured, calibration)
    else:
        quantized = qtool.quantize(captured, data, **arguments)
    file = folder / name / f"model.{'tflite' if form == 'tflite' else 'onnx'}"
    quantized.export(file, format=form)
    read = {}
    if former is not None and (former / name / file.name).exists():
        read["verify"] = _verified(former / name / file.name)
        if calibration is not None:
            before = qtool.Calibration.load(former / f"{name}.calibration")
            again = folder / f"{name}.again{file.suffix}"
            qtool.convert(captured, before).export(again, format=form)
            read["convert"] = differences(file, again) or "same"
            again.unlink()
    _mark(folder, name, {"plan": list(leaves(quantized.plan)), "read": read})


def _verified(file: Path) -> str:
    try:
        qtool.verify(file)
    except qtool.QtoolError as error:
        return f"{type(error).__name__}: {error}"
    return "same"


def _mark(folder: Path, name: str, values: Mapping[str, Any]) -> None:
    """Say that a case is complete."""
    (folder / f"{name}.json").write_text(json.dumps(values), encoding="utf-8")


def _alone(name: str, side: str, options: argparse.Namespace) -> None:
    """Run a case in this process; an error is its result."""
    import torch

    torch.set_num_threads(1)
    folder = options.output / side
    (folder / name).mkdir(parents=True, exist_ok=True)
    reads = side == "after" and not options.files_only
    try:
        if name in (known := _commands(options)):
            known[name](folder / name)
            _mark(folder, name, {"plan": [], "read": {}})
        else:
            former = options.output / "before" if reads else None
            write(name, _cases(options)[name], folder, former)
    except Exception:  # noqa: BLE001  # whatever it is, it is this case's result
        traceback.print_exc()
        sys.exit(1)


# ------------------------------------------------------------------------------------- comparing


def compare(name: str, before: Path, after: Path) -> str:
    """One line for a case: `equal`, or what differs."""
    errors = [_last_line(folder / f"{name}.error") for folder in (before, after)]
    if all(errors):
        kinds = {error.split(":")[0].rpartition(".")[2] for error in errors}
        is_refusal = len(kinds) == 1 and kinds <= {*qtool.__all__, commands.CommandError.__name__}
        return REFUSED if is_refusal else f"both fail: {errors[0]}; {errors[1]}"
    for folder, error in zip((before, after), errors, strict=True):
        if error:
            return f"only {folder.name} fails: {error}"
    parts = [folder_differences(before / name, after / name)]
    plans = [json.loads((f / f"{name}.json").read_text("utf-8")) for f in (before, after)]
    if plans[0]["plan"] != plans[1]["plan"]:
        parts.append("plan")
    parts += [f"{k} of the former: {v}" for k, v in plans[1]["read"].items() if v != "same"]
    different = ", ".join(part for part in parts if part)
    return f"differs: {different}" if different else "equal"


def _last_line(file: Path) -> str:
    """The last line of an error; empty if there is none."""
    lines = file.read_text("utf-8").strip().splitlines() if file.exists() else []
    return next((line for line in reversed(lines) if line and line[0] != " "), "")


# ------------------------------------------------------------------------------------ the command


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="Python with the former version")
    parser.add_argument("after", type=Path, help="Python with the new version")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--zoo", action="store_true", help="well-known networks of libraries, too")
    parser.add_argument("--realdata", type=Path)
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--only", help="beginnings of case names, separated by commas")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument(
        "--files-only", action="store_true", help="AFTER does not read what BEFORE wrote"
    )
    parser.add_argument("--sides", default=",".join(SIDES), help="which versions to run")
    parser.add_argument("--alone", nargs=2, metavar=("NAME", "SIDE"), help=argparse.SUPPRESS)
    return parser


def main() -> None:
    options = _options().parse_args()
    if options.alone:
        _alone(*options.alone, options)
        return
    chosen = tuple(options.only.split(",")) if options.only else ("",)
    names = [n for n in (*_cases(options), *_commands(options)) if n.startswith(chosen)]
    if options.list:
        print(*names, sep="\n")
        return
    sides, fine = options.sides.split(","), 0
    folders = [options.output / side for side in SIDES]
    for name in names:
        for side in sides:
            _start(name, side, options)
        if "after" in sides:
            line = compare(name, *folders)
            fine += line in {"equal", REFUSED}
            print(f"{name:<36} {line}", flush=True)
    if "after" in sides:
        print(f"{fine} of {len(names)} equal")
        sys.exit(fine != len(names))


def _start(name: str, side: str, options: argparse.Namespace) -> None:
    """One case in a fresh process, unless its result is there."""
    folder = options.output / side
    folder.mkdir(parents=True, exist_ok=True)
    if any((folder / f"{name}.{kind}").exists() for kind in ("json", "error")):
        return
    command = [str(getattr(options, side).absolute()), *sys.argv, "--alone", name, side]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT, check=False, env=environment
        )
        error = done.stderr if done.returncode else ""
    except subprocess.TimeoutExpired:
        error = f"Timeout: not ready in {LIMIT} seconds"
    if error:
        (folder / f"{name}.error").write_text(error, encoding="utf-8")


if __name__ == "__main__":
    main()
