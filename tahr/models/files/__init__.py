"""What files of models say: config.json, GGUF metadata, quantised checkpoints."""
