"""Runs the tests of a mutant in a process whose import replaces the source of one module.

No file is written: the working tree and the bytecode caches stay as they are. Processes are forked
from one that has torch, whose import would take most of the time.
"""

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from multiprocessing import get_context
from pathlib import Path
from types import CodeType

import pytest

from tests.mutants.table import Mutant

ROOT = Path(__file__).parents[2]
PRELOADED = ["networkx", "onnx", "onnxruntime", "onnxscript", "pytest", "torch"]
UNUSED = ("anyio", "cacheprovider", "hypothesispytest", "xdist")
"""Plugins of pytest, a quarter of the time of a process."""
OUTCOMES = {pytest.ExitCode.OK: "survived", pytest.ExitCode.TESTS_FAILED: "killed"}


class MutantLoader(SourceFileLoader):
    """Compiles the source of a module with the replacement of a mutant."""

    def __init__(self, name: str, path: str, mutant: Mutant) -> None:
        super().__init__(name, path)
        self.mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        changed = source.replace(self.mutant.old, self.mutant.new)
        assert changed != source, f"{self.mutant.name}: the text is not in {self.path}"
        return self.source_to_code(changed.encode(), self.path)


class MutantFinder(MetaPathFinder):
    """Finds the module of a mutant, and leaves others to the finders behind it."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, fullname, path=None, target=None) -> ModuleSpec | None:
        if fullname != self.mutant.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec.origin is not None
        spec.loader = MutantLoader(fullname, spec.origin, self.mutant)
        return spec


def outcome(tests: Sequence[str], mutant: Mutant | None = None) -> str:
    """Return "killed", "survived", or why the tests did not run.

    Args:
        tests: ids of tests, paths below tests/.
        mutant: what is replaced; None for the sources as they are, with the output of the tests.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_run, args=(tuple(tests), mutant))
    process.start()
    process.join()
    code = process.exitcode
    return OUTCOMES.get(code, f"the tests did not run: pytest ended with {code}")


def _run(tests: Sequence[str], mutant: Mutant | None) -> None:
    if mutant is not None:
        assert mutant.module not in sys.modules
        sys.meta_path.insert(0, MutantFinder(mutant))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
    os.chdir(ROOT)
    options = [f"-pno:{plugin}" for plugin in UNUSED]
    sys.exit(pytest.main(["-qx", *options, *(f"tests/{test}" for test in tests)]))
