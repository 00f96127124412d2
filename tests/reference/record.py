"""Runs cases in processes of their own, and reads and writes what is expected of them."""

import difflib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from tests.reference.cases import CASES, MODULES, OF_ARITHMETIC
from tests.reference.text import difference, environment

ROOT = Path(__file__).parents[2]
EXPECTED = Path(__file__).with_name("expected")
ENVIRONMENT = EXPECTED / "environment.json"
MODULES_AFTER = "modules-after-"
NAMES = (*CASES, *(MODULES_AFTER + command for command in MODULES))
Check = Callable[[Mapping[str, str], Mapping[str, str]], None]
QUICK = tuple(name for name, case in CASES.items() if case.quick)
"""The cases of `make test`."""
SETTINGS = {
    "COLUMNS": "100",
    "PYTHONHASHSEED": "0",
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
}
"""Environment of each process."""


def record(names: Collection[str], folder: Path, check: Check | None = None) -> dict[str, str]:
    """Run cases in an empty folder.

    Args:
        names: of the cases.
        folder: where they run.
        check: gets their texts, and those without torch.

    Returns:
        The text of each case; of one that also runs where torch cannot be imported, what differs
        there is at the end.
    """
    link_inputs(folder)
    texts = run_cases(folder, *(name for name in names if name in CASES))
    base = [name for name in names if name in CASES and CASES[name].base]
    alone = run_cases(folder, "--base", *base) if base else {}
    if check is not None:
        check(texts, alone)
    for name, text in alone.items():
        texts[name] += "".join(f"{line}\n" for line in _without_torch(texts[name], text))
    for name in names:
        if name not in CASES:
            line = MODULES[name.removeprefix(MODULES_AFTER)].split()
            texts[name] = next(iter(run_cases(folder, "--modules", *line).values()))
    return texts


def link_inputs(folder: Path) -> None:
    """Make an empty folder one that cases run in."""
    for name in ("examples", "calib_data", "tests"):
        (folder / name).symlink_to(ROOT / name)


def run_cases(folder: Path, *words: str) -> dict[str, str]:
    """Run `tests.reference.process` in a folder, and return the text of each case."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.reference.process", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **SETTINGS, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert not child.returncode, child.stderr
    texts: dict[str, str] = json.loads(child.stdout)
    return texts


def _without_torch(whole: str, base: str) -> Iterator[str]:
    """Yield the lines that differ where torch cannot be imported."""
    lines = list(difflib.unified_diff(whole.splitlines(), base.splitlines(), lineterm="", n=0))
    yield "--- without torch" if lines else "--- without torch: equal"
    yield from (line for line in lines[2:] if not line.startswith("@@"))


def of_another_arithmetic(names: Collection[str]) -> list[str]:
    """Return the cases whose expectations are those of a processor with other kernels."""
    other = _recorded()["arithmetic"] != environment()["arithmetic"]
    return sorted(OF_ARITHMETIC & set(names)) if other else []


def _recorded() -> dict[str, str]:
    texts: dict[str, str] = json.loads(ENVIRONMENT.read_text("utf-8"))
    return texts


def differences(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the lines that differ from what is expected, for each case that has some."""
    exact = _recorded() == environment()
    diffs = {n: difference(expectation(n), text, exact) for n, text in texts.items()}
    return {name: lines for name, lines in diffs.items() if lines}


def expectation(name: str) -> str:
    """Return the committed text of a case; "" if there is none yet."""
    file = EXPECTED / f"{name}.txt"
    return file.read_text("utf-8") if file.exists() else ""


def write(texts: Mapping[str, str], complete: bool) -> None:
    """Write the texts as what is expected, and remove those of cases that are no more.

    Args:
        texts: those that differ.
        complete: whether all cases ran here, so that what is expected is of this machine.
    """
    EXPECTED.mkdir(exist_ok=True)
    for name, text in texts.items():
        (EXPECTED / f"{name}.txt").write_text(text, "utf-8")
    for file in EXPECTED.glob("*.txt"):
        if file.stem not in NAMES:
            file.unlink()
    if complete:
        ENVIRONMENT.write_text(f"{json.dumps(environment(), indent=1)}\n", "utf-8")
