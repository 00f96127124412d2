"""Measurements of latency: interleaved runs, the profile of each node, the speed-up over float."""
