"""qtool evaluate"""

from __future__ import annotations

from pathlib import Path

import click
from qtool.cli import options, output, source_options, sources
from qtool.cli.command import Command
from qtool.cli.reading import Reading, reads
from qtool.cli.records import record
from qtool.cli.source_options import MODEL, ModelOptions
from qtool.cli.value_types import COUNT

from qtool.core.conversion_options import QuantizeOptions
from qtool.evaluation.options import ReportOptions


@click.command("evaluate", cls=Command)
@click.argument("int8_file", type=source_options.ModelFile)
@source_options.apply(
    source_options.float_model,
    record("loading", ModelOptions, MODEL),
    options.other_model,
    source_options.data,
    reads("classes", files="int8_file"),
    options.labels,
    options.eval_,
    record("measured", ReportOptions, "lower_is_better seconds"),
    click.option(
        "--threads",
        default=1,
        show_default=True,
        type=COUNT,
        help="Number of threads to measure the latency with; `qtool bench` takes several.",
    ),
    options.runtime,
    record("how", QuantizeOptions, "dynamic"),
    options.json_,
)
def command(
    int8_file: Path,
    model: str,
    loading: ModelOptions,
    reading: Reading,
    evaluate: str | None,
    measured: ReportOptions,
    threads: int,
    runtime: str,
    how: QuantizeOptions,
    other_model: bool,
) -> None:
    """Compare INT8_FILE with its float model: accuracy, size, latency, integer share of the MACs.

    Of a language model it measures perplexity and the agreement of next tokens, and times a prompt
    and, with a KV cache, a step.

    \b
    Example:
      qtool evaluate digits.int8.onnx --model examples.digits.network:digits_net \\
          --weights examples/digits/weights.safetensors \\
          --data examples/digits/eval.npz --labels labels
    """
    import qtool
    from qtool.core.errors import FileError, missing
    from qtool.core.paths import is_file

    if not is_file(int8_file):
        raise missing(int8_file, FileError)
    sources.check_data(reading)
    function = options.load_metrics(evaluate)
    loaded, reading = sources.file_or_model(
        model, loading, reading, int8_file, reading.sources.data
    )
    batches, classes = sources.load_labelled(reading)
    share = sources.share_of(batches)
    result = qtool.evaluate(
        int8_file,
        loaded,
        share,
        classes,
        function=function,
        where=evaluate or "",
        lower_is_better=measured.lower_is_better,
        threads=threads,
        runtime=runtime,
        seconds=measured.seconds,
        dynamic=sources.with_dynamic(how, batches).dynamic,
        other_model=other_model,
        progress=output.stage("evaluating", output.length_of(share)),
    )
    output.show_report(result, title=int8_file)
