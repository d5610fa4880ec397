"""Files and a configuration become an engine: what fits, and what is read beside weights."""
