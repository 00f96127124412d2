"""Several processes that work as one: who is in, what they tell each other, how all end."""

from qtool.ranks.group import within
from qtool.ranks.session import Led, Ranks, current, session, shared, sharing, solving, together
from qtool.ranks.share import Share, dealt, in_turn, name_of
from qtool.ranks.wire import OtherRankError

__all__ = [
    "Led",
    "OtherRankError",
    "Ranks",
    "Share",
    "current",
    "dealt",
    "in_turn",
    "name_of",
    "session",
    "shared",
    "sharing",
    "solving",
    "together",
    "within",
]
