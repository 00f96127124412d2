"""Random networks and graphs by number, until the minutes are over: `make fuzz MINUTES=10`.

    python -m tests.fuzz.campaign networks|graphs [--minutes 10 | --count 2000] [--first 0]
                                  [--keep FOLDER]

Case 1234 is the same network on every machine; `--first 1234 --count 1` does it again. What must
not be is reduced to the steps that it needs, and written to FOLDER as a regression.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from tests.fuzz.checks import check_graph, check_network
from tests.fuzz.draw_graphs import draw_graph
from tests.fuzz.draw_networks import draw_network
from tests.fuzz.graph import Graph
from tests.fuzz.network import Network
from tests.fuzz.oracle import KINDS, Verdict, kind_of
from tests.fuzz.reduce import reduced, smaller_graphs, smaller_networks


@dataclass(frozen=True)
class Room:
    """One kind of case: how it is drawn, looked at, read, and made smaller."""

    draw: Callable[[Random], Any]
    check: Callable[[Any], Verdict]
    read: Callable[[Any], Any]
    smaller: Callable[[Any], Iterator[Any]]


ROOMS = {
    "networks": Room(draw_network, check_network, Network.from_json, smaller_networks),
    "graphs": Room(draw_graph, check_graph, Graph.from_json, smaller_graphs),
}


def run(room: Room, numbers: Iterator[int], keep: Path | None) -> Counter[tuple[str, str]]:
    """Counts by kind and, where refused, by sentence without names and numbers."""
    counts: Counter[tuple[str, str]] = Counter()
    for number in numbers:
        case = room.draw(Random(number))
        verdict = room.check(case)
        told = kind_of(verdict.why) if verdict.kind in ("refused", "invalid") or verdict.bad else ""
        counts[verdict.kind, told] += 1
        if verdict.bad or (verdict.kind == "refused" and counts[verdict.kind, told] == 1):
            print(f"{number}: {verdict.kind}: {verdict.why}", flush=True)
        if verdict.bad and keep is not None:
            least = reduced(case, verdict, room.check, room.smaller)
            file = keep / f"{verdict.kind}-{number}.json"
            file.write_text(json.dumps(least.to_json(), ensure_ascii=False) + "\n")
    return counts


def _numbers(first: int, count: int, minutes: float) -> Iterator[int]:
    end = time.monotonic() + 60 * minutes
    number = first
    while number < first + count and time.monotonic() < end:
        yield number
        number += 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("room", choices=ROOMS)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=None)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.keep is not None:
        asked.keep.mkdir(parents=True, exist_ok=True)
    counts = run(ROOMS[asked.room], _numbers(asked.first, asked.count, asked.minutes), asked.keep)
    totals = Counter[str]()
    for (kind, _), number in counts.items():
        totals[kind] += number
    print("\n".join(f"{kind:10} {totals[kind]:6}" for kind in KINDS))
    for (kind, why), number in counts.most_common():
        if why:
            print(f"{number:6} {kind}: {why}")
    sys.exit(any(Verdict(kind).bad for kind in totals))


if __name__ == "__main__":
    main()
