"""Configs of more families, as tiny as `model_cases`'. The shapes of their tensors are those transformers saves."""

from typing import Any

Config = dict[str, Any]

BASE: Config = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LONG_ROPE = {"type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.5], "long_factor": [1.0, 2.0, 4.0, 8.0]}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32.0,
}
YARN |= {"beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
GRANITE = {"embedding_multiplier": 6.0, "residual_multiplier": 0.22, "attention_multiplier": 0.1, "logits_scaling": 4.0}
DELTA = {
    "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
}
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 24,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
LLAMA4 = {
    "num_hidden_layers": 5,
    "head_dim": 16,
    "intermediate_size": 24,
    "intermediate_size_mlp": 96,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2,
    "rope_theta": 500000.0,
}
LATENT = {
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "rms_norm_eps": 1e-6,
}
DEEPSEEK_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
}
GEMMA4_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
GEMMA4_TYPES = ["sliding_attention", "sliding_attention", "full_attention"] * 2 + ["full_attention"]


def family(kind: str, architecture: str, **more: Any) -> Config:
    return {**BASE, "model_type": kind, "architectures": [f"{architecture}ForCausalLM"], **more}


def old(kind: str, architecture: str, **more: Any) -> Config:
    """A config of the years in which every family had its own words."""
    return {"model_type": kind, "architectures": [architecture], "vocab_size": 128, "layer_norm_epsilon": 1e-5,
            "bos_token_id": 1, "eos_token_id": 2, **more}  # fmt: skip


MORE_CASES: dict[str, Config] = {
    "gemma": family("gemma", "Gemma", head_dim=32, tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh"),
    "gemma2": family(
        *("gemma2", "Gemma2"), head_dim=32, query_pre_attn_scalar=24, sliding_window=5, tie_word_embeddings=True,
        attn_logit_softcapping=3.0, final_logit_softcapping=2.0, hidden_activation="gelu_pytorch_tanh",
    ),
    "smollm3": family("smollm3", "SmolLM3", num_hidden_layers=5, tie_word_embeddings=True),
    "olmo2": family("olmo2", "Olmo2"),
    "olmo3": family("olmo3", "Olmo3", num_hidden_layers=5, sliding_window=6, rope_theta=500000.0),
    "phi3": family("phi3", "Phi3", sliding_window=9),
    "phi3_long": family(
        *("phi3", "Phi3"), partial_rotary_factor=0.5, rope_scaling=LONG_ROPE, original_max_position_embeddings=32,
        tie_word_embeddings=True,
    ),
    "glm": family("glm", "Glm", head_dim=16, partial_rotary_factor=0.5, attention_bias=True),
    "glm4": family("glm4", "Glm4", head_dim=16, partial_rotary_factor=0.5, attention_bias=True),
    "ministral": family("ministral", "Ministral", head_dim=16, sliding_window=5, layer_types=[
        "sliding_attention", "full_attention", "sliding_attention"]),
    "ministral3": family("ministral3", "Ministral3", head_dim=16, rope_parameters=YARN, rope_theta=None),
    "mixtral": family("mixtral", "Mixtral", num_local_experts=4, num_experts_per_tok=2),
    "granitemoe": family("granitemoe", "GraniteMoe", num_local_experts=4, num_experts_per_tok=2, **GRANITE),
    "granitemoeshared": family(
        "granitemoeshared", "GraniteMoeShared", num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=48,
        **GRANITE,
    ),
    "cohere": family("cohere", "Cohere", logit_scale=0.25, layer_norm_eps=1e-5, tie_word_embeddings=True),
    "cohere_plus": family(
        "cohere", "Cohere", logit_scale=0.25, layer_norm_eps=1e-5, tie_word_embeddings=True, use_qk_norm=True,
    ),
    "cohere2": family(
        "cohere2", "Cohere2", num_hidden_layers=5, sliding_window=6, logit_scale=0.25, layer_norm_eps=1e-5,
        tie_word_embeddings=True,
    ),
    "stablelm": family("stablelm", "StableLm", partial_rotary_factor=0.25, use_qkv_bias=True, layer_norm_eps=1e-5),
    "stablelm_12b": family(
        "stablelm", "StableLm", partial_rotary_factor=0.25, layer_norm_eps=1e-5, qk_layernorm=True,
        use_parallel_residual=True,
    ),
    "phi": family(
        "phi", "Phi", partial_rotary_factor=0.5, layer_norm_eps=1e-5, hidden_act="gelu_new", num_key_value_heads=None,
    ),
    "gpt_bigcode": old("gpt_bigcode", "GPTBigCodeForCausalLM", n_embd=64, n_layer=3, n_head=4, n_positions=64),
    "gpt_bigcode_heads": old(
        "gpt_bigcode", "GPTBigCodeForCausalLM", n_embd=64, n_layer=3, n_head=4, n_positions=64, multi_query=False,
    ),
    "minicpm": family(
        "minicpm", "MiniCPM", scale_emb=12, scale_depth=1.4, dim_model_base=256, tie_word_embeddings=True,
    ),
    "internlm3": family("internlm3", "InternLM3", head_dim=24),
    "starcoder2": family(
        "starcoder2", "Starcoder2", sliding_window=7, norm_epsilon=1e-5, use_bias=True, tie_word_embeddings=True,
        hidden_act="gelu_pytorch_tanh",
    ),
    "gpt2": old("gpt2", "GPT2LMHeadModel", n_embd=64, n_layer=3, n_head=4, n_positions=64),
    "gpt_neox": family(
        "gpt_neox", "GPTNeoX", rotary_pct=0.25, rotary_emb_base=10000, layer_norm_eps=1e-5, use_parallel_residual=True,
        hidden_act="gelu", num_key_value_heads=None,
    ),
    "falcon": old("falcon", "FalconForCausalLM", hidden_size=64, num_hidden_layers=3, num_attention_heads=4),
    "falcon_new": old(
        "falcon", "FalconForCausalLM", hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_kv_heads=2,
        new_decoder_architecture=True, bias=True,
    ),
    "falcon_rw": old(
        "falcon", "FalconForCausalLM", hidden_size=64, num_hidden_layers=3, num_attention_heads=4, alibi=True,
        bias=True, multi_query=False, parallel_attn=False,
    ),
    "bloom": old("bloom", "BloomForCausalLM", hidden_size=72, n_layer=3, n_head=6),
    "mpt": old(
        "mpt", "MptForCausalLM", d_model=72, n_layers=3, n_heads=6, max_seq_len=512,
        attn_config={"alibi": True, "clip_qkv": 0.9, "alibi_bias_max": 8},
    ),
    "gpt_oss": family(
        "gpt_oss", "GptOss", head_dim=16, sliding_window=6, num_local_experts=4, num_experts_per_tok=2,
        attention_bias=True, rope_theta=None, rope_parameters={
            "rope_type": "yarn", "rope_theta": 150000.0, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": False, "original_max_position_embeddings": 64,
        },
    ),
    "glm4_moe": family(
        "glm4_moe", "Glm4Moe", head_dim=16, partial_rotary_factor=0.5, attention_bias=True, use_qk_norm=True,
        first_k_dense_replace=1, n_routed_experts=6, n_shared_experts=2, num_experts_per_tok=2, n_group=1, topk_group=1,
        moe_intermediate_size=24, routed_scaling_factor=1.5, norm_topk_prob=True,
    ),
    "qwen3_next": family(
        "qwen3_next", "Qwen3Next", num_hidden_layers=4, head_dim=16, partial_rotary_factor=0.5, num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=40, norm_topk_prob=True,
        **DELTA,
    ),
    "qwen3_5": family("qwen3_5_text", "Qwen3_5", num_hidden_layers=4, head_dim=16, **DELTA, rope_theta=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1]}),
    "qwen3_5_moe": family(
        "qwen3_5_moe_text", "Qwen3_5Moe", num_hidden_layers=4, head_dim=16, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=24, shared_expert_intermediate_size=40, **DELTA, rope_theta=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1]},
    ),
    "gemma4": family(
        "gemma4_text", "Gemma4", num_hidden_layers=7, head_dim=16, global_head_dim=32, num_global_key_value_heads=1,
        attention_k_eq_v=True, hidden_size_per_layer_input=0, sliding_window=5, tie_word_embeddings=True,
        rope_theta=None, hidden_activation="gelu_pytorch_tanh", final_logit_softcapping=3.0,
        rope_parameters=GEMMA4_ROPE, layer_types=GEMMA4_TYPES,
    ),
    "gemma4_e": family(
        "gemma4_text", "Gemma4", num_hidden_layers=7, head_dim=16, global_head_dim=32, num_key_value_heads=1,
        hidden_size_per_layer_input=8, vocab_size_per_layer_input=128, num_kv_shared_layers=3, use_double_wide_mlp=True,
        sliding_window=5, tie_word_embeddings=True, rope_theta=None, hidden_activation="gelu_pytorch_tanh",
        rope_parameters=GEMMA4_ROPE, layer_types=GEMMA4_TYPES,
    ),
    "gemma4_moe": family(
        "gemma4_text", "Gemma4", num_hidden_layers=7, head_dim=16, global_head_dim=32, num_global_key_value_heads=1,
        attention_k_eq_v=True, hidden_size_per_layer_input=0, sliding_window=5, tie_word_embeddings=True,
        rope_theta=None, hidden_activation="gelu_pytorch_tanh", rope_parameters=GEMMA4_ROPE, layer_types=GEMMA4_TYPES,
        enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=24,
    ),
    "qwen2_moe": family(
        "qwen2_moe", "Qwen2Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
        shared_expert_intermediate_size=40, norm_topk_prob=False,
    ),
    "granite4": family(
        "granitemoehybrid", "GraniteMoeHybrid", layer_types=["attention"] * 3, num_local_experts=0,
        num_experts_per_tok=0, shared_intermediate_size=72, position_embedding_type="rope", **GRANITE,
    ),
    "granite4_h": family(
        "granitemoehybrid", "GraniteMoeHybrid", layer_types=["mamba", "attention", "mamba"], num_local_experts=4,
        num_experts_per_tok=2, intermediate_size=24, shared_intermediate_size=40, position_embedding_type="nope",
        **MAMBA, **GRANITE,
    ),
    "granite4_h_dense": family(
        "granitemoehybrid", "GraniteMoeHybrid", layer_types=["mamba", "attention", "mamba"], num_local_experts=0,
        num_experts_per_tok=0, intermediate_size=72, shared_intermediate_size=72, position_embedding_type="nope",
        **{**MAMBA, "mamba_n_groups": 2}, **GRANITE,
    ),
    "llama4": family("llama4_text", "Llama4", **LLAMA4),
    "llama4_chunks": family(
        "llama4_text", "Llama4", **{**LLAMA4, "interleave_moe_layer_step": 1, "num_experts_per_tok": 2},
        attention_chunk_size=7, floor_scale=5, attn_scale=0.3, use_qk_norm=False,
    ),
    "phimoe": family(
        "phimoe", "Phimoe", num_local_experts=4, num_experts_per_tok=2, router_jitter_noise=0.01, attention_bias=True,
        lm_head_bias=True, rope_theta=1e6, original_max_position_embeddings=32, rope_scaling={
            "type": "longrope", "short_mscale": 1.8**0.5, "long_mscale": 1.9, "original_max_position_embeddings": 32,
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
            "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
        },
    ),
    "bitnet": family("bitnet", "BitNet", hidden_act="relu2", tie_word_embeddings=True),
    "bitnet_silu": family("bitnet", "BitNet", hidden_act="silu", tie_word_embeddings=True),
    "deepseek_v2": family(
        "deepseek_v2", "DeepseekV2", **LATENT, q_lora_rank=None, n_group=3, topk_group=2,
        topk_method="group_limited_greedy", routed_scaling_factor=1.5, norm_topk_prob=False,
    ),
    "deepseek_v3": family(
        "deepseek_v3", "DeepseekV3", **LATENT, q_lora_rank=20, n_group=3, topk_group=2, routed_scaling_factor=2.5,
        norm_topk_prob=True, scoring_func="sigmoid", rope_theta=None, rope_parameters=DEEPSEEK_ROPE,
    ),
    "glm4_moe_lite": family(
        "glm4_moe_lite", "Glm4MoeLite", **LATENT, q_lora_rank=20, n_group=1, topk_group=1, routed_scaling_factor=1.8,
        norm_topk_prob=True, scoring_func="sigmoid",
    ),
    "mistral4": family(
        "mistral4", "Mistral4", **LATENT, q_lora_rank=20, n_group=3, topk_group=2, routed_scaling_factor=1.0,
        norm_topk_prob=True, rope_theta=None, rope_parameters=YARN,
    ),
}  # fmt: skip
