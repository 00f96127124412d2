"""Pages: a report drawn as JSON, Markdown and HTML, and the folder that holds them.

Nothing is measured here: everything shown comes from a `qtool.analysis.report.Report`. Names are
imported when they are first used: whether a folder can be written is found out before torch is
loaded.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qtool.page.folder import MODEL, check_folder, publish
    from qtool.page.render import pages
    from qtool.page.tuned import tuned_page
    from qtool.page.write import write_report

_HOME_OF = {
    "MODEL": "folder",
    "check_folder": "folder",
    "pages": "render",
    "publish": "folder",
    "tuned_page": "tuned",
    "write_report": "write",
}

__all__ = ["MODEL", "check_folder", "pages", "publish", "tuned_page", "write_report"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'qtool.page' has no attribute '{name}'")
    return getattr(import_module(f"qtool.page.{_HOME_OF[name]}"), name)
