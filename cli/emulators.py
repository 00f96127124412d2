"""qtool emulators"""

from __future__ import annotations

import click
from qtool.cli import options, output, sources


@click.command("emulators")
@click.argument("action", type=click.Choice(["list", "install"]), default="list")
@sources.apply(
    click.option("--arm", is_flag=True, help="Install what the ARM processors need, too."),
    click.option("--web", is_flag=True, help="Install what WebAssembly needs, too."),
    options.json_,
)
def command(action: str, arm: bool, web: bool, as_json: bool) -> None:
    """Say which processors `qtool verify --cpu` can emulate here; or install what is missing.

    `install` gets qemu-user by apt-get, where root runs it, and says what to type otherwise. With
    --arm it unpacks packages of the distribution and wheels for aarch64 into a cache folder
    (QTOOL_CACHE, or qtool in XDG_CACHE_HOME), with --web onnxruntime-web.

    \b
    Example:
      qtool emulators install --arm --web
    """
    import qtool
    from qtool.verification.emulation import Family, install_emulators

    if action == "list" and (arm or web):
        raise click.UsageError("--arm and --web are for `qtool emulators install`")
    done: tuple[str, ...] = ()
    if action == "install":
        added = ((Family.ARM, arm), (Family.WEB, web))
        done = install_emulators((Family.X86, *(family for family, asked in added if asked)))
    found = qtool.emulators()
    if as_json:
        output.show_json({**found.to_json(), "installed": list(done)})
        return
    for sentence in done:
        output.say(sentence)
    output.show(found, as_json)
