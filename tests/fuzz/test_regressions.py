"""Whatever was found once: small cases that failed, and do not any more."""

import json
from pathlib import Path

import pytest

from tests.fuzz.campaign import ROOMS

FOLDER = Path(__file__).parent / "regressions"
CASES = sorted(FOLDER.glob("*/*.json"))


@pytest.mark.parametrize("file", CASES, ids=lambda f: f"{f.parent.name}/{f.stem}")
def test_what_failed_once(file: Path) -> None:
    room = ROOMS[file.parent.name]
    verdict = room.check(room.read(json.loads(file.read_text())))
    assert verdict.kind in ("right", "noted", "float"), verdict
