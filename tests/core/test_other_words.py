"""Words of other tools are in no other way names, and mean names that exist."""

import re

from qtool.cli import COMMANDS

from qtool.core import option_names
from qtool.core.option_names import MEANT
from qtool.metrics.named_metrics import METRICS

KNOWN = {
    "target": option_names.TARGETS,
    "command": COMMANDS,
    "mode": option_names.MODES,
    "format": tuple(option_names.FORMATS),
    "observer": option_names.OBSERVERS,
    "recovery step": option_names.STEPS,
    "metric": tuple(METRICS),
    "accuracy level": option_names.ACCURACIES,
}


def test_words_mean_names_that_exist() -> None:
    assert MEANT.keys() == KNOWN.keys()
    for what, words in MEANT.items():
        assert {name for names in words.values() for name in names} <= set(KNOWN[what])
        for name in KNOWN[what]:
            others = [names for word, names in words.items() if re.fullmatch(word, name)]
            assert all(names == (name,) for names in others)
