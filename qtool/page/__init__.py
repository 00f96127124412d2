"""Reports: what was measured, as one set of dataclasses, and the pages made of them.

Everything computed comes from `qtool.analysis`; here it is gathered and shown. Names are imported
when they are first used: whether a folder can be written is found out before torch is loaded.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qtool.page.folder import publish
    from qtool.page.gather import Options, Subject, build
    from qtool.page.model import SCHEMA, Report
    from qtool.page.render import pages
    from qtool.page.run import compare_files, report_file, report_quantized

_HOME_OF = {
    "Options": "gather",
    "Subject": "gather",
    "build": "gather",
    "SCHEMA": "model",
    "Report": "model",
    "publish": "folder",
    "pages": "render",
    "compare_files": "run",
    "report_file": "run",
    "report_quantized": "run",
}

__all__ = [
    "SCHEMA",
    "Options",
    "Report",
    "Subject",
    "build",
    "compare_files",
    "pages",
    "publish",
    "report_file",
    "report_quantized",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'qtool.report' has no attribute '{name}'")
    return getattr(import_module(f"qtool.page.{_HOME_OF[name]}"), name)
