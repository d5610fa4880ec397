"""From a request to tokens, and from tokens back to what its client reads."""
