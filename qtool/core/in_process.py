"""Objects that live in one process: they can be copied, and not pickled."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, NoReturn

from qtool.core.errors import ExportError


class InProcess:
    """An object with traced graphs, which Python cannot send to another process.

    Attributes:
        instead: what to store or send, for the error message.
    """

    instead: ClassVar[str]

    def __copy__(self) -> Any:
        return self._with(vars(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        memo[id(self)] = new = self._with({})
        vars(new).update(copy.deepcopy(vars(self), memo))
        return new

    def _with(self, attributes: dict[str, Any]) -> Any:
        new = object.__new__(type(self))
        vars(new).update(attributes)
        return new

    def __reduce__(self) -> NoReturn:
        """
        Raises:
            ExportError: always.
        """
        raise ExportError(
            f"a {type(self).__name__} cannot be pickled (torch.save, multiprocessing): it holds "
            f"traced graphs; {self.instead}"
        )
