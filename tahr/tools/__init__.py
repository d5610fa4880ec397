"""Programs around the engine: bench, perplexity, comparison with others, GGUF export."""
