"""Texts to be spoken: what a model is asked, how long it may speak, and the forms of sound."""
