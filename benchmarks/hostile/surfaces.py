"""The surfaces that read what a stranger may have made, and the hostile inputs of each."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import documents
import numpy as np
import onnx
from mutations import damage, damage_json, hostile_values
from seeds import CANARY, MODULE, WORDS

Make = Callable[[Path, Random], list[str]]
"""Takes the folder of the seeds and random numbers, writes into the current folder, and returns the
arguments of a command."""


@dataclass(frozen=True)
class Surface:
    """A surface.

    Attributes:
        name: of the surface.
        share: relative number of inputs.
        make: makes one.
    """

    name: str
    share: int
    make: Make


@dataclass(frozen=True, eq=False)
class Case:
    """One input: a surface, a name and the random numbers that it is drawn with."""

    surface: Surface
    name: str
    random: Random


class Payload:
    """Runs a command where it is unpickled."""

    def __init__(self, canary: str) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.canary}",)


def _calibrate(model: str | Path, data: str | Path, *more: str, out: str = "o.calib") -> list[str]:
    return ["calibrate", str(model), "--data", str(data), "-o", out, "--observer", "minmax", *more]


def _damaged_file(source: Path, random: Random, name: str = "") -> str:
    place = Path(name or source.name)
    place.write_bytes(damage(source.read_bytes(), random))
    return str(place)


def _json_text(document: Any, random: Random, seeds: Path) -> str:
    """Return a tampered document as text: deep, no JSON, or with another value."""
    kind = random.randrange(12)
    if kind == 0:
        return random.choice(["[" * 100_000, "{", "null", "[]", '"a"', "", "NaN", '{"a":' * 50_000])
    text = json.dumps(damage_json(document, random, str(seeds / CANARY)))
    return damage(text.encode(), random).decode("latin-1") if kind == 1 else text


def _tampered(path: Path, random: Random, seeds: Path) -> None:
    path.write_text(_json_text(json.loads(path.read_text()), random, seeds), errors="replace")


def tflite(seeds: Path, random: Random) -> list[str]:
    path = _damaged_file(seeds / "q.tflite", random)
    return [random.choice(["inspect", "inspect", "verify"]), path]


def onnx_metadata(seeds: Path, random: Random) -> list[str]:
    model = onnx.load(seeds / "q.onnx")
    entry = random.choice(model.metadata_props)
    try:
        entry.value = (
            _json_text(json.loads(entry.value), random, seeds).encode("utf-8", "replace").decode()
        )
    except ValueError:
        entry.value = random.choice(["", "x" * 10_000, "[" * 100_000, "\x1b[31m"])
    onnx.save(model, "q.onnx")
    return [random.choice(["verify", "verify", "inspect"]), "q.onnx"]


def _edit_graph(model: onnx.ModelProto, random: Random) -> None:
    graph = model.graph
    node, stored = random.choice(graph.node), random.choice(graph.initializer)
    edits: list[Callable[[], object]] = [
        lambda: stored.dims.__setitem__(0, random.choice([-1, 0, 2**31, 2**62])),
        lambda: setattr(stored, "data_type", random.choice([0, 8, 16, 99])),
        lambda: setattr(stored, "raw_data", stored.raw_data[: random.randrange(8)]),
        lambda: _external(stored, random),
        lambda: node.input.__setitem__(0, random.choice([node.output[0], "", "none", "\x1b[31m"])),
        lambda: setattr(
            node, "op_type", random.choice(["", "Loop", "If", "Scan", "Nothing", "x y"])
        ),
        lambda: setattr(node, "domain", random.choice(["com.microsoft", "ai.onnx.ml", "own"])),
        lambda: node.output.append(node.output[0]),
        lambda: graph.node.append(node),
        lambda: graph.node.remove(node),
        lambda: graph.input[0].type.tensor_type.shape.dim.add(dim_value=random.choice([-5, 2**62])),
        lambda: setattr(
            graph.input[0].type.tensor_type, "elem_type", random.choice([0, 8, 14, 77])
        ),
        lambda: graph.input.append(graph.input[0]),
        lambda: graph.output[0].ClearField("type"),
        lambda: setattr(graph.output[0], "name", random.choice(["", "none", "a\nb"])),
        lambda: model.opset_import[0].__setattr__("version", random.choice([0, 1, 3, 999, -1])),
        lambda: setattr(model, "ir_version", random.choice([0, 2, 99])),
        lambda: node.attribute.append(onnx.helper.make_attribute("alpha", [2**60] * 3)),
        lambda: _functions(model, random),
        lambda: _loop(model, random),
    ]
    random.choice(edits)()


def _loop(model: onnx.ModelProto, random: Random) -> None:
    """Put a loop behind the first input that runs practically without end, or by its values."""
    graph, helper = model.graph, onnx.helper
    source = graph.input[0].name
    boolean, number = onnx.TensorProto.BOOL, onnx.TensorProto.INT64
    ports = [helper.make_tensor_value_info(*p) for p in (("i", number, []), ("go", boolean, []))]
    copies = [
        helper.make_node("Identity", [a], [b]) for a, b in (("go", "on"), ("spin_in", "spin_out"))
    ]
    ends = [helper.make_tensor_value_info("on", boolean, []), onnx.ValueInfoProto(name="spin_out")]
    state = onnx.ValueInfoProto(name="spin_in")
    body = helper.make_graph(copies, "b", [*ports, state], ends)
    runs, true = np.array(random.choice([2**62, 2**40, -1])), np.array(True)
    stored = {"runs": runs, "true": true, "large": np.array(1e17, np.float32)}
    graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in stored.items())
    count = random.choice(["runs", "", "values"])
    values = [
        helper.make_node("ReduceMax", [source], ["top"], keepdims=0),
        helper.make_node("Mul", ["top", "large"], ["more"]),
        helper.make_node("Cast", ["more"], ["values"], to=number),
    ]
    loop = helper.make_node("Loop", [count, "true", source], ["spun"], "spin", body=body)
    nodes = [*(values if count == "values" else []), loop, *graph.node]
    for node in graph.node:
        node.input[:] = ["spun" if name == source else name for name in node.input]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _external(stored: onnx.TensorProto, random: Random) -> None:
    stored.data_location = onnx.TensorProto.EXTERNAL
    stored.ClearField("raw_data")
    where = random.choice(["../x.npy", "/etc/passwd", "/dev/zero", "none", ".", ""])
    values = {"location": where, "offset": random.choice(["0", "-1", str(2**62)]), "length": "512"}
    for key, value in values.items():
        stored.external_data.add(key=key, value=value)


def _functions(model: onnx.ModelProto, random: Random) -> None:
    """Add functions that call the next one several times: a node becomes billions."""
    own = onnx.helper.make_opsetid("own", 1)
    model.opset_import.append(own)
    for i in range(40):
        calls = [
            onnx.helper.make_node(f"f{i + 1}", [f"x{k}"], [f"x{k + 1}"], domain="own")
            for k in range(random.choice([2, 8]))
        ]
        last = calls[-1].output[0]
        function = onnx.helper.make_function("own", f"f{i}", ["x0"], [last], calls, [own])
        model.functions.append(function)
    node = model.graph.node[0]
    model.graph.node.insert(0, onnx.helper.make_node("f0", [node.input[0]], ["f"], domain="own"))


def onnx_files(seeds: Path, random: Random) -> list[str]:
    if random.random() < 0.4:
        path = _damaged_file(seeds / "m.onnx", random)
    else:
        model = onnx.load(seeds / "m.onnx")
        for _ in range(random.randint(1, 2)):
            with suppress(ValueError, TypeError, IndexError):  # protobuf has no such value
                _edit_graph(model, random)
        path = "m.onnx"
        Path(path).write_bytes(model.SerializeToString())
    return random.choice([_calibrate(path, seeds / "x.npy"), ["inspect", path]])


def model_folders(seeds: Path, random: Random) -> list[str]:
    shutil.copytree(seeds / "bert", "bert")
    names = ["config.json", "config.json", "tokenizer_config.json", "tokenizer.json"]
    kind = random.randrange(11)
    if kind == 10:
        member = random.choice([*names, "model.safetensors"])
        Path("bert", member).unlink()
        os.mkfifo(Path("bert", member))
    elif kind < 6:
        _tampered(Path("bert") / random.choice(names), random, seeds)
    elif kind == 6:
        weights = Path("bert/model.safetensors")
        weights.write_bytes(damage(weights.read_bytes(), random))
    elif kind == 7:
        config = json.loads(Path("bert/config.json").read_text())
        odd = ["Trainer", "pipeline", "utils", "AutoModel", "os.system", "BertModel", "__doc__"]
        config["architectures"] = [random.choice(odd)]
        config["auto_map"] = random.choice([None, {"AutoModel": "code.Mine"}])
        Path("bert/config.json").write_text(json.dumps(config))
        Path("bert/code.py").write_text(f"import os\nos.system('touch {seeds / CANARY}')")
    elif kind == 8:
        Path("bert/model.safetensors").rename("bert/w.safetensors")
        place = random.choice(["/etc/passwd", "../w.safetensors", "w.safetensors", 3, None])
        index = {"weight_map": {"bert.embeddings.word_embeddings.weight": place}}
        Path("bert/model.safetensors.index.json").write_text(json.dumps(index))
    else:
        Path("bert/model.safetensors").unlink()
        payload = pickle.dumps(Payload(str(seeds / CANARY)))
        Path("bert/pytorch_model.bin").write_bytes(payload)
    return _calibrate("bert", seeds / "texts.txt", "--samples", "4", "--mode", "weight-only")


def _repacked(source: Path, target: str, change: Callable[[str, bytes], bytes]) -> str:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return target


def weight_files(seeds: Path, random: Random) -> list[str]:
    kind = random.randrange(5)
    if kind == 0:
        path = _damaged_file(seeds / "w.safetensors", random)
    elif kind == 1:
        path = _damaged_file(seeds / "w.pt", random)
    elif kind == 2:
        payload = pickle.dumps(Payload(str(seeds / CANARY)), 2)
        swap = random.choice([".pkl", "/byteorder", "/data/0"])
        path = _repacked(seeds / "w.pt", "w.pt", lambda n, d: payload if n.endswith(swap) else d)
    elif kind == 3:
        path = "w.pt"
        Path(path).write_bytes(pickle.dumps(Payload(str(seeds / CANARY)), random.randrange(6)))
    else:
        path = _repacked(
            seeds / "w.pt", "w.pt", lambda _, d: damage(d, random) if random.random() < 0.3 else d
        )
    return _calibrate(f"{MODULE}:net", seeds / "x.npy", "--weights", path)


def exported_programs(seeds: Path, random: Random) -> list[str]:
    code = f"__import__('os').system('touch {seeds / CANARY}')"

    def change(name: str, data: bytes) -> bytes:
        if not name.endswith(".json") or random.random() < 0.3:
            return damage(data, random) if random.random() < 0.1 else data
        if random.random() < 0.4:
            expression = json.dumps({"as_expr": {"expr_str": code}})[1:-1].encode()
            return data.replace(b'"as_int": 8', expression).replace(b'"as_int":8', expression)
        return _json_text(json.loads(data), random, seeds).encode("utf-8", "replace")

    if random.random() < 0.2:
        return _calibrate(_damaged_file(seeds / "m.pt2", random), seeds / "x.npy")
    return _calibrate(_repacked(seeds / "m.pt2", "m.pt2", change), seeds / "x.npy")


def calibrations(seeds: Path, random: Random) -> list[str]:
    data = (seeds / "m.calib").read_bytes()
    if random.random() < 0.3:
        Path("m.calib").write_bytes(damage(data, random))
    else:
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + size])
        inner = header["__metadata__"]["qtool_calibration"]
        header["__metadata__"]["qtool_calibration"] = _json_text(json.loads(inner), random, seeds)
        text = json.dumps(header).encode()
        Path("m.calib").write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    net = ["convert", f"{MODULE}:net", "--weights", str(seeds / "w.pt")]
    convert = [*net, "--calibration", "m.calib", "-o", "o.onnx", "--seconds", "0"]
    return random.choice([convert, ["inspect", "m.calib"], ["merge", "m.calib", "-o", "n.calib"]])


def _odd_array(random: Random, canary: str) -> Any:
    shape = random.choice([(16, 8), (0, 8), (8,), (), (16, 8, 1), (16, 0), (1, 8), (16, 9)])
    kind = random.randrange(9)
    values = np.random.default_rng(random.randrange(99)).normal(size=shape)
    if kind == 0:
        return values.astype(
            random.choice([">f4", "f2", "c8", "g", "i1", "u8", "?", "U4", "M8[s]"])
        )
    if kind == 1:
        return np.full(shape, random.choice([np.nan, np.inf, -np.inf, 3e38, 1e-45]), np.float32)
    if kind == 2:
        return np.array([Payload(canary)], object)
    if kind == 3:
        return np.zeros(shape, [("a", "f4"), ("b", "i4")])
    return values.astype(np.float32)


def arrays(seeds: Path, random: Random) -> list[str]:
    kind, path = random.randrange(5), Path("x.npy")
    if kind == 0:
        return _calibrate(seeds / "m.onnx", _damaged_file(seeds / "x.npy", random))
    if kind == 1:
        return _calibrate(seeds / "m.onnx", _damaged_file(seeds / "x.npz", random))
    if kind == 2:
        header = random.choice(
            [
                "{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999, 8)}",
                f"{{'descr': __import__('os').system('touch {seeds / CANARY}')}}",
                "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 8)}",
                "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
                "(" * 5000,
            ]
        )
        text = header.encode() + b"\n"
        path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) & 0xFFFF) + text)
    elif kind == 3:
        np.save(path, _odd_array(random, str(seeds / CANARY)), allow_pickle=True)
    else:
        path = Path("x.npz")
        names = random.sample(["x", "input", "labels", "\x1b[31m", "../a", "y"], 2)
        odd = {name: _odd_array(random, str(seeds / CANARY)) for name in names}
        np.savez_compressed(path, **odd)
    more = ["--state", random.choice(["auto", "a=b", "output=input"])] if not kind % 3 else []
    return _calibrate(seeds / "m.onnx", path, *more)


def images(seeds: Path, random: Random) -> list[str]:
    shutil.copytree(seeds / "images", "d")
    one = random.choice(sorted(Path("d").iterdir()))
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n(x) print\nshowpage\n"
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="/etc/passwd"/></svg>'
    kind = random.randrange(8)
    if kind < 3:
        one.write_bytes(damage(one.read_bytes(), random))
    elif kind == 3:
        one.write_bytes(random.choice([eps, svg, b"", b"P6 99999999 99999999 255 "]))
    elif kind == 4:
        os.mkfifo("d/z.png")
    elif kind == 5:
        Path("d/z.png").symlink_to(random.choice(["z.png", "/dev/zero", "none", "."]))
    elif kind == 6:
        big = bytearray(one.read_bytes())
        big[16:24] = struct.pack(">II", random.choice([60_000, 2**31 - 1]), 60_000)
        Path("d/z.png").write_bytes(bytes(big))
    else:
        Path("d/metadata.jsonl").write_text(
            _json_text({"file_name": "0.png", "label": "a"}, random, seeds), errors="replace"
        )
    transform = ["--transform", f"{MODULE}:tensor"]
    return _calibrate(f"{MODULE}:images", "d", *transform)


def labels(seeds: Path, random: Random) -> list[str]:
    if random.random() < 0.4:
        path = _damaged_file(seeds / "labels.npy", random, "l.npy")
    else:
        path = "l.npy"
        np.save(path, _odd_array(random, str(seeds / CANARY)), allow_pickle=True)
    given = ["--model", str(seeds / "m.onnx"), "--data", str(seeds / "x.npy"), "--seconds", "0.01"]
    key = random.choice([path, path, "none", "\x1b[31m", "x"])
    return ["evaluate", str(seeds / "q.onnx"), *given, "--labels", key, "--other-model"]


def _special(random: Random) -> str:
    kind = random.choice(
        ["fifo", "socket", "loop", "zero", "folder", "empty", "tty", "mode", "proc"]
    )
    if kind == "fifo":
        os.mkfifo("s")
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind("s")
    elif kind == "loop":
        Path("s").symlink_to("s")
    elif kind == "folder":
        Path("s").mkdir()
    elif kind in ("empty", "mode"):
        Path("s").touch(0o000 if kind == "mode" else 0o644)
    else:
        return {"zero": "/dev/zero", "tty": "/dev/tty", "proc": "/proc/self/mem"}[kind]
    end = random.choice(["", ".onnx", ".npy", ".npz", ".pt", ".pt2", ".tflite", ".toml", ".json"])
    Path("s").rename(f"s{end}")
    return f"s{end}"


def special_files(seeds: Path, random: Random) -> list[str]:
    path, net = _special(random), str(seeds / "m.onnx")
    file, x = str(seeds / "q.onnx"), str(seeds / "x.npy")
    return random.choice(
        [
            _calibrate(path, x),
            _calibrate(net, path),
            _calibrate(f"{MODULE}:net", x, "--weights", path),
            _calibrate(net, x, "--recipe", path),
            ["convert", net, "--calibration", path, "-o", "o.onnx"],
            ["verify", path],
            ["inspect", path],
            ["merge", path, path, "-o", "o.calib"],
            ["evaluate", file, "--model", net, "--data", x, "--labels", path],
            ["generate", path, "the cat"],
            ["generate", str(seeds / "llama/model.onnx"), "the cat", "--tokenizer", path],
        ]
    )


def output_paths(seeds: Path, random: Random) -> list[str]:
    odd = [
        "",
        ".",
        "/",
        "/dev/null",
        "/dev/full",
        "/proc/self/x.calib",
        "none/x.calib",
        "\x1b[31m.onnx",
    ]
    odd += [
        "a" * 300,
        "x" * 5000,
        "\udcff.calib",
        "a\nb.calib",
        "\0",
        str(seeds / "m.onnx"),
        "-",
        "~",
    ]
    path = random.choice([*odd, _special(random)])
    net, x = str(seeds / "m.onnx"), str(seeds / "x.npy")
    convert = ["convert", net, "--calibration", str(seeds / "m.calib"), "-o", path]
    return random.choice([_calibrate(net, x, out=path), convert, ["merge", x, x, "-o", path]])


def recipes(seeds: Path, random: Random) -> list[str]:
    regexes = ["(a+)+$", "(" * 500, "[", "a{1000}{1000}", ".*.*.*.*.*x", "\\", "(?P<a>.)(?P=a)"]
    rule: dict[str, Any] = {"select": random.choice(["0", f"re:{random.choice(regexes)}"])}
    key = random.choice(["as", "op", "observer", "block", "weight_observer", "select", "x"])
    rule[key] = random.choice([*hostile_values(str(seeds / CANARY)), "float", "int4-weights"])
    text = "[[rules]]\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in rule.items())
    Path("r.toml").write_text(text, errors="replace")
    return _calibrate(seeds / "m.onnx", seeds / "x.npy", "--recipe", "r.toml")


def generate(seeds: Path, random: Random) -> list[str]:
    prompts = ["", " ", "\udcff", "the " * 50_000, "\x1b[31m", "cat\0", "\ud800", " ".join(WORDS)]
    numbers = ["0", "-1", "1", "999999999999", "nan", "inf", "1e400", "x", "٣"]
    folder = seeds / "llama"
    if random.random() < 0.6:
        shutil.copytree(folder, "llama")
        folder = Path("llama")
        names = ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"]
        _tampered(folder / random.choice(names), random, seeds)
    more: list[str] = []
    for option in random.sample(["--tokens", "--temperature", "--top-k", "--top-p", "--seed"], 2):
        more += [option, random.choice(numbers)] if random.random() < 0.5 else []
    return ["generate", str(folder / "model.onnx"), random.choice(prompts), *more]


SURFACES = (
    Surface("tflite", 220, tflite),
    Surface("onnx-metadata", 150, onnx_metadata),
    Surface("onnx-files", 220, onnx_files),
    Surface("folders", 160, model_folders),
    Surface("weights", 100, weight_files),
    Surface("pt2", 100, exported_programs),
    Surface("calibrations", 110, calibrations),
    Surface("arrays", 110, arrays),
    Surface("images", 60, images),
    Surface("labels", 50, labels),
    Surface("special-files", 60, special_files),
    Surface("output-paths", 40, output_paths),
    Surface("recipes", 30, recipes),
    Surface("generate", 50, generate),
    Surface("tables", 100, documents.tables),
    Surface("reports", 120, documents.reports),
    Surface("scales", 120, documents.scales),
    Surface("judged", 120, documents.judged),
)
