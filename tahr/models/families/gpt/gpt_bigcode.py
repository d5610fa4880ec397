"""StarCoder and SantaCoder (GPTBigCode): GPT-2 with one key head and matrices the usual way round."""

from dataclasses import replace

from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.families.gpt import gpt2
from tahr.models.family import Family
from tahr.models.parts.arrange import Tensors


def refine_hf(f: Fields, cfg: ModelConfig) -> ModelConfig:
    return replace(gpt2.refine_hf(f, cfg), n_kv_heads=1 if f.flag("multi_query", True) else cfg.n_heads)


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    """Rows of one key head are in order, those of many lie by head."""
    if cfg.n_kv_heads > 1:
        tensors.rename(r"(.*\.self_attn\.)c_attn(\.\w+)", r"\1qkv_by_head\2")
    tensors.rename(r"(.*\.self_attn\.)c_attn(\.\w+)", r"\1qkv_proj\2")
    return gpt2.split_by_head(cfg, tensors)


GPT_BIGCODE = Family(
    "gpt_bigcode",
    gpt2.build,
    refine_hf=refine_hf,
    refine_gguf=gpt2.refine_gguf,
    hf_defaults={**gpt2.GPT2.hf_defaults, "activation_function": "gelu_pytorch_tanh"},
    hf_fields=gpt2.GPT2.hf_fields,
    hf_names={
        **gpt2.GPT2.hf_names,
        "attn.c_attn": "self_attn.c_attn",
        "attn.c_proj": "self_attn.o_proj",
        "mlp.c_fc": "mlp.up_proj",
        "mlp.c_proj": "mlp.down_proj",
    },
    arrange=arrange,
)
