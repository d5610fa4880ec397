"""What a model is, in numbers."""
