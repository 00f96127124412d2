"""qtool emulators: the list, and what gets installed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from qtool.backends.onnxruntime import emulation
from qtool.backends.onnxruntime.emulation import CPUS, Family
from tests.cli.conftest import Cli


@pytest.fixture
def nothing(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """No emulator is installed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("QTOOL_CACHE", str(tmp_path / "cache"))
    return cli


def test_what_is_missing_is_listed_with_the_command(nothing: Cli) -> None:
    message = nothing("emulators").stdout
    assert all(f"\n{name} " in message for name in CPUS)
    assert message.endswith(
        "install what is missing with `qtool emulators install --arm --web --webgpu`\n"
    )
    assert nothing("emulators", "list").stdout == message
    printed = json.loads(nothing("emulators", "--json").stdout)
    assert set(printed["cpus"]) == set(CPUS)
    assert all(printed["cpus"].values())
    assert not (nothing.folder / "cache").exists()


@pytest.mark.parametrize(
    ("options", "families"),
    [
        ((), {Family.X86}),
        (("--arm",), {Family.X86, Family.ARM}),
        (("--arm", "--web", "--webgpu"), set(Family)),
    ],
)
def test_install_takes_what_is_asked_for(
    options: tuple[str, ...], families: set[Family], nothing: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Family] = []

    def install(wanted: Iterable[Family]) -> tuple[str, ...]:
        asked.extend(wanted)
        return ("something was installed",)

    monkeypatch.setattr(emulation, "install_emulators", install)
    message = nothing("emulators", "install", *options).stdout
    assert set(asked) == families
    assert message.startswith("something was installed\n")
    printed = json.loads(nothing("emulators", "install", *options, "--json").stdout)
    assert printed["installed"] == ["something was installed"]


def test_refusals(nothing: Cli) -> None:
    message = nothing("emulators", "--arm", code=2).stderr
    assert "--arm, --web and --webgpu are for `qtool emulators install`" in message
    assert "`sudo apt-get install --no-install-recommends qemu-user`" in nothing.refuses(
        "emulators", "install"
    )
