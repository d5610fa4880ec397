"""Text to tokens and back: tokenizers, chat templates, streams and stop strings."""
