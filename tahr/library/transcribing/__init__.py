"""Recordings written down by an engine, beside everything else it does."""
