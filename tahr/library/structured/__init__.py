"""Replies as objects: from a class to a grammar, and from a text to the class."""
