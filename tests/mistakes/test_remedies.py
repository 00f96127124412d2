"""Each remedy of a command is applied: the next command works, or has another true error."""

import pytest

from qtool.core.errors import QtoolError
from qtool.core.remedies import Argument, Omission
from tests.mistakes.remedies import changed, check_offer, offered, rows, run
from tests.mistakes.test_commands import spelled
from tests.needs import needs_litert

__all__ = ["offered"]  # a fixture

COMMANDS = {
    command: (set(sites.split(", ")), *then)
    for command, sites, *then in map(spelled, rows("remedies.txt"))
}

MICRO = "plugins/tflite/microcontroller --recipe"
"""A remedy after which a file of a microcontroller is verified."""


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=needs_litert if MICRO in sites else ())
        for command, (sites, *_) in COMMANDS.items()
    ],
)
def test_a_command_with_the_remedy(command: str, offered: list[QtoolError]) -> None:
    sites, *others = COMMANDS[command]
    then = dict(other.split(": ", 1) for other in others)
    code, said = run(command.split())
    errors = [e for e in reversed(offered) if str(e) in said]
    assert (code, bool(errors)) == (2, True), said
    check_offer(errors[0], sites)
    for remedy in errors[0].remedies:
        if isinstance(remedy, Argument | Omission):
            code, said = run(changed(command.split(), remedy))
            other = then.get(remedy.name, then.get(str(getattr(remedy, "value", ""))))
            assert (code == 2) == (other is not None), said
            assert (other or "") in said
