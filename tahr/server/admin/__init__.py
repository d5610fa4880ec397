"""Routes that change what a server serves: models and adapters."""
