"""Grammars: what a request may write. `Grammar` says it; the rest of this package compiles and enforces it."""

from tahr.grammar.spec import Grammar

__all__ = ["Grammar"]
