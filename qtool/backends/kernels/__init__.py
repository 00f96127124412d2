"""Building blocks of integer kernels, shared by the runtimes: accumulation, fixed point, windows.

A runtime's own kernels are in its folder; `qtool.backends.profiles` names the sets of them.
"""
