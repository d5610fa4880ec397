"""What encoders read: texts and pairs of them as tokens, and what their results mean."""
