"""Result of comparing each node of an exported file with the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qtool.core.formats import quantity

_NAMED = 3  # nodes in a sentence


@dataclass(frozen=True)
class NodeParity:
    """Result of comparing a file with the plan, node by node.

    Attributes:
        samples: number of samples used.
        compared: number of points, outputs and kernels compared.
        wrong: those that give something else, each with the difference.
    """

    JSON_PROPERTIES: ClassVar = ("passed",)

    samples: int
    compared: int
    wrong: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.wrong

    def __str__(self) -> str:
        text = f"node by node ({quantity(self.samples, 'sample')}): "
        if self.passed:
            return f"{text}all {self.compared} comparisons match the plan"
        more = f" and {len(self.wrong) - _NAMED} more" if len(self.wrong) > _NAMED else ""
        named = ", ".join(self.wrong[:_NAMED])
        return f"{text}{len(self.wrong)} of {self.compared} differ from the plan: {named}{more}"
