"""What happens between logits and a token: edits, full-row passes, stages on a short list, a draw."""
