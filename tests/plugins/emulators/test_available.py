"""Emulators that are installed, too old, or missing."""

import json
import subprocess
from pathlib import Path

import pytest

from qtool.backends.onnxruntime.session import ONNXRUNTIME
from qtool.core.errors import EmulationError
from qtool.plugins.emulators import available
from qtool.plugins.emulators.available import Missing, check_available, problems
from qtool.plugins.emulators.cpus import CPUS
from tests.docs.snippets import ROOT

ALL = CPUS.values()
HOW = "; docs/emulators.md says how to install what is missing"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Programs that are installed, with their versions; an x86-64 machine, an empty cache."""
    programs = {"qemu-x86_64": "8.1.2", "qemu-aarch64": "8.1.2", "node": "20.1.0"}
    monkeypatch.setenv("QTOOL_CACHE", str(tmp_path))
    monkeypatch.setattr(available, "machine_type", lambda: "x86_64")
    monkeypatch.setattr(available.shutil, "which", lambda n: f"/bin/{n}" if n in programs else None)
    monkeypatch.setattr(available, "_version_of", lambda path: programs[Path(path).name])
    return programs


def installed(cache: Path) -> None:
    version = ONNXRUNTIME.version()
    arm = cache / "emulators" / f"arm-onnxruntime-{version}"
    arm.mkdir(parents=True)
    (arm / "sysroot.json").write_text(json.dumps({"python": "3.11", "onnxruntime": version}))
    web = cache / "emulators/web/node_modules/onnxruntime-web"
    web.mkdir(parents=True)
    (web / "package.json").write_text('{"version": "1.30.0"}')


def test_all_is_here(here: dict[str, str], tmp_path: Path) -> None:
    installed(tmp_path)
    check_available(ALL)
    assert problems() == dict.fromkeys(CPUS, "")


def test_one_message_names_all_that_is_missing(here: dict[str, str]) -> None:
    here.clear()
    with pytest.raises(EmulationError) as caught:
        check_available(ALL)
    message = str(caught.value)
    assert "haswell, nehalem (qemu-x86_64 is not installed)" in message
    assert "wasm (node is not installed, onnxruntime-web is not installed)" in message
    assert message.endswith(HOW)


def test_some_of_all_are_enough(here: dict[str, str], tmp_path: Path) -> None:
    installed(tmp_path)
    assert check_available(ALL, some=True) == Missing()
    here.pop("qemu-aarch64")
    missing = check_available(ALL, some=True)
    assert missing.cpus == ("cortex-a53", "neoverse-n1", "neoverse-n2")
    assert missing.reason.startswith("cortex-a53, neoverse-n1, neoverse-n2 (qemu-aarch64 is not")
    assert missing.reason.endswith(HOW)
    with pytest.raises(EmulationError, match="cannot emulate cortex-a53"):
        check_available(ALL)
    here.clear()
    with pytest.raises(EmulationError, match="cannot emulate haswell"):
        check_available(ALL, some=True)


def test_an_old_emulator(here: dict[str, str], tmp_path: Path) -> None:
    installed(tmp_path)
    here["qemu-x86_64"] = "5.2.0"
    with pytest.raises(EmulationError, match=r"is version 5\.2\.0; 7\.2 or newer is needed\)"):
        check_available(ALL)
    check_available([CPUS["neoverse-n1"]])


def test_x86_is_not_emulated_elsewhere(
    here: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path)
    monkeypatch.setattr(available, "machine_type", lambda: "aarch64")
    with pytest.raises(EmulationError, match=r"which are for aarch64, not x86_64\)"):
        check_available(ALL)
    check_available([CPUS["cortex-a53"], CPUS["wasm"]])


def test_packages_of_another_version_do_not_count(here: dict[str, str], tmp_path: Path) -> None:
    installed(tmp_path)
    (arm,) = (tmp_path / "emulators").glob("arm-*")
    arm.rename(arm.with_name("arm-onnxruntime-0.1"))
    with pytest.raises(EmulationError, match=r"aarch64 packages of onnxruntime .* are not inst"):
        check_available([CPUS["cortex-a53"]])


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
