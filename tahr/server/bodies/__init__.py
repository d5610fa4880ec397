"""Common parts of the bodies of several APIs."""
