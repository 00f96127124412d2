"""What is installed: one top-level package, its command line inside it, and its data files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str, cwd: Path, **environment: str) -> str:
    """Run with this Python; the output, or a failure that shows it."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this tree, built from a copy (setuptools writes beside its sources)."""
    tmp = tmp_path_factory.mktemp("packaging")
    source = tmp / "source"
    source.mkdir()
    for file in ROOT.iterdir():
        if file.is_file() and file.suffix != ".onnx":
            shutil.copy2(file, source)
    for folder in ("qtool", "cli"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, source / folder, ignore=ignore)
    # A package nobody has listed anywhere, with a data file: found all the same.
    extra = source / "cli" / "extra"
    (extra / "templates").mkdir(parents=True)
    (extra / "__init__.py").touch()
    (extra / "templates" / "page.html").touch()
    run(
        *("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"),
        *("--wheel-dir", str(tmp), str(source)),
        cwd=tmp,
    )
    (built,) = tmp.glob("*.whl")
    return built


def test_wheel_holds_qtool_alone(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    metadata = {name.split("/")[0] for name in names if ".dist-info/" in name}
    assert {name.split("/")[0] for name in names} - metadata == {"qtool"}


def test_wheel_holds_every_source_file(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {f.relative_to(ROOT).as_posix() for f in (ROOT / "qtool").rglob("*.py")}
    commands = {f"qtool/{f.relative_to(ROOT).as_posix()}" for f in (ROOT / "cli").rglob("*.py")}
    assert sorted((sources | commands) - names) == []  # a folder without __init__.py is left out


def test_wheel_finds_new_packages_and_their_data(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "qtool/cli/extra/__init__.py" in names
    assert "qtool/cli/extra/templates/page.html" in names


@pytest.fixture
def site(wheel: Path, tmp_path: Path) -> str:
    """The wheel's content as it lies in site-packages, for PYTHONPATH."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    return str(tmp_path / "site")


def test_command_line_is_inside_qtool(site, tmp_path):
    code = """if True:
        import importlib.util
        import qtool.cli
        assert callable(qtool.cli.main)
        print(qtool.cli.__file__, importlib.util.find_spec("cli"))
    """
    expected = f"{Path(site, 'qtool', 'cli', '__init__.py')} None"
    assert run("-c", code, cwd=tmp_path, PYTHONPATH=site).strip() == expected


def test_command_is_declared(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (entry,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "qtool = qtool.cli:main" in archive.read(entry).decode().splitlines()


def test_python_m_qtool_shows_help(site, tmp_path):
    assert "Usage:" in run("-m", "qtool", "--help", cwd=tmp_path, PYTHONPATH=site)
