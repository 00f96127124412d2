"""Report pages: JSON, Markdown and HTML made from a `Report`, and the folder that holds them.

Nothing is measured here.
"""
