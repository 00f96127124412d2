"""qtool tune"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from qtool.cli import options, output, sources
from qtool.cli.number_types import Real

CHOICES = ("static", "dynamic", "int8-weights")


@click.command("tune")
@sources.apply(
    sources.model,
    sources.weights,
    sources.data,
    click.option(
        "--eval-data",
        required=True,
        help="What files are judged on: as --data, of other samples.",
    ),
    click.option(
        "--labels",
        metavar="KEY|FILE",
        help="Class numbers of --eval-data: the name of an array in its .npz, or a file.",
    ),
    options.eval_,
    options.minimize,
    options.output,
    click.option(
        "--max-drop",
        type=Real(),
        help="The most that the metric may lose, in its unit (0.01 of top-1 is one point): the "
        "end of the interval of the loss decides.",
    ),
    click.option(
        "--min-sqnr", type=Real(), help="The least signal-to-noise ratio of the outputs, in dB."
    ),
    click.option(
        "--min-speedup",
        type=Real(min=0, min_open=True),
        help="The least speed-up over float.",
    ),
    click.option("--max-size", type=click.IntRange(1), help="The most bytes of the file."),
    click.option(
        "--smallest", is_flag=True, help="Of what keeps the goals the smallest, not the fastest."
    ),
    click.option(
        "--confidence",
        default=0.95,
        show_default=True,
        type=Real(0, 1, max_open=True),
        help="Of the interval of the loss.",
    ),
    click.option("--budget", type=Real(min=0), help="Seconds to search, about."),
    click.option(
        "--evaluations",
        default=20,
        show_default=True,
        type=click.IntRange(1),
        help="The most files that are run on --eval-data.",
    ),
    click.option(
        "--choices",
        default=",".join(CHOICES),
        show_default=True,
        metavar="NAME,...",
        help="What a layer may be beside float: static, static-16, dynamic, int8-weights, "
        "int4-weights.",
    ),
    click.option(
        "--group",
        "groups",
        multiple=True,
        metavar="GLOB",
        help="Layers that are chosen for together; by default those of one operator that read the "
        "same tensor.",
    ),
    click.option(
        "--accuracy",
        default="fast,balanced",
        show_default=True,
        metavar="LEVEL,...",
        help="Levels of recovery to choose from.",
    ),
    options.recover,
    click.option(
        "--archive",
        type=sources.Path_,
        help="A folder that keeps what is found out: the same command goes on there.",
    ),
    click.option(
        "--front",
        type=sources.Path_,
        help="A folder for every model of the front; evaluations that are left explore it.",
    ),
    click.option(
        "--page",
        type=sources.Path_,
        help="An .html file for the front, what each layer got and why, and what was tried.",
    ),
    click.option(
        "--save-recipe", type=sources.Path_, help="A .toml or .json file for the best recipe."
    ),
    sources.batch_size,
    options.observer,
    options.target,
    options.recipe,
    sources.dynamic,
    options.json_,
)
def command(
    model: str,
    weights: Path | None,
    data: str,
    eval_data: str,
    labels: str | None,
    evaluate: str | None,
    minimize: tuple[str, ...],
    output_: Path,
    front: Path | None,
    page: Path | None,
    save_recipe: Path | None,
    batch_size: int,
    as_json: bool,
    **given: Any,
) -> None:
    """Search the fastest int8 file of MODEL that loses no more than it may.

    Layers that cost too much accuracy are left in float, or get another scheme. The best file is
    written whether every goal was reached or not; where one was not, the exit code is 1 and the
    distance is said. Ctrl-C ends the search with the best file so far.

    \b
    Example:
      qtool tune examples.digits.network:digits_net \\
          --weights examples/digits/weights.safetensors --data calib_data/digits \\
          --eval-data examples/digits/eval.npz --labels labels \\
          --max-drop 0.01 -o digits.tuned.onnx
    """
    import qtool
    from qtool.core.atomic import check_writable, write_atomic
    from qtool.frontends.captured_model import DEFAULT_OBSERVER
    from qtool.planning.targets import DEFAULT

    for path in filter(None, (output_, page, save_recipe)):
        check_writable(path, model, weights, data, eval_data)
    loaded = sources.load_model(model, weights)
    batches = sources.load_data(data, batch_size)
    judged = sources.load_data(eval_data, batch_size, labels)
    wanted = ("max_drop", "min_sqnr", "min_speedup", "max_size", "smallest", "confidence")
    goals = qtool.TuneGoals(**{name: given[name] for name in wanted})
    found = qtool.tune(
        loaded,
        batches,
        judged,
        sources.load_labels(labels, eval_data, judged),
        goals=goals,
        options=qtool.SearchOptions(
            choices=tuple(options.names(given["choices"]) or ()),
            groups=given["groups"],
            evaluations=given["evaluations"],
            budget=given["budget"],
            front=front is not None,
        ),
        function=options.load_metrics(evaluate),
        where=evaluate or "",
        lower_is_better=minimize,
        target=given["target"] or DEFAULT,
        observer=given["observer"] or DEFAULT_OBSERVER,
        recipe=given["recipe"],
        accuracy=tuple(options.names(given["accuracy"]) or ()),
        recover=options.names(given["recover"]),
        dynamic=sources.dynamic_of(given["dynamic"], batches),
        archive=given["archive"],
        progress=output.progress("calibrating", output.length_of(batches)),
    )
    with output.status("exporting and verifying"):
        found.export(output_)
        if front is not None:
            found.write_front(front)
    if page is not None:
        from qtool.search.report_page import tune_page

        write_atomic(page, tune_page(found, output_.stem))
    if save_recipe is not None:
        write_atomic(save_recipe, found.recipe_text(save_recipe.suffix).encode())
    if as_json:
        output.show_json({"file": str(output_), **found.to_json()})
    else:
        output.say(f"{output_}: {found}")
    if not found.reached:
        told = "; ".join(found.missed)
        click.echo(f"not reached: {told}; the best file was written all the same", err=True)
        raise SystemExit(1)
