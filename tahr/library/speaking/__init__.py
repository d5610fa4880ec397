"""Texts spoken by an engine, beside everything else it does."""
