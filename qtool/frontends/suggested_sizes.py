"""Dynamic dimensions that data suggests; the user's own are plain mappings."""

from __future__ import annotations

from collections.abc import Mapping


class SuggestedSizes(dict[str, Mapping[int, str]]):
    """Input -> {dimension: name}, as `capture_model` takes it. A dimension that the model has fixed
    is left out, where one that the user asks for is an error."""

    def has(self, name: str, axis: int) -> bool:
        """Return whether a dimension is dynamic."""
        return axis in self.get(name, {})

    def without(self, name: str, axis: int) -> SuggestedSizes:
        """Return the sizes without a dimension."""
        rest = {k: v for k, v in self[name].items() if k != axis}
        return SuggestedSizes({**self, name: rest})
