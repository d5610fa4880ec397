"""How a card stores keys, values and weights, and whether there is a card."""
