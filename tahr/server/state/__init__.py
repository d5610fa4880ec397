"""What request handlers share: the state of the server, routes, admission, settings."""
