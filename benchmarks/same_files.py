"""Do two versions of qtool write the same files? For changes that must not change behaviour.

    python benchmarks/same_files.py BEFORE AFTER -o FOLDER [--realdata FOLDER] [--only digits,zoo]

BEFORE and AFTER are Python interpreters, each with one version of qtool installed. Both quantize
every network of benchmarks/zoo (with torchvision and transformers), the examples in several modes,
targets and accuracies, and with --realdata the trained networks of benchmarks/networks.py. A file
is the same if its graph and weights are equal byte for byte, and its metadata up to FORMER_NAMES
and the wording of sentences. A plan is the same if all numbers, names and types in it are equal in
order. The version AFTER also reads what BEFORE wrote: it converts with its calibration to the same
bytes, and verifies its files. What is in FOLDER already is kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIMIT = 3600  # seconds for one case
FORMER_NAMES = {
    "equalize": "cross-layer-equalization",
    "smooth": "smooth-quant",
    "round": "gptq",
    "bias": "bias-correction",
    "refit": "weight-scale-search",
    "renorm": "batch-norm-reestimation",
    "learn": "learned-scales",
}
"""Names in metadata and plans that changed between the versions that were compared last."""

Case = Callable[[], Mapping[str, Any]]


# ------------------------------------------------------------------------------------- the cases


def cases(realdata: Path | None) -> dict[str, Case]:
    """Case name -> the arguments of `qtool.quantize` and `export`, made when it is its turn."""
    return {**_digits(), **_language_model(), **_zoo(), **(_realdata(realdata) if realdata else {})}


def _digits() -> dict[str, Case]:
    variants: dict[str, dict[str, Any]] = {
        "default": {},
        "fast": {"accuracy": "fast"},
        "best": {"accuracy": "best"},
        "qoperator": {"format": "qoperator"},
        "dynamic": {"mode": "dynamic"},
        "weight-only": {"mode": "weight-only"},
        "int4": {"mode": "weight-only-int4"},
        "histogram": {"observer": "entropy"},
        "without-data": {"data": None},
        "every-step": {"recover": ["equalize", "smooth", "refit", "round", "bias", "renorm"]},
        **{f"target-{t}": {"target": t} for t in ("onnxruntime-x86-vnni", "onnxruntime-arm")},
        **{f"target-{t}": {"target": t} for t in ("openvino", "tensorrt", "tflite", "qnn")},
    }
    return {f"digits-{n}": lambda v=v: {**_digits_model(), **v} for n, v in variants.items()}


def _digits_model() -> dict[str, Any]:
    import numpy as np
    import torch
    from safetensors.torch import load_file

    from examples.digits.network import digits_net

    model = digits_net()
    model.load_state_dict(load_file(ROOT / "examples/digits/weights.safetensors"))
    files = sorted((ROOT / "calib_data/digits").glob("*.np[yz]"))
    data = [torch.from_numpy(a) for f in files for a in _arrays(np.load(f))]
    return {"model": model.eval(), "data": data}


def _arrays(loaded: Any) -> list[Any]:
    return [loaded] if hasattr(loaded, "dtype") else [loaded[n] for n in loaded.files]


def _language_model() -> dict[str, Case]:
    variants: dict[str, dict[str, Any]] = {
        "static": {},
        "dynamic": {"mode": "dynamic"},
        "int4": {"mode": "weight-only-int4"},
        "int4-round": {"mode": "weight-only-int4", "recover": ["round"]},
    }
    tasks = {"": None, "-with-cache": "text-generation-with-past"}
    return {
        f"language-model{suffix}-{n}": lambda v=v, t=t: {**_decoder(t), **v}
        for suffix, t in tasks.items()
        for n, v in variants.items()
    }


def _decoder(task: str | None) -> dict[str, Any]:
    import networks

    networks.let_torchvision_import()
    load_model, load_data = _loaders()
    home = ROOT / "examples/language_model"
    model = load_model(home / "model", task=task)
    text = home / "calibration.txt"
    data = load_data(text, 32, model=model, folder=home / "model", max_length=96)
    one_step = task is not None  # nested inputs: `convert` cannot bind the calibration's batch
    return {"model": model, "data": data, "dynamic": data.dynamic, "one_step": one_step}


def _loaders() -> tuple[Any, Any]:
    try:
        from qtool import load_data, load_model
    except (ImportError, AttributeError):  # before they were public
        from qtool.sources import load_data, load_model
    return load_model, load_data


def _zoo() -> dict[str, Case]:
    from benchmarks.zoo.networks import NETWORKS

    return {f"zoo-{n}": lambda n=n: _zoo_network(NETWORKS[n]) for n in NETWORKS}


def _zoo_network(network: Any) -> dict[str, Any]:
    import torch

    torch.manual_seed(0)
    model = network.build().eval()
    generator = torch.Generator().manual_seed(0)
    data = [network.inputs(4, generator) for _ in range(4)]
    dynamic = {k: dict(v) for k, v in network.dynamic.items()} or None
    return {"model": model, "data": data, "dynamic": dynamic}


def _realdata(folder: Path) -> dict[str, Case]:
    import networks

    def case(name: str) -> dict[str, Any]:
        loaded = networks.load(folder, name)
        return {"model": loaded.model, "data": loaded.calibration, "dynamic": loaded.dynamic}

    return {f"realdata-{n}": lambda n=n: case(n) for n in networks.NETWORKS}


# ------------------------------------------------------------------------------------ one process


def write(name: str, case: Case, folder: Path, old: Path | None) -> None:
    """FOLDER/NAME.{onnx,json,calibration}: a file, its plan's values, its calibration.

    With `old`, the calibration and the file of another version are read, too.
    """
    import torch

    import qtool

    torch.set_num_threads(1)
    arguments = dict(case())
    model, data = arguments.pop("model"), arguments.pop("data")
    dynamic, form = arguments.pop("dynamic", None), arguments.pop("format", "qdq")
    one_step = arguments.pop("one_step", False)
    example = next(iter(_digits_model()["data"] if data is None else data))
    captured = qtool.capture_model(model, example, dynamic)
    calibration = None
    if data is not None and not one_step:
        calibration = qtool.calibrate(captured, data, **arguments)
        calibration.save(folder / f"{name}.calibration")
        quantized = qtool.convert(captured, calibration)
    else:
        quantized = qtool.quantize(captured, data, **arguments)
    quantized.export(folder / f"{name}.onnx", format=form)
    read = {}
    if old is not None:
        read["verify"] = _verified(qtool, old / f"{name}.onnx")
        if calibration is not None:
            former = qtool.Calibration.load(old / f"{name}.calibration")
            again = folder / f"{name}.again.onnx"
            qtool.convert(captured, former).export(again, format=form)
            read["convert"] = differences(folder / f"{name}.onnx", again) or "same"
            again.unlink()
    values = {"plan": list(leaves(quantized.plan)), "read": read}
    (folder / f"{name}.json").write_text(json.dumps(values), encoding="utf-8")


def _verified(qtool: Any, file: Path) -> str:
    try:
        qtool.verify(file)
    except qtool.QtoolError as error:
        return f"{type(error).__name__}: {error}"
    return "same"


def leaves(value: Any) -> Iterator[Any]:
    """Numbers, names and types of a plan in order. Names of fields and sentences are left out."""
    if dataclasses.is_dataclass(value):
        value = [getattr(value, f.name) for f in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        value = [item for key in sorted(value, key=str) for item in (str(key), value[key])]
    elif isinstance(value, (set, frozenset)):
        value = sorted(map(str, value))
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif not (isinstance(value, str) and " " in value):
        yield _leaf(value)


def _leaf(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return str(value.value) if isinstance(value.value, int) else type(value.value).__name__
    if isinstance(value, str):
        return FORMER_NAMES.get(value, value)
    if value is None or isinstance(value, (int, float)):
        return repr(value)
    return type(value).__name__


# ------------------------------------------------------------------------------------- comparing


def differences(before: Path, after: Path) -> str:
    """What differs between two ONNX files; empty if nothing does."""
    import onnx

    one, two = (onnx.load(f) for f in (before, after))
    notes = [_metadata(m) for m in (one, two)]
    for model in (one, two):
        del model.metadata_props[:]
        model.producer_version = ""
    found = []
    if one.SerializeToString(deterministic=True) != two.SerializeToString(deterministic=True):
        found.append("graph or weights")
    keys = sorted(set(notes[0]) | set(notes[1]))
    found += [f"metadata {k}" for k in keys if notes[0].get(k) != notes[1].get(k)]
    return ", ".join(found)


def _metadata(model: Any) -> dict[str, Any]:
    return {p.key: _normal(_parsed(p.value)) for p in model.metadata_props}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _normal(value: Any) -> Any:
    if isinstance(value, dict):
        return {FORMER_NAMES.get(k, k): _normal(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_normal(v) for v in value]
    if isinstance(value, str) and " " in value:
        return "a sentence"
    return FORMER_NAMES.get(value, value) if isinstance(value, str) else value


def compare(name: str, before: Path, after: Path) -> str:
    """One line for a case: `same`, or what differs."""
    errors = [(f / f"{name}.error") for f in (before, after)]
    if all(e.exists() for e in errors):
        last = [e.read_text(encoding="utf-8").strip().splitlines()[-1] for e in errors]
        return "refused by both" if last[0].split(":")[0] == last[1].split(":")[0] else str(last)
    for error in errors:
        if error.exists():
            return f"only {error.parent.name} fails: {error.read_text().strip().splitlines()[-1]}"
    found = [differences(before / f"{name}.onnx", after / f"{name}.onnx")]
    plans = [json.loads((f / f"{name}.json").read_text()) for f in (before, after)]
    if plans[0]["plan"] != plans[1]["plan"]:
        found.append("plan")
    found += [f"{k} of the former: {v}" for k, v in plans[1]["read"].items() if v != "same"]
    return ", ".join(f for f in found if f) or "same"


# ------------------------------------------------------------------------------------ the command


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path, help="Python with the former version")
    parser.add_argument("after", type=Path, help="Python with the new version")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--realdata", type=Path)
    parser.add_argument("--only", help="beginnings of case names, separated by commas")
    parser.add_argument(
        "--files-only", action="store_true", help="AFTER does not read what BEFORE wrote"
    )
    parser.add_argument("--sides", default="before,after", help="which versions to run")
    options = parser.parse_args()
    known = [n for n in cases(options.realdata) if _chosen(n, options.only)]
    folders = {side: options.output / side for side in ("before", "after")}
    same = total = 0
    for name in known:
        for side in options.sides.split(","):
            folders[side].mkdir(parents=True, exist_ok=True)
            _start(name, getattr(options, side), folders, side, options)
        if "after" in options.sides:
            line = compare(name, folders["before"], folders["after"])
            total, same = total + 1, same + (line in {"same", "refused by both"})
            print(f"{name:<40} {line}", flush=True)
    print(f"{same} of {total} the same")


def _chosen(name: str, only: str | None) -> bool:
    return only is None or name.startswith(tuple(only.split(",")))


def _start(
    name: str, python: Path, folders: Mapping[str, Path], side: str, options: argparse.Namespace
) -> None:
    """One case in a fresh process, unless its result is there."""
    folder = folders[side]
    if any((folder / f"{name}.{kind}").exists() for kind in ("json", "error")):
        return
    command = [str(python), __file__, "--one", name, str(folder)]
    reads = side == "after" and not options.files_only
    command += [str(folders["before"]) if reads else "-", str(options.realdata or "-")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode:
        (folder / f"{name}.error").write_text(done.stderr, encoding="utf-8")


def _one(name: str, folder: str, old: str, realdata: str) -> None:
    import qtool  # noqa: F401  # the installed version, not the one next to this script

    sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
    case = cases(None if realdata == "-" else Path(realdata))[name]
    try:
        write(name, case, Path(folder), None if old == "-" else Path(old))
    except Exception:  # noqa: BLE001  # whatever it is, it is this case's result
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    if "--one" in sys.argv:
        _one(*sys.argv[2:])
    else:
        sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
        main()
