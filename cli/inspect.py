"""qtool inspect"""

from __future__ import annotations

from pathlib import Path

import click
from qtool.cli import options, output


@click.command("inspect")
@click.argument("file", type=options.Path_)
@options.apply(options.json_)
def command(file: Path, as_json: bool) -> None:
    """Show what FILE holds.

    Of an ONNX file: every operator, the kernel that ONNX Runtime runs for it, its MACs and its
    quantization parameters. Of a calibration: every tensor and its range.

    \b
    Example:
      qtool inspect digits.int8.onnx
    """
    if file.suffix == ".onnx":
        _onnx(file, as_json)
    else:
        _calibration(file, as_json)


def _onnx(file: Path, as_json: bool) -> None:
    from qtool.verification import audit
    from qtool.verification.parameters import parameters

    with output.status("asking the runtime"):
        coverage = audit(file)
    params = parameters(file)
    if as_json:
        output.show_json(
            {"file": str(file), **coverage.to_json(), "parameters": [p.to_json() for p in params]}
        )
        return
    output.table(
        "operators",
        ("name", "operator", "runs as", "MACs", "why float"),
        [(r.name, r.op, r.kernel, f"{r.macs:,}", r.reason) for r in coverage.rows],
    )
    output.say("")
    output.table("parameters", ("tensor", "type", "scale", "zero point"), [p.row() for p in params])
    output.say(f"\n{coverage}")


def _calibration(file: Path, as_json: bool) -> None:
    from qtool import Calibration

    found = Calibration.load(file)
    rows = found.ranges()
    if as_json:
        output.show_json(
            {
                "file": str(file),
                "target": found.target,
                "samples": found.samples,
                "observer": str(found.observer),
                "fingerprint": found.fingerprint,
                "inputs": [str(i) for i in found.inputs],
                "ranges": {name: [low, high] for name, low, high in rows},
            }
        )
        return
    output.say(
        f"{file}: {found.samples} samples, target {found.target}, observer {found.observer}\n"
        f"inputs: {'; '.join(map(str, found.inputs))}\nmodel: {found.fingerprint}\n"
    )
    output.table(None, ("tensor", "low", "high"), [(n, f"{a:.6g}", f"{b:.6g}") for n, a, b in rows])
