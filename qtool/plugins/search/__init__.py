"""Mixed-precision search: choose the scheme of each layer so that a goal is met.

`search` evaluates files; `ranking` says which layers change next; `goals` states what is accepted.
"""

from qtool.core.plugins import Plugin

_HERE = "qtool.plugins.search"

PLUGIN = Plugin(
    documents={"TunedModel": f"{_HERE}.tuned_model:TunedModel"},
)
