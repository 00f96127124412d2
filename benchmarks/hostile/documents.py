"""Hostile tables, reports, scales of other tools, and files among those that are judged."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from mutations import damage, damage_json, hostile_values
from seeds import CANARY

_CELLS = ("", "nan", "inf", "-inf", "1e400", "x", "\x1b[31m", "\0", "1,5", '"', "'", "٣", "=1+1")


def tables(seeds: Path, random: Random) -> list[str]:
    """Data in a .csv, .json or .jsonl file: other cells, rows, headers and bytes."""
    kind, values = random.choice(["csv", "jsonl", "json"]), np.load(seeds / "x.npy")
    names = [f"c{i}" for i in range(values.shape[1])]
    rows: Any = [dict(zip(names, map(float, row), strict=True)) for row in values]
    if kind == "csv":
        cells = [names, *([str(v) for v in row.values()] for row in rows)]
        for _ in range(random.randrange(3)):
            line = random.choice(cells)
            line[random.randrange(len(line))] = random.choice([*_CELLS, "9" * 200_000, "a\nb"])
            line.extend(["1"] * random.choice([0, 0, 1, 70_000]))
        text = "\n".join(map(",".join, cells))
    else:
        rows = damage_json(rows, random, str(seeds / CANARY))
        text = json.dumps(rows) if kind == "json" else "\n".join(map(json.dumps, rows))
        text = random.choice([text] * 9 + ["[" * 100_000, text + "\n{", '{"a": 1}', "[]"])
    data = text.encode("utf-8", "replace")
    Path(f"t.{kind}").write_bytes(damage(data, random) if random.random() < 0.4 else data)
    more = [] if random.random() < 0.7 else ["--column", random.choice(["c0", "none", "", "c0,c0"])]
    net = ["calibrate", str(seeds / "m.onnx"), "--observer", "minmax", "-o", "o.calib"]
    judged = ["evaluate", str(seeds / "q.onnx"), "--model", str(seeds / "m.onnx"), "--other-model"]
    command = random.choice([net, [*judged, "--seconds", "0", "--labels", "c0"]])
    return [*command, "--data", f"t.{kind}", *more]


def reports(seeds: Path, random: Random) -> list[str]:
    """A report.json with other values, or damaged as a text."""
    document = json.loads((seeds / "report.json").read_text())
    text = json.dumps(damage_json(document, random, str(seeds / CANARY)))
    data = text.encode("utf-8", "replace")
    odd = [b"[" * 100_000, b"null", b"\xff\xfe", b"{}"]
    data = random.choice([data] * 6 + [damage(data, random)] * 3 + [random.choice(odd)])
    Path("r.json").write_bytes(data)
    return ["report", "r.json", "-o", "page"]


def scales(seeds: Path, random: Random) -> list[str]:
    """Scales in a QDQ file, or in encodings of AIMET of three versions."""
    if random.random() < 0.5:
        model = onnx.load(seeds / "q.onnx")
        stored = random.choice(model.graph.initializer)
        size = random.choice([0, 1, 3, 4, 16, 17])
        odd = np.full(size, random.choice([0, -1, np.nan, np.inf, 1e-45, 6e4]), np.float32)
        shaped = random.choice([odd, odd.reshape(-1, 1), np.float32(0.1), odd.astype(np.float16)])
        stored.CopyFrom(onnx.numpy_helper.from_array(shaped, stored.name))
        path = Path("s.onnx")
        path.write_bytes(model.SerializeToString())
    else:
        path = Path(random.choice(["s.encodings", "s.json"]))
        entry = {"name": "x", "bw": 8, "dtype": "INT", "is_sym": False, "enc_type": "PER_TENSOR"}
        entry |= {"scale": [0.1], "offset": [-10]}
        legacy = {"bitwidth": 8, "dtype": "int", "is_symmetric": "False", "min": -1, "max": 2}
        flat = {"name": "x", "output_dtype": "uint8", "y_scale": 0.1, "y_zero_point": 3, "axis": 0}
        parts: Any = random.choice(
            [
                {"activation_encodings": {"x": [legacy]}, "param_encodings": {"w": [legacy] * 3}},
                {"activation_encodings": [entry], "param_encodings": [dict(entry, name="w")]},
                {"encodings": [flat, dict(flat, name="w", y_scale=[0.1, 0.2])]},
            ]
        )
        version = random.choice(["0.6.1", "1.0.0", "2.0.0", *hostile_values("x")[:6]])
        text = json.dumps(damage_json({"version": version, **parts}, random, str(seeds / CANARY)))
        data = text.encode("utf-8", "replace")
        path.write_bytes(damage(data, random) if random.random() < 0.2 else data)
    net = ["convert", str(seeds / "m.onnx"), "-o", "o.onnx", "--seconds", "0"]
    return [*net, "--scales", str(path), "--calibration", str(seeds / "m.calib")]


def judged(seeds: Path, random: Random) -> list[str]:
    """A damaged file among those that are compared and timed."""
    source = random.choice(["q.onnx", "m.onnx", "q.tflite"])
    path = Path(source).with_stem("damaged")
    path.write_bytes(damage((seeds / source).read_bytes(), random))
    net, data = str(seeds / "m.onnx"), ["--data", str(seeds / "x.npy")]
    return random.choice(
        [
            ["bench", str(path), net, "--seconds", "0.01"],
            ["compare", str(path), net, *data, "--seconds", "0.01"],
            ["gate", str(path), "--against", net, *data],
            ["gate", str(seeds / "q.onnx"), "--against", str(path), *data],
            ["explain", str(path), "--model", net, *data],
            ["report", str(path), "--model", net, *data, "-o", "page", "--seconds", "0.01"],
            ["verify", str(path), *data],
            ["quantize", str(path), *data, "-o", "o.onnx", "--seconds", "0"],
        ]
    )
