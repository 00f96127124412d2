"""qtool explain"""

from __future__ import annotations

from pathlib import Path

import click
from qtool.cli import options, output, source_options, sources
from qtool.cli.command import Command
from qtool.cli.reading import Reading, reads
from qtool.cli.records import record
from qtool.cli.source_options import MODEL, ModelOptions

from qtool.core.conversion_options import QuantizeOptions


@click.command("explain", cls=Command)
@click.argument("int8_file", type=source_options.ModelFile)
@source_options.apply(
    source_options.float_model,
    record("loading", ModelOptions, MODEL),
    source_options.data,
    reads(files="int8_file"),
    options.labels,
    click.option(
        "--sample",
        "sample",  # `samples` is the option of all commands
        multiple=True,
        type=click.IntRange(min=0),
        help="Number of a sample, from 0; by default all samples whose prediction changed.",
    ),
    click.option(
        "--max-samples",
        "most",
        default=100,
        show_default=True,
        type=click.IntRange(1),
        help="Explain at most this many samples.",
    ),
    click.option(
        "--save-fixed",
        "repaired_file",
        type=source_options.Path_,
        help="Write a copy of INT8_FILE that keeps the layers found in float, which restores the "
        "predictions of all explained samples.",
    ),
    record("how", QuantizeOptions, "dynamic"),
    options.other_model,
    options.json_,
)
def command(
    int8_file: Path,
    model: str,
    loading: ModelOptions,
    data: str,
    reading: Reading,
    labels: str | None,
    sample: tuple[int, ...],
    most: int,
    repaired_file: Path | None,
    how: QuantizeOptions,
    other_model: bool,
    as_json: bool,
) -> None:
    """Find the layers of INT8_FILE that cause changed predictions.

    Keeping these layers in float restores the prediction of the float model.

    \b
    Example:
      qtool explain digits.int8.onnx --model examples.digits.network:digits_net \\
          --weights examples/digits/weights.safetensors --data examples/digits/eval.npz \\
          --labels labels
    """
    import qtool
    from qtool.core.atomic import check_writable
    from qtool.core.option_names import suffixes_of

    if repaired_file is not None:
        check_writable(
            repaired_file, int8_file, model, loading.weights, data, suffixes=suffixes_of("qdq")
        )
    loaded = sources.load_model(model, loading, file=int8_file)
    batches = sources.load_data(reading.of(model, loaded), data, labels)
    explanation = qtool.explain(
        int8_file,
        loaded,
        batches,
        samples=sample or None,
        most=most,
        repaired_file=repaired_file,
        dynamic=sources.with_dynamic(how, batches).dynamic,
        other_model=other_model,
    )
    output.show(explanation, as_json, int8_file)
