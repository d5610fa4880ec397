"""Speculative decoding: guesses of a sequence's next tokens, verified in one step of the model.

A policy beside the engine's loop. A proposer guesses (`ngram`, `draft_model`), the scheduler computes the guesses with
the sequence's last token, every row is sampled as it would be without them, and the guesses that agree with the samples
are kept (`verify`). How many to guess follows what has come of it so far (`lengths`).
"""
