"""qtool explain"""

from __future__ import annotations

from pathlib import Path

import click
from qtool.cli import options, output, sources


@click.command("explain")
@click.argument("int8_file", type=sources.Path_)
@sources.apply(
    click.option("--model", required=True, help="The float model, as for `qtool quantize`."),
    sources.weights,
    sources.data,
    click.option(
        "--labels", metavar="KEY", help="An array of the .npz given as --data that is no input."
    ),
    click.option(
        "--sample",
        "samples",
        multiple=True,
        type=click.IntRange(min=0),
        help="The number of a sample, from 0; by default all whose answer changed.",
    ),
    click.option(
        "--most",
        default=100,
        show_default=True,
        type=click.IntRange(1),
        help="How many samples are explained at most.",
    ),
    click.option(
        "--mended",
        type=sources.Path_,
        help="Writes INT8_FILE with the layers in float that bring the answers of all explained "
        "samples back.",
    ),
    sources.batch_size,
    sources.dynamic,
    options.json_,
)
def command(
    int8_file: Path,
    model: str,
    weights: Path | None,
    data: str,
    labels: str | None,
    samples: tuple[int, ...],
    most: int,
    mended: Path | None,
    batch_size: int,
    dynamic: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say which layers of INT8_FILE changed an answer: left in float they bring it back.

    \b
    Example:
      qtool explain digits.int8.onnx --model examples.digits.network:digits_net \\
          --weights examples/digits/weights.safetensors --data examples/digits/eval.npz \\
          --labels labels
    """
    import qtool
    from qtool.core.atomic import check_writable

    if mended is not None:
        check_writable(mended, int8_file, model, weights, data)
    loaded = sources.load_model(model, weights)
    batches = sources.load_data(data, batch_size, labels)
    found = qtool.explain(
        int8_file,
        loaded,
        batches,
        samples=samples or None,
        most=most,
        mended=mended,
        dynamic=sources.dynamic_of(dynamic, batches),
    )
    output.show(found, as_json)
