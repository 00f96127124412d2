"""qtool verify"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from qtool.cli import options, output, source_options, sources
from qtool.cli.command import Command
from qtool.cli.reading import Reading, reads
from qtool.cli.value_types import Real

from qtool.core.limits import DAY

SAMPLES = 256
"""Random inputs; with --cpu also samples of --data."""


@click.command("verify", cls=Command)
@click.argument("int8_file", type=source_options.ModelFile)
@source_options.apply(
    source_options.data_or_random,
    reads(files="int8_file"),
    options.cpu,
    click.option(
        "--timeout",
        default=600.0,
        show_default=True,
        type=Real(min=1, max=DAY),
        help="Time limit in seconds for each processor of --cpu.",
    ),
    options.json_,
)
def command(
    int8_file: Path,
    reading: Reading,
    cpu: str | None,
    timeout: float,
) -> None:
    """Run INT8_FILE in qtool's integer engine and in ONNX Runtime, and compare every bit.

    Files of any tool that writes QDQ models can be verified, without --data on 256 random inputs
    or as many as --samples says. A file written by qtool contains a
    self-test, which needs no data: it checks that the file is unmodified and gives the expected
    results on this CPU. With --cpu, the file runs in ONNX Runtime on emulated processors instead
    and is compared with this machine. Exits with 1 if the self-test fails or an output differs for
    another reason than float nodes, which the runtime may fuse and round otherwise; with --cpu if a
    code differs.

    \b
    Example:
      qtool verify digits.int8.onnx --data calib_data/digits
    """
    import qtool

    samples = reading.options.samples or SAMPLES
    batches = sources.load_optional_data(reading)
    size = reading.batch_size
    how: dict[str, Any] = {"samples": samples, "batch_size": size}
    result: Any
    if cpu is None:
        total = -(-samples // size) if batches is None else output.length_of(batches)
        bar = output.stage("comparing", total)
        result = qtool.verify(int8_file, batches, progress=bar, **how)
        same = result.passed
    else:
        bar = output.stage("emulating", None)
        result = qtool.verify_on(int8_file, cpu, batches, timeout=timeout, progress=bar, **how)
        same = result.identical
    output.show(result, int8_file)
    if not same:
        raise SystemExit(1)
