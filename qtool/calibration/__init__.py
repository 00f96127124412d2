"""Calibration: observe tensor ranges on data through forward hooks, and solve scales from them.

`collect` runs the model, `calibration` holds and stores the statistics, `merge` joins those of
several processes, `solve_parameters` turns statistics into scales and zero points. Changes of
weights or of the graph belong to `qtool.algorithms`.
"""
