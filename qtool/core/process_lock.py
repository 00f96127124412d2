"""A lock for torch.export and torch.onnx, which change global state of the process.

While they trace they patch torch's modules, warnings, loggers and standard error: two threads that
trace at once both fail, and neither restores the state.
"""

from __future__ import annotations

import io
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr

PROCESS_LOCK = threading.RLock()
"""Held while a model is traced, or run while another thread might trace."""


@contextmanager
def silence_logging(
    level: int = logging.CRITICAL, *loggers: str, keep_stderr: bool = False
) -> Iterator[None]:
    """Silence warnings, loggers and standard error of torch; errors are raised all the same.

    Args:
        level: lowest level that loggers print.
        loggers: their names; by default "torch".
        keep_stderr: leaves standard error as it is.
    """
    with PROCESS_LOCK, ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in loggers or ("torch",):
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(level)
        if not keep_stderr:
            stack.enter_context(redirect_stderr(io.StringIO()))
        yield
