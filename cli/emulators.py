"""qtool emulators"""

from __future__ import annotations

import click
from qtool.cli import options, output, source_options
from qtool.cli.command import Command


@click.command("emulators", cls=Command)
@click.argument("action", type=click.Choice(["list", "install"]), default="list")
@source_options.apply(
    click.option("--arm", is_flag=True, help="Also install what the ARM processors need."),
    click.option("--web", is_flag=True, help="Also install what WebAssembly needs."),
    click.option("--webgpu", is_flag=True, help="Also install what the WebGPU provider needs."),
    options.json_,
)
def command(action: str, arm: bool, web: bool, webgpu: bool, as_json: bool) -> None:
    """List the processors that `qtool verify --cpu` can emulate here, or install emulators.

    `install` installs qemu-user with apt-get if root runs it, and otherwise prints the command to
    type. With --arm it also unpacks distribution packages and wheels for aarch64 into a cache
    folder (QTOOL_CACHE, or qtool in XDG_CACHE_HOME), with --web onnxruntime-web, and with --webgpu
    onnxruntime-webgpu with SwiftShader, the software adapter of Chromium.

    \b
    Example:
      qtool emulators install --arm --web
    """
    import qtool
    from qtool.backends.onnxruntime.emulation import Family, install_emulators

    optional = {Family.ARM: arm, Family.WEB: web, Family.WEBGPU: webgpu}
    if action == "list" and any(optional.values()):
        raise click.UsageError("--arm, --web and --webgpu are for `qtool emulators install`")
    done: tuple[str, ...] = ()
    if action == "install":
        done = install_emulators((Family.X86, *(f for f, wanted in optional.items() if wanted)))
    emulators = qtool.emulators()
    if as_json:
        from qtool.cli.documents import Installed

        output.show_json(emulators, Installed(done))
        return
    for sentence in done:
        output.say(sentence)
    output.show(emulators, as_json)
