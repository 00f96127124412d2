"""qtool verify"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from qtool.cli import options, output, sources
from qtool.cli.number_types import COUNT, DAY, Real


@click.command("verify")
@click.argument("int8_file", type=sources.Path_)
@sources.apply(
    sources.data_or_random,
    sources.batch_size,
    click.option(
        "--samples",
        default=256,
        show_default=True,
        type=COUNT,
        help="Random inputs; with --cpu also how many samples of --data are run.",
    ),
    options.cpu,
    click.option(
        "--timeout",
        default=600.0,
        show_default=True,
        type=Real(min=1, max=DAY),
        help="Seconds for each processor of --cpu.",
    ),
    options.json_,
)
def command(
    int8_file: Path,
    data: str | None,
    batch_size: int,
    samples: int,
    cpu: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Run INT8_FILE in qtool's integer engine and in ONNX Runtime, and compare every bit.

    The file may come from any tool that writes QDQ models. One that qtool wrote carries a test of
    itself, which needs no data: whether it was modified, and computes on this CPU what was planned.
    With --cpu, run the file in ONNX Runtime on other processors instead, by emulation, and compare
    with this machine; see `qtool emulators`. Exits with 1 if the self-test fails or an output
    differs, with --cpu if a code does.

    \b
    Example:
      qtool verify digits.int8.onnx --data calib_data/digits
    """
    batches = None if data is None else sources.load_data(data, batch_size)
    if cpu is None:
        found = _on_this_machine(int8_file, batches, samples, batch_size)
        same = found.exact and found.passed
    else:
        found = _elsewhere(int8_file, cpu, batches, samples, batch_size, timeout)
        same = found.identical
    output.show(found, as_json)
    if not same:
        raise SystemExit(1)


def _on_this_machine(
    file: Path, batches: Iterable[Any] | None, samples: int, batch_size: int
) -> Any:
    import qtool

    total = -(-samples // batch_size) if batches is None else output.length_of(batches)
    return qtool.verify(
        file,
        batches,
        samples=samples,
        batch_size=batch_size,
        progress=output.progress("comparing", total),
    )


def _elsewhere(
    file: Path,
    cpu: str,
    batches: Iterable[Any] | None,
    samples: int,
    batch_size: int,
    timeout: float,
) -> Any:
    import qtool

    return qtool.verify_on(
        file,
        cpu,
        batches,
        samples=samples,
        batch_size=batch_size,
        timeout=timeout,
        progress=output.progress("emulating", None),
    )
