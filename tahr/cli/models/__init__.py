"""Verbs about models a server has loaded, and about names of models."""
