"""qtool evaluate"""

from __future__ import annotations

import itertools
from pathlib import Path

import click
from qtool.cli import options, output


@click.command("evaluate")
@click.argument("int8_file", type=options.Path_)
@options.apply(
    click.option("--model", required=True, help="The float model, as for `qtool quantize`."),
    options.weights,
    options.data,
    click.option("--labels", help="The array of class numbers in the .npz given as --data."),
    options.batch_size,
    click.option("--threads", default=1, show_default=True, help="For the latency."),
    options.json_,
)
def command(
    int8_file: Path,
    model: str,
    weights: Path | None,
    data: str,
    labels: str | None,
    batch_size: int,
    threads: int,
    as_json: bool,
) -> None:
    """Compare INT8_FILE with its float model: accuracy, size, latency, integer share.

    \b
    Example:
      qtool evaluate digits.int8.onnx --model examples.digits.network:digits_net \\
          --weights examples/digits/weights.safetensors \\
          --data examples/digits/eval.npz --labels labels
    """
    from torch import nn

    import qtool
    from qtool.analysis import evaluate
    from qtool.data import batches
    from qtool.data.array_files import read_labels

    numbers = read_labels(Path(data), labels) if labels else None
    loaded = options.load_model(model, weights)
    source = options.load_data(data, batch_size, (labels,) if labels else ())
    known = loaded if isinstance(loaded, nn.Module) else qtool.capture_model(loaded).graph.module
    stream = batches(source, known)
    first = next(stream, None)
    captured = qtool.capture_model(loaded, first)
    every = [] if first is None else itertools.chain([first], stream)
    found = evaluate(
        int8_file,
        captured.graph,
        output.progress("evaluating", output.length_of(source))(every),
        numbers,
        threads=threads,
    )
    if as_json:
        output.show_json(found.to_json())
        return
    before, after = found.float_, found.int8
    rows = [
        ("accuracy (top-1)", _percent(before.accuracy), _percent(after.accuracy)),
        ("size", f"{before.size_bytes / 1024:.0f} KiB", f"{after.size_bytes / 1024:.0f} KiB"),
        (
            f"latency, batch {found.batch}, {found.threads} thread",
            f"{before.latency_ms:.3f} ms",
            f"{after.latency_ms:.3f} ms",
        ),
        ("MACs in integer kernels", "0.00 %", f"{100 * after.integer_mac_share:.2f} %"),
    ]
    output.table(None, ("", "fp32", "int8"), rows)
    output.say(
        f"\n{found.samples} samples: int8 is {found.speedup:.2f}x as fast as fp32, agrees with "
        f"it on {100 * found.agreement:.2f} %, output SQNR {found.sqnr_db:.1f} dB"
    )


def _percent(value: float | None) -> str:
    return "no labels" if value is None else f"{100 * value:.2f} %"
