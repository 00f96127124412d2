"""What qtool does with files where torch and its like cannot be imported; prints it as JSON.

    python tests/without_torch.py FOLDER MODULE ...
    python tests/without_torch.py --cli     the commands of standard input, instead

FOLDER has int8.onnx, float.onnx, int8.tflite, x.npy and a stored report.json.
"""

import json
import pkgutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN_PACKAGES = ("torch", "onnx_ir", "onnxscript", "sympy", "matplotlib")
"""What only conversion and figures need."""
FIGURES = "qtool.evaluation.report.page.figures"  # drawn where matplotlib is installed
FILES = ("int8.onnx", "int8.tflite")


def contents(file: Path) -> dict[str, Any]:
    """What a file holds, whether it is as qtool wrote it, and its outputs."""
    from qtool.backends.formats import open_file, open_model
    from qtool.evaluation.file_contents import model_contents
    from qtool.evaluation.measure.provenance import provenance

    opened, (x,) = open_file(file), batches(file.parent)[:1]
    conversion = opened.conversion()
    assert conversion is not None
    weight = next(p.tensor for p in opened.parameters() if p.tensor.endswith("weight.codes"))
    codes = conversion.stored.codes(weight.removesuffix(".codes"))
    return {
        "self-test": str(opened.check_self_test()),
        "inspected": str(model_contents(file)),
        "provenance": str(provenance(file).summary("")),
        "recipe": str(conversion.info.recipe),
        "codes": None if codes is None else codes.tolist(),
        "ranges": dict(opened.input_ranges()),
        "outputs": [o.tolist() for o in open_model(file, threads=1).run(x)],
    }


def batches(folder: Path) -> list[list[Any]]:
    """Arrays in the order of the inputs."""
    return [[x] for x in np.split(np.load(folder / "x.npy"), 2)]


def measured(folder: Path) -> str:
    """The errors of the int8 file against the float file."""
    from qtool.evaluation.measure.accuracy import summarize
    from qtool.evaluation.measure.output_pass import Reference, measure_arrays

    reference = Reference(folder / "float.onnx")
    return str(summarize(measure_arrays(reference, [folder / "int8.onnx"], batches(folder)), None))


def timed(folder: Path) -> list[str]:
    """The files of a timing that is over at once."""
    from qtool.evaluation.bench import bench

    files = [folder / "float.onnx", folder / "int8.onnx"]
    result = bench(files, batch_sizes=(1,), threads=(1,), seconds=0.01)
    return [Path(file).name for file in result.files]


def shown(folder: Path) -> dict[str, str]:
    """The pages of a stored report."""
    from qtool.evaluation.report.page.render import render_pages
    from qtool.evaluation.report.report import Report

    report = Report.from_json(json.loads((folder / "report.json").read_text()))
    pages = {name: page.decode() for name, page in render_pages(report).items()}
    return {name: page for name, page in pages.items() if not name.endswith(".html")}


def results(folder: Path) -> dict[str, Any]:
    """Everything, as JSON."""
    files = {name: contents(folder / name) for name in FILES}
    return {
        "files": files,
        "measured": measured(folder),
        "timed": timed(folder),
        "shown": shown(folder),
    }


def import_all(name: str) -> None:
    """Import a module, and those of a package."""
    module = import_module(name)
    for each in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
        if each.name != FIGURES:
            import_module(each.name)


def run_commands() -> None:
    """Run the commands of standard input, a list of words a line; print code and output of each."""
    from click.testing import CliRunner
    from qtool.cli import main

    for line in sys.stdin:
        result = CliRunner().invoke(main, json.loads(line), prog_name="qtool")
        sys.stdout.write(json.dumps([result.exit_code, result.stdout + result.stderr]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.modules |= dict.fromkeys(HIDDEN_PACKAGES)  # type: ignore[arg-type]  # imports fail
    if sys.argv[1] == "--cli":
        run_commands()
        sys.exit()
    for module in sys.argv[2:]:
        import_all(module)
    json.dump(results(Path(sys.argv[1])), sys.stdout)
