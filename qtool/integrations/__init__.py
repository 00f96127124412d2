"""qtool inside other tools: a module per tool, which imports that tool; nothing imports these."""
