"""Parts of loaded models that hear or speak."""
