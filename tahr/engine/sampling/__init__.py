"""What a request brings to sampling: its parameters, its random numbers, and its logit processors."""
