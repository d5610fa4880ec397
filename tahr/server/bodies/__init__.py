"""What the bodies of requests of several APIs have in common."""
