"""qtool tune"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
from qtool.cli import options, output, source_options, sources, value_types
from qtool.cli.command import Command
from qtool.cli.reading import Reading, reads
from qtool.cli.records import record
from qtool.cli.source_options import MODEL, ModelOptions

from qtool.core.conversion_options import QuantizeOptions
from qtool.core.search_options import SearchGoals, SearchOptions
from qtool.evaluation.options import ReportOptions


@click.command("tune", cls=Command)
@source_options.apply(
    source_options.model,
    record("loading", ModelOptions, MODEL),
    source_options.data,
    reads("classes"),
    click.option(
        "--eval-data",
        required=True,
        help="Evaluation data in a form of --data; use other samples than for calibration.",
    ),
    click.option(
        "--labels",
        metavar="KEY|FILE",
        help="Class numbers of --eval-data: name of an array in its .npz, or a file.",
    ),
    options.eval_,
    record("measured", ReportOptions, "lower_is_better"),
    options.output,
    record("goals", SearchGoals),
    record("search", SearchOptions, "budget evaluations choices groups"),
    click.option(
        "--accuracy",
        default="fast,balanced",
        show_default=True,
        type=value_types.ACCURACIES,
        metavar="LEVEL,...",
        help="Accuracy levels (--accuracy of `qtool quantize`) to choose from.",
    ),
    record("how", QuantizeOptions, "observer target recipe recover ignore dynamic"),
    click.option(
        "--save-recipe",
        type=source_options.Path_,
        help="Write the best recipe to a .toml or .json file.",
    ),
    options.json_,
)
def command(
    model: str,
    loading: ModelOptions,
    reading: Reading,
    evaluate: str | None,
    measured: ReportOptions,
    goals: SearchGoals,
    search: SearchOptions,
    accuracy: tuple[str, ...],
    how: QuantizeOptions,
    output_: Path,
    save_recipe: Path | None,
) -> None:
    """Find the fastest int8 file of MODEL within an accuracy budget.

    Layers that cost too much accuracy stay in float or get another scheme. The best file is written
    even if a goal is missed; the exit code is then 1, and the distance to the goal is printed.
    Ctrl-C ends the search with the best file so far.

    \b
    Example:
      qtool tune examples.digits.network:digits_net \\
          --weights examples/digits/weights.safetensors --data calib_data/digits \\
          --eval-data examples/digits/eval.npz --labels labels \\
          --max-drop 0.01 -o digits.tuned.onnx
    """
    import qtool
    from qtool.core.atomic import check_writable
    from qtool.core.option_names import file_format, suffixes_of
    from qtool.planning.targets import target_for

    read = model, loading.weights, *reading.sources.named
    check_writable(output_, *read, suffixes=suffixes_of("qdq"))
    kind = file_format(output_, "qdq")
    how = replace(how, target=target_for(kind, how.target))
    if save_recipe is not None:
        check_writable(save_recipe, *read)
    sources.check_data(reading)
    function = options.load_metrics(evaluate)
    loaded = sources.load_model(model, loading)
    reading = reading.of(model, loaded)
    batches = sources.load_data(reading)
    result = qtool.tune(
        loaded,
        batches,
        *sources.load_eval_data(reading),
        goals=qtool.TuneGoals(**vars(goals)),
        options=search,
        function=function,
        where=evaluate or "",
        lower_is_better=measured.lower_is_better,
        accuracy=accuracy,
        format=kind,
        progress=output.stage("calibrating", output.length_of(batches)),
        **sources.with_dynamic(how, batches).keywords("mode", "accuracy"),
    )
    with output.track_task("exporting and verifying"):
        result.save(output_, recipe=save_recipe)
    if output.is_json():
        from qtool.cli.documents import WrittenFile

        output.show_json(WrittenFile(output_), result)
    else:
        output.show_summary(result.summary(str(output_)), result.details())
    if not result.reached:
        missed = "; ".join(result.missed)
        output.warn(f"goal missed: {missed}; the best file was written")
        raise SystemExit(1)
