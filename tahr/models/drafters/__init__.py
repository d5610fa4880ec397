"""Drafters that were trained for one model: they read what its layers make of a text, and guess how it goes on."""
