"""Codes of a speech model as sound, in pieces of any length: what a piece needs of those before it is kept."""
