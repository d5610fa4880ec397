"""Load for a running server of OpenAI's API, and what it took: every figure is measured at the client."""
