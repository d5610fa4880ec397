"""From files and a configuration to an engine: what fits, and what is read beside weights."""
