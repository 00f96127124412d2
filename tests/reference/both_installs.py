"""Commands on files say the same with torch and where it cannot be imported."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

COMMANDS = ("verify", "inspect", "evaluate", "report", "gate", "compare")
ENGINE = {"samples", "elements", "identical", "worst", "profile", "not_compared"}
"""What `verify` has of the comparison with the integer engine, which needs torch."""
VERDICT = ("level", "headline", "text")


def check_values(with_torch: Mapping[str, str], alone: Mapping[str, str]) -> None:
    """Check that values are equal but what the engine alone says.

    Args:
        with_torch: the texts of cases by name.
        alone: those where torch cannot be imported.
    """
    for name in COMMANDS:
        pair = [list(documents(texts[name])) for texts in (with_torch, alone)]
        assert len(pair[0]) == len(pair[1]) > 0
        for whole, base in zip(*pair, strict=True):
            without_the_engine(name, whole, base)
            assert whole == base, name


def documents(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON documents that a case prints and writes."""
    text = re.sub(r'^\{"event": .*$', "", text, flags=re.MULTILINE)  # times are masked in them
    at, decoder = 0, json.JSONDecoder()
    while (start := text.find("\n{", at)) >= 0:
        document, at = decoder.raw_decode(text, start + 1)
        yield document


def without_the_engine(name: str, whole: dict[str, Any], base: dict[str, Any]) -> None:
    """Check what depends on the integer engine, and take it out of both documents."""
    if name == "verify":
        assert base["not_compared"].startswith("it needs torch")
        for document in (whole, base):
            for key in ENGINE:
                del document[key]
    if name in ("report", "compare"):
        for one, other in zip(whole["models"][1:], base["models"][1:], strict=True):
            assert one.pop("exactness")["exact"]
            assert other.pop("exactness") is None
            levels = [parity(model["verdict"]) for model in (one, other)]
            if levels == ["good", "look"]:  # of a file without a self-test
                assert "which needs torch" in other["verdict"]["text"]
                for key in VERDICT:
                    del one["verdict"][key], other["verdict"][key]
            else:
                assert levels == ["good", "good"]


def parity(verdict: dict[str, Any]) -> str:
    """Return the level of the check of parity, and take it out."""
    (check,) = [c for c in verdict["checks"] if c["name"] == "parity"]
    verdict["checks"].remove(check)
    return str(check["level"])
