"""Several processes that work as one: who is in, what they tell each other, how all end."""

from qtool.distributed.data_shard import DataShard, balance, data_name, interleave
from qtool.distributed.messages import OtherRankError
from qtool.distributed.process_group import within
from qtool.distributed.session import (
    RankDone,
    Ranks,
    collective,
    current,
    session,
    share_steps,
    shares_steps,
    step_ranks,
)

__all__ = [
    "DataShard",
    "OtherRankError",
    "RankDone",
    "Ranks",
    "balance",
    "collective",
    "current",
    "data_name",
    "interleave",
    "session",
    "share_steps",
    "shares_steps",
    "step_ranks",
    "within",
]
