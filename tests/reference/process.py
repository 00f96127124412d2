"""One process that runs cases in the working folder and prints what they write, as JSON.

    python -m tests.reference.process [--base] CASE ...
    python -m tests.reference.process --modules ARGUMENT ...

With --base torch and its like cannot be imported. With --modules one command runs, and the
modules that it loads are printed.
"""

import itertools
import json
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from tests.reference.text import normal_document, normal_log, normal_page, normal_text

TICK = 0.125  # seconds between two looks of qtool at a clock; sums of it are exact
CLOCKS = ("perf_counter", "monotonic", "thread_time")


def fix_clocks() -> None:
    """Let a clock advance by one tick whenever qtool reads it.

    So speeds, and the verdicts on them, are the same on each machine under any load: all files
    take the same time.
    """
    for name in CLOCKS:
        setattr(time, name, _clock(getattr(time, name)))


def _clock(real: Callable[[], float]) -> Callable[[], float]:
    ticks = itertools.count()

    def clock() -> float:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return TICK * next(ticks) if caller.startswith("qtool") else real()

    return clock


def fix_node_times() -> None:
    """Let the nodes of a file take 1, 2, 3, ... microseconds: the runtime measures them itself."""
    from dataclasses import replace

    from qtool.backends.onnxruntime.onnx_file import OnnxFile

    measured = OnnxFile.node_times

    def node_times(self, *arguments):  # type: ignore[no-untyped-def]
        times = sorted(measured(self, *arguments).items())
        return {k: replace(v, microseconds=float(i)) for i, (k, v) in enumerate(times, 1)}

    OnnxFile.node_times = node_times  # type: ignore[method-assign]


def outputs(name: str) -> str:
    """Run a case in all its forms and return what it prints and writes."""
    from tests.reference.cases import CASES
    from tests.reference.inputs import OUT, arguments, run

    parts = []
    for form in CASES[name].forms:
        shutil.rmtree(OUT, ignore_errors=True)
        OUT.mkdir()
        line = [*arguments(CASES[name].line), *form.split()]
        result = run(line)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        stdout = normal_document(result.stdout) if form else normal_text(result.stdout)
        parts += [f"$ qtool {' '.join(line)}\nexit code {result.exit_code}", stdout]
        parts += ["--- standard error", normal_log(result.stderr)] if result.stderr else []
        parts += [text for file in sorted(OUT.rglob("*")) for text in _contents(file)]
    return "\n".join(part.rstrip("\n") for part in parts) + "\n"


def _contents(file: Path) -> list[str]:
    if file.is_dir():
        return []
    readers = {".json": normal_document, ".html": normal_page, ".md": normal_text}
    title = f"--- file {file}"
    read = readers.get(file.suffix)
    return [title] if read is None else [title, read(file.read_text("utf-8"))]


def modules(line: list[str]) -> str:
    """Run a command, and return the modules of qtool and the other packages that are loaded."""
    from qtool.cli import main

    code = main(line, prog_name="qtool", standalone_mode=False)
    assert not code, line
    own = defaultdict[str, list[str]](list)
    for name in sorted(sys.modules):
        if name.split(".")[0] == "qtool":
            package, _, module = name.rpartition(".")
            own[package].append(module)
    tops = {name.split(".")[0] for name in sys.modules} - {"qtool", "tests", "__main__"}
    foreign = sorted(t for t in tops - sys.stdlib_module_names if not t.startswith("_"))
    rows = [f"{package}: {', '.join(names)}" for package, names in own.items()]
    count = sum(map(len, own.values()))
    return "\n".join([f"{count} modules of qtool", *rows, f"others: {', '.join(foreign)}", ""])


def main(words: list[str]) -> None:
    sys.stdout, standard = sys.stderr, sys.stdout  # what libraries print is no result
    if words[:1] == ["--modules"]:
        json.dump({words[1]: modules(words[1:])}, standard)
        return
    fix_clocks()
    if words[:1] == ["--base"]:
        from tests.without_torch import HIDDEN_PACKAGES

        sys.modules |= dict.fromkeys(HIDDEN_PACKAGES)  # type: ignore[arg-type]  # imports fail
        words = words[1:]
    from qtool.cli import progress

    # a stage that takes long on a busy machine prints nothing more
    progress.FIRST_LINE = progress.EVENT_SECONDS = 3600.0
    fix_node_times()
    json.dump({name: outputs(name) for name in words}, standard)


if __name__ == "__main__":
    main(sys.argv[1:])
