"""State that request handlers share: the server, routes, admission, settings."""
