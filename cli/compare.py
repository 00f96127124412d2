"""qtool compare"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from qtool.cli import options, output
from qtool.cli import report as shared


@click.command("compare")
@click.argument("files", nargs=-1, required=True, type=options.Path_)
@options.apply(
    options.data,
    click.option("-o", "--output", "output_", type=options.Path_, help="A folder for the report."),
    click.option(
        "--reference",
        type=options.Path_,
        help="Which of FILES is the reference; by default the first.",
    ),
    shared.labels,
    shared.eval_,
    shared.minimize,
    options.batch_size,
    shared.batch_sizes,
    shared.threads,
    shared.seconds,
    shared.max_drop,
    shared.min_speedup,
    options.min_coverage,
    options.json_,
)
def command(
    files: tuple[Path, ...],
    output_: Path | None,
    reference: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Put several ONNX FILES side by side: accuracy, speed, size; made by qtool or not.

    \b
    Example:
      qtool compare float.onnx digits.int8.onnx other-tool.onnx \\
          --data examples/digits/eval.npz --labels labels -o compared
    """
    from qtool.analysis.restore import read_onnx
    from qtool.analysis.side_by_side import measure_files
    from qtool.errors import DataError
    from qtool.page import write_report
    from qtool.page.folder import check_folder

    if output_ is not None:
        check_folder(output_)
    if reference is not None and reference not in files:
        files = (reference, *files)
    if len(files) < 2:
        raise DataError("there is one file; give two or more to compare")
    for file in files:
        read_onnx(file)
    data = shared.load(given["data"], given["batch_size"], given["labels"])
    place = files.index(reference) if reference is not None else 0
    title = output_.resolve().name if output_ is not None else "compared"
    asked = shared.wanted(title, given)

    def measure(keep: Path | None) -> Any:
        return measure_files(files, data, asked, reference=place, keep=keep, bars=shared.bars)

    found = measure(None) if output_ is None else write_report(output_, measure)
    if not as_json:
        _table(found)
    shared.finish(found, output_, as_json)


def _table(found: Any) -> None:
    from qtool.page.render import FILTERS

    measure, percent, size = FILTERS["measure"], FILTERS["percent"], FILTERS["bytes"]
    metrics, models = found.accuracy.metrics, found.models
    rows = [(m.name, *(measure(v, m) for v in m.values)) for m in metrics]
    outcomes = found.accuracy.models
    rows.append(
        ("same answer", *(percent(o.agreement.value) if o.agreement else "" for o in outcomes))
    )
    rows.append(("output SQNR dB", "reference", *(FILTERS["db"](o.sqnr_db) for o in outcomes[1:])))
    for timing in found.latency:
        title = f"batch {timing.batch}, {timing.threads} thread{'' if timing.threads == 1 else 's'}"
        pairs = zip(timing.models, timing.ratios, strict=True)
        rows.append((title, *(f"{s.median:.3f} ms ({r.median:.2f}x)" for s, r in pairs)))
    rows.append(("size", *(size(m.size_bytes) for m in models)))
    rows.append(("MACs in integer kernels", *(percent(m.integer_mac_share) for m in models)))
    output.table(None, ("", *(m.name for m in models)), rows)
    output.say("")
