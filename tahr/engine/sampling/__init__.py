"""A request's part in sampling: its parameters, its random numbers, and its logit processors."""
