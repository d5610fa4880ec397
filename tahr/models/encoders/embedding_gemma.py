"""EmbeddingGemma: Gemma 3 in both directions, its windows half before a token and half after it."""

from dataclasses import replace

from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.families import gemma3


def refine_gguf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return gemma3.both_ways(gemma3.refine_gguf(f, cfg))


GEMMA_EMBEDDING = replace(gemma3.GEMMA3, name="gemma_embedding", refine_gguf=refine_gguf)
