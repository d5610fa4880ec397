"""Messages become the text of a prompt."""
