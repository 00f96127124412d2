"""The benchmark of a CUDA device, on small networks on the CPU."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import tensor

import benchmarks.cuda
from benchmarks.cuda import difference, main


def test_codes_that_differ_are_counted_with_the_largest_difference() -> None:
    one = {"a": tensor([0, 255], dtype=torch.uint8), "b": tensor([1, 2], dtype=torch.int8)}
    other = {"a": tensor([0, 0], dtype=torch.uint8), "b": tensor([1, 2], dtype=torch.int8)}
    assert difference(one, other) == "25.0000 %, 255"
    with pytest.raises(ValueError, match="other tensors"):
        difference(one, {"a": one["a"]})


def test_a_dry_run_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--dry-run", "--page", str(tmp_path / "page.md")])
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert page.strip() in capsys.readouterr().out
    assert "- on the device (cpu): 0.0000 %, 0\n" in page
    moved = re.search(r"embedding moved: ([\d.]+) %, (\d+)\n", page)
    assert moved is not None
    assert 0 < float(moved[1]) < 10  # gptq ran: units in the last place move some of its codes
    stages = ("capture", "static: conversion with gptq", "weight-only-int4: conversion with gptq")
    assert all(f"| {name} | " in page for name in stages)


def test_scripts_of_the_folder_can_import_torch(tmp_path: Path) -> None:
    """It looks for a package `cuda`, and they find this file first."""
    folder = Path(benchmarks.cuda.__file__).parent
    (tmp_path / "cuda.py").write_bytes((folder / "cuda.py").read_bytes())
    (tmp_path / "script.py").write_text("import torch; torch.cuda.is_available()")
    subprocess.run([sys.executable, tmp_path / "script.py"], check=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_the_remedy_is_the_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "--dry-run" in capsys.readouterr().err
