"""qtool emulators: the list, and what is missing."""

import json
import subprocess
from pathlib import Path

import pytest

from qtool.plugins.emulators.cpus import CPUS
from tests.cli.conftest import Cli
from tests.docs.snippets import ROOT


@pytest.fixture
def nothing(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """No emulator is installed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("QTOOL_CACHE", str(tmp_path / "cache"))
    return cli


def test_what_is_missing_is_listed_with_the_page(nothing: Cli) -> None:
    message = nothing("emulators").stdout
    assert all(f"\n{name} " in message for name in CPUS)
    assert message.endswith("docs/emulators.md says how to install what is missing\n")
    printed = json.loads(nothing("emulators", "--json").stdout)
    assert set(printed["cpus"]) == set(CPUS)
    assert all(printed["cpus"].values())
    assert not (nothing.folder / "cache").exists()


def test_the_script_runs_the_commands_of_the_page(tmp_path: Path) -> None:
    """npm is replaced by a program that writes what it was called with."""
    (tmp_path / "npm").write_text("#!/bin/sh\necho $* > $QTOOL_CACHE/typed\n")
    (tmp_path / "npm").chmod(0o755)
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "QTOOL_CACHE": str(tmp_path)}
    script = str(ROOT / ".ci/emulators")
    subprocess.run([script, "WebAssembly"], env=variables, check=True)
    typed = (tmp_path / "typed").read_text()
    assert typed.endswith(f"--prefix {tmp_path}/emulators/web onnxruntime-web\n")
    done = subprocess.run([script, "Web"], env=variables, check=False, capture_output=True)
    assert (done.returncode, b"no commands for Web" in done.stderr) == (2, True)
