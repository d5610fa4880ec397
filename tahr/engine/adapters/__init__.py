"""Low-rank adapters in an engine: which are loaded, who uses them, and which rows of a step meet which."""
