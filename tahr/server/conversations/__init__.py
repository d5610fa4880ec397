"""Conversations that the server remembers."""
