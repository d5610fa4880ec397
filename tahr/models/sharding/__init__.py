"""One model over several ranks: what each has of every tensor."""
