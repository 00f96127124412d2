"""What only some users need: a folder each, with one record, which `qtool.core.plugins` reads.

No other package imports these.
"""
