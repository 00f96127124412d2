"""docs/coverage.md from the records."""


def page(rows):
    return ""
