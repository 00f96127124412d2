"""The light image: the steps of its Dockerfile, run in a fresh environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qtool.api.conversion import quantize
from tests.backends.onnx.export.networks import network, samples

ROOT = Path(__file__).parents[1]
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
