"""What is installed: one top-level package, its command line inside it, and its data files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
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
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the source archive of this tree, as .ci/dist builds them."""
    tmp = tmp_path_factory.mktemp("packaging")
    source = tmp / "source"
    (source / ".ci").mkdir(parents=True)
    shutil.copy2(ROOT / ".ci" / "dist", source / ".ci")
    for file in ROOT.iterdir():
        if file.is_file() and file.suffix != ".onnx" and file.name != ".git":  # of a worktree
            shutil.copy2(file, source)
    for folder in ("qtool", "cli"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, source / folder, ignore=ignore)
    # A package nobody has listed anywhere, with a data file: found all the same.
    extra = source / "cli" / "extra"
    (extra / "templates").mkdir(parents=True)
    (extra / "__init__.py").touch()
    (extra / "templates" / "page.html").touch()
    for words in (("init", "--quiet"), ("add", "--all")):
        subprocess.run(["git", *words], cwd=source, check=True)
    run(".ci/dist", str(tmp / "dist"), cwd=source, SOURCE_DATE_EPOCH="1700000000")
    return tmp / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (built,) = dist.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def archive(dist: Path) -> Path:
    (built,) = dist.glob("*.tar.gz")
    return built


def test_other_times_and_modes_give_the_same_bytes(dist, tmp_path):
    source = tmp_path / "copy"
    shutil.copytree(dist.parent / "source", source)
    for file in source.rglob("*"):
        if file.is_file() and ".git" not in file.parts:
            os.utime(file, (1, 1))
            file.chmod(file.stat().st_mode & 0o700)
    run(".ci/dist", str(tmp_path / "dist"), cwd=source, SOURCE_DATE_EPOCH="1700000000")
    again = {file.name: file.read_bytes() for file in (tmp_path / "dist").iterdir()}
    assert again == {file.name: file.read_bytes() for file in dist.iterdir()}
    assert len(again) == 2


def test_the_source_archive_builds_the_same_package(archive, wheel, tmp_path):
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    build = "from setuptools import build_meta as b; b.build_wheel('..')"
    run("-c", build, cwd=source)
    (built,) = tmp_path.glob("*.whl")
    names = [sorted(zipfile.ZipFile(each).namelist()) for each in (built, wheel)]
    assert names[0] == names[1]
    assert not (source / "tests").exists()


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


def test_the_lanes_run_tests_that_exist() -> None:
    lane = (ROOT / ".ci" / "lane").read_text("utf-8")
    named = re.findall(r"tests/[\w/]+\.py", lane)
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []
