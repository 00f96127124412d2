"""Packages: the wheel, its versions, and the image."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from qtool.api.conversion import quantize
from tests.backends.onnx.export.networks import network, samples

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


_REQUIREMENT = re.compile(r'^ +"([\w-]+)>=([\d.]+)"', re.MULTILINE)
_PIN = re.compile(r"^([\w-]+)==([\w.]+)$", re.MULTILINE)


def _table(name: str) -> dict[str, str]:
    """Return the lower bounds in a list of pyproject.toml (Python 3.10 has no tomllib)."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lines = re.search(rf"^{name} = \[.*?^\]", text, re.MULTILINE | re.DOTALL)
    assert lines
    return dict(_REQUIREMENT.findall(lines[0]))


def _pins(file: str) -> dict[str, str]:
    return {
        name.lower(): version
        for name, version in _PIN.findall((ROOT / file).read_text(encoding="utf-8"))
    }


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_the_oldest_versions_that_are_tested_are_the_lower_bounds() -> None:
    bounds = _table("dependencies") | _table("torch") | _table("hf")
    assert _pins("constraints-floor.txt") == bounds


def test_the_versions_that_are_tested_together_are_allowed() -> None:
    pins = _pins("constraints.txt")
    tables = map(_table, ("dependencies", "torch", "test", "dev"))
    bounds = {name: bound for table in tables for name, bound in table.items()}
    too_old = [n for n, bound in bounds.items() if _numbers(pins[n]) < _numbers(bound)]
    assert too_old == []


DOCKERFILE = ROOT / "docker" / "light.Dockerfile"


def instructions(file: Path) -> list[tuple[str, str]]:
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def copy_into(folder: Path, names: list[str]) -> None:
    *sources, target = names
    for name in sources:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / target, ignore=ignore)
        else:
            shutil.copy2(ROOT / name, folder / target)


@pytest.mark.matrix
def test_the_light_image(tmp_path: Path) -> None:
    """Its steps install qtool without torch, and its entry point verifies a file."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    path = f"{tmp_path / 'venv' / 'bin'}:{os.environ['PATH']}"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PATH": path}
    sources, work = tmp_path / "sources", tmp_path / "work"
    sources.mkdir()
    work.mkdir()
    entry: list[str] = []
    for word, rest in instructions(DOCKERFILE):
        if word == "COPY":
            copy_into(sources, rest.split())
        elif word == "RUN":
            subprocess.run(rest, shell=True, cwd=sources, env=environment, check=True)
        elif word == "ENTRYPOINT":
            entry = json.loads(rest)
        else:
            assert word in {"FROM", "WORKDIR", "ENV", "USER", "CMD"}
    quantize(network("residual"), [samples("residual", 64)]).export(work / "model.onnx")

    def output(*command: str) -> str:
        done = subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "Usage:" in output(*entry, "--help")
    assert "integer tensors as planned" in output(*entry, "verify", "model.onnx")
    installed = {row["name"] for row in json.loads(output("pip", "list", "--format", "json"))}
    assert not {"torch", "matplotlib", "transformers"} & installed
