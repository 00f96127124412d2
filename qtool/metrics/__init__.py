"""Metrics of outputs and their intervals: numbers of arrays, known to no file, model or command.

`metric` has the value type that reports and gates show, `output_agreement` the yardstick of each
output without labels, `set_statistics` metrics with labels. Each estimator of an interval is in one
of `share_intervals`, `sample_ratios`, `resampling`, `ranks`, `medians` and `drop`.
"""
