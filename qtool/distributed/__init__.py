"""Collective calls of several processes: ranks, their messages, and failure of one of them."""

from qtool.distributed.messages import OtherRankError
from qtool.distributed.process_group import use_process_group
from qtool.distributed.ranks import DataShard, RankDone, Ranks, balance, data_name, interleave
from qtool.distributed.session import (
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
    "use_process_group",
]
