"""Text on its way out: pieces of replies, stop strings, thinking."""
