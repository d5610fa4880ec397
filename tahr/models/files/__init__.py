"""Configurations of models as files hold them: config.json, GGUF metadata, quantised checkpoints."""
