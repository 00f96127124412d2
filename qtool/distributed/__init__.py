"""Several processes that work as one: who is in, what they tell each other, how all end."""

from qtool.distributed.data_shard import Share, dealt, in_turn, name_of
from qtool.distributed.messages import OtherRankError
from qtool.distributed.process_group import within
from qtool.distributed.session import (
    Led,
    Ranks,
    current,
    session,
    shared,
    sharing,
    solving,
    together,
)

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
