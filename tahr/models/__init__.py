"""What ops a model takes: configurations, parts, families, and loading them onto a backend."""
