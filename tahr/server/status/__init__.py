"""Routes that tell how a server does."""
