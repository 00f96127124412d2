"""Installing: which clients are called, and that a failure leaves nothing half-done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qtool.backends.onnxruntime.emulation import available, install
from qtool.backends.onnxruntime.emulation.cache_folder import (
    arm_folder,
    sysroot,
    web_folder,
    web_version,
    webgpu_folder,
)
from qtool.backends.onnxruntime.emulation.cpus import Family
from qtool.backends.onnxruntime.emulation.install import install_emulators
from qtool.backends.onnxruntime.session import ONNXRUNTIME
from qtool.core.errors import EmulationError, FileError

VERSION = ONNXRUNTIME.version() or ""


class Clients:
    """In place of apt-get, dpkg, pip and npm: keeps what is typed, and writes what they would."""

    def __init__(self) -> None:
        self.typed: list[str] = []
        self.fails = ""

    def __call__(self, words: Any, title: str, timeout: float | None, **options: Any) -> str:
        line = " ".join(map(str, words))
        self.typed.append(line)
        if self.fails and self.fails in line:
            raise EmulationError(f"{title} fails")
        for part, act in self.acts.items():
            if part in line:
                return act(list(map(str, words))) or ""
        return ""

    @property
    def acts(self) -> dict[str, Callable[[list[str]], str | None]]:
        return {
            "--download-only": self._packages,
            "dpkg -x": lambda w: Path(w[3]).mkdir(exist_ok=True),
            "apt-cache": lambda w: "python3-minimal\n  PreDepends: python3.11-minimal\n",
            "pip install": self._wheels,
            "npm install": self._web,
        }

    def _packages(self, words: list[str]) -> None:
        cache = next(w for w in words if w.startswith("Dir::Cache=")).partition("=")[2]
        for name in ("python3.11-minimal", "libc6"):
            (Path(cache) / "archives" / f"{name}.deb").touch()

    def _wheels(self, words: list[str]) -> None:
        site = Path(words[words.index("--target") + 1])
        site.mkdir()
        (site / "onnxruntime_webgpu-1.27.0.dist-info").mkdir()

    def _web(self, words: list[str]) -> None:
        folder = Path(words[words.index("--prefix") + 1]) / "node_modules/onnxruntime-web"
        folder.mkdir(parents=True)
        (folder / "package.json").write_text('{"version": "1.30.0"}')


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clients:
    """All programs are here; root runs qtool; the cache is empty."""
    monkeypatch.setenv("QTOOL_CACHE", str(tmp_path))
    made = Clients()
    monkeypatch.setattr(install, "run_command", made)
    monkeypatch.setattr(install.shutil, "which", lambda n: f"/bin/{n}")
    monkeypatch.setattr(available, "_version_of", lambda path: "8.0.0")
    monkeypatch.setattr(available, "machine_type", lambda: "x86_64")
    monkeypatch.setattr(install, "_may_install", lambda: True)
    return made


def missing(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for module in (install, available):
        monkeypatch.setattr(module.shutil, "which", lambda n: None if n in names else f"/bin/{n}")


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_qemu_is_installed_by_the_system(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    missing(monkeypatch, "qemu-x86_64", "qemu-aarch64")
    assert install_emulators([Family.X86]) == ("qemu-user was installed",)
    assert [line.split()[2] for line in clients.typed] == ["update", "install"]
    assert clients.typed[1].endswith("--no-install-recommends qemu-user")


def test_what_is_there_is_left_alone(clients: Clients) -> None:
    assert install_emulators([Family.X86]) == ("qemu-user is installed",)
    assert clients.typed == []


def test_without_root_it_says_what_to_type(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing(monkeypatch, "qemu-x86_64")
    monkeypatch.setattr(install, "_may_install", lambda: False)
    with pytest.raises(EmulationError, match=r"`sudo apt-get install .*qemu-user`"):
        install_emulators(Family)
    assert clients.typed == []


def test_a_sysroot_and_wheels_of_the_same_version(clients: Clients) -> None:
    done = install_emulators([Family.ARM])
    assert done[0] == "qemu-user is installed"
    assert f"onnxruntime {VERSION} were put into {arm_folder(VERSION)}" in done[1]
    found = sysroot(VERSION)
    assert found is not None
    assert (found.python, found.onnxruntime) == ("3.11", VERSION)
    assert sorted(p.name for p in found.folder.iterdir()) == ["root", "site", "sysroot.json"]
    (pip,) = (line for line in clients.typed if "pip install" in line)
    wanted = ("--only-binary=:all:", "manylinux_2_28_aarch64", f"onnxruntime=={VERSION}")
    assert all(word in pip for word in (*wanted, "--python-version 3.11"))
    assert sum("dpkg -x" in line for line in clients.typed) == 2
    apt = [line for line in clients.typed if line.startswith("apt-get")]
    assert all("Dir::State=" in line and "APT::Architecture=arm64" in line for line in apt)
    before = len(clients.typed)
    assert "are in" in install_emulators([Family.ARM])[1]
    assert len(clients.typed) == before  # not fetched again


def test_the_web(clients: Clients) -> None:
    (done,) = install_emulators([Family.WEB])
    assert done == f"onnxruntime-web 1.30.0 was put into {web_folder()}"
    assert web_version() == "1.30.0"
    assert clients.typed[0].startswith("/bin/npm install ")
    assert "--ignore-scripts" in clients.typed[0]


def test_the_webgpu_provider(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = tmp_path / "browser"
    browser.mkdir()
    for name in ("libvk_swiftshader.so", "libvulkan.so.1"):
        (browser / name).write_text(name)
    monkeypatch.setattr(install, "_BROWSERS", (str(browser),))
    folder = webgpu_folder()
    (done,) = install_emulators([Family.WEBGPU])
    assert done == f"onnxruntime-webgpu 1.27.0 and SwiftShader were put into {folder}"
    assert [p.name for p in sorted((folder / "lib").iterdir())] == [
        *("driver.json", "libvk_swiftshader.so", "libvulkan.so.1")
    ]
    compiler, pip = clients.typed
    assert compiler.startswith("/bin/cc -shared")
    assert "--no-deps" in pip
    (done,) = install_emulators([Family.WEBGPU])
    assert "SwiftShader are in" in done
    assert len(clients.typed) == 2


def test_without_a_browser_that_has_swiftshader(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "_BROWSERS", ())
    with pytest.raises(EmulationError, match=r"contains no libvk_swiftshader\.so"):
        install_emulators([Family.WEBGPU])
    assert clients.typed[0].startswith("sh -c")
    assert list((tmp_path / "emulators").iterdir()) == []
    missing(monkeypatch, "cc")
    with pytest.raises(EmulationError, match="cc is not installed: install a C compiler"):
        install_emulators([Family.WEBGPU])


@pytest.mark.parametrize("step", ["update", "--download-only", "dpkg -x", "pip install", "npm"])
def test_a_failure_leaves_nothing(step: str, clients: Clients, tmp_path: Path) -> None:
    clients.fails = step
    with pytest.raises(EmulationError, match="fails"):
        install_emulators(Family)
    assert [f for f in files(tmp_path) if not f.startswith("emulators/arm-")] == []
    assert [p.name for p in (tmp_path / "emulators").iterdir()] == (
        [arm_folder(VERSION).name] if step == "npm" else []
    )


def test_an_interruption_leaves_nothing(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(words: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Clients, "_packages", lambda self, words: interrupted(words))
    with pytest.raises(KeyboardInterrupt):
        install_emulators([Family.ARM])
    assert list((tmp_path / "emulators").iterdir()) == []


def test_what_is_damaged_is_replaced(clients: Clients) -> None:
    arm_folder(VERSION).mkdir(parents=True)
    (arm_folder(VERSION) / "half").touch()
    install_emulators([Family.ARM])
    assert not (arm_folder(VERSION) / "half").exists()
    assert sysroot(VERSION) is not None


def test_sources_without_arm64(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    clients.fails = "apt-cache"
    with pytest.raises(EmulationError, match=r"no packages for aarch64 \(arm64\); add"):
        install_emulators([Family.ARM])


@pytest.mark.parametrize(
    ("family", "program"), [(Family.ARM, "dpkg"), (Family.ARM, "apt-get"), (Family.WEB, "npm")]
)
def test_a_client_that_is_not_there(
    family: Family, program: str, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing(monkeypatch, program)
    monkeypatch.setattr(install, "_may_install", lambda: False)
    with pytest.raises(EmulationError, match=f"{program} is not installed: "):
        install_emulators([family])


def test_a_cache_that_cannot_be_written(
    clients: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("QTOOL_CACHE", str(tmp_path / "file"))
    with pytest.raises(FileError, match="QTOOL_CACHE"):
        install_emulators([Family.WEB])
