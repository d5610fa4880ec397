"""Models as ops: configurations, parts, families, and loading them onto a backend."""
