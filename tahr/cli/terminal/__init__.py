"""The terminal of a person: notes, progress, Ctrl-C."""
