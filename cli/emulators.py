"""qtool emulators"""

from __future__ import annotations

import click
from qtool.cli import options, output, source_options
from qtool.cli.command import Command


@click.command("emulators", cls=Command)
@source_options.apply(options.json_)
def command(as_json: bool) -> None:
    """List the processors that `qtool verify --cpu` can emulate here, and what is missing.

    It names the page that says how to install that. Packages for emulators are in a cache folder:
    QTOOL_CACHE, or qtool in XDG_CACHE_HOME.

    \b
    Example:
      qtool emulators --json
    """
    import qtool

    output.show(qtool.emulators(), as_json)
