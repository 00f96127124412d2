"""qtool merge"""

from __future__ import annotations

from functools import reduce
from pathlib import Path

import click
from qtool.cli import options, source_options
from qtool.cli.calibrate import show_file
from qtool.cli.command import Command


@click.command("merge", cls=Command)
@click.argument("calibrations", nargs=-1, required=True, type=source_options.Path_)
@source_options.apply(options.calibration_output, options.json_)
def command(calibrations: tuple[Path, ...], output_: Path) -> None:
    """Merge CALIBRATIONS of one model that were made on different parts of the data.

    The result is byte-identical to a calibration on all of the data, in any order. The observer
    moving_average depends on the order, so its result is close but not identical.

    \b
    Example:
      qtool merge first.calib second.calib -o all.calib
    """
    from qtool import Calibration
    from qtool.core.errors import CalibrationError
    from qtool.core.paths import same_file
    from qtool.core.remedies import CallEdit

    if (same := same_file(calibrations)) is not None:
        raise CalibrationError(
            f"{same[0]} and {same[1]} are one file, whose samples would count twice",
            CallEdit("name each file once"),
        )
    merged = reduce(Calibration.merge, (Calibration.load(c) for c in calibrations))
    merged.save(output_)
    show_file(merged, output_, len(calibrations))
