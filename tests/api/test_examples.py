"""Each public name has an example that runs: in a docstring, or on a page of the docs."""

import inspect
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import qtool
from tests.docs.snippets import PAGES, blocks
from tests.docs.test_snippets import given

__all__ = ["given"]

FIRST = ("quantize_to_file", "write_float")
"""Those that write the files of the others."""
RESULTS = {
    *("Accuracy", "Calibration", "Captured", "Change", "ConversionState", "CpuResult"),
    *("Generation", "Metric", "Mode", "Parity", "QuantPlan", "QuantizedFile"),
    *("QuantizedModel", "TunedModel"),
}
"""What functions make, besides records; and names of types."""
ELSEWHERE = {
    "emulators": {"verify_on"},
    "several processes": {"use_process_group"},
    "the folder of a language model": {
        *("GenerationOptions", "generate", "init_empty_weights", "quantize_by_blocks"),
    },
    "parts of qtool.register_...: docs/extending.md": {
        *("FileFormat", "Runtime", "Target"),
        "register_format",  # tests/backends/toy
    },
    "as quantize_to_file, load_data, gate": {"quantize_to_files", "DataOptions", "GateOptions"},
}
"""What an example would need, and tests have -> names."""


def lines(name: str) -> list[str]:
    return re.findall(r"^ *>>> (.*)$", inspect.getdoc(getattr(qtool, name)) or "", re.MULTILINE)


EXAMPLES = {name: lines(name) for name in (*FIRST, *qtool.__all__) if lines(name)}


def test_each_name_has_an_example() -> None:
    pages = [b.text for page in PAGES for b in blocks(page) if b.language == "python"]
    examples = "\n".join([*pages, *chain(*EXAMPLES.values())])
    values = {name: getattr(qtool, name) for name in qtool.__all__}
    errors = {n for n, v in values.items() if inspect.isclass(v) and issubclass(v, Exception)}
    records = {n for n, v in values.items() if hasattr(v, "to_json")}
    used = set(re.findall(r"\bqtool\.(\w+)\(", examples))
    without = values.keys() - used - errors - records - RESULTS
    assert without == set().union(*ELSEWHERE.values())


@pytest.mark.matrix
def test_the_examples_run(given: dict[str, Any], tmp_path: Path) -> None:
    for example in EXAMPLES.values():
        exec("\n".join(example), dict(given))
    assert (tmp_path / "report" / "report.html").is_file()
