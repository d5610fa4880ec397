"""From messages to the text of a prompt."""
