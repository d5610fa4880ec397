"""What single families do beyond their logits: released forms of checkpoints, and what is refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backends_here
from engines import Tally, greedy
from family_cases import MORE_CASES
from gguf_maker import safetensors
from model_cases import make_weights, token_ids
from model_files import stored_hf, write_hf
from model_runs import greedy as alone
from tahr.backends.api import Backend
from tahr.backends.reference.backend import ReferenceBackend
from tahr.cli.chat.prefix_files import identity_of
from tahr.config import EngineConfig
from tahr.engine.engine import Engine
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.errors import ConfigError, CorruptFile, UnsupportedModel
from tahr.library.inference.config import InferenceConfig
from tahr.library.inference.session import Session
from tahr.library.inference.snapshot import put_back, take, unpack
from tahr.loading import builder
from tahr.loading.builder import build_engine
from tahr.models.loader import Loaded, from_hf, load, open_model

FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def test_released_gpt_oss_keeps_its_experts_in_mxfp4(tmp_path: Path) -> None:
    config, arrays = MORE_CASES["gpt_oss"], make_weights(MORE_CASES["gpt_oss"])
    rng, stored, dense = np.random.default_rng(0), {}, {}
    for name in [name for name in arrays if name.endswith(("gate_up_proj", "down_proj"))]:
        n, cols, rows = arrays.pop(name).shape
        codes = rng.integers(0, 256, (n, rows, cols // 32, 16), dtype=np.uint8)
        scales = rng.integers(120, 128, (n, rows, cols // 32), dtype=np.uint8)
        stored |= {
            f"{name}_blocks": ("U8", codes.shape, codes.tobytes()),
            f"{name}_scales": ("U8", scales.shape, scales.tobytes()),
        }
        values = np.stack([FP4[codes & 15], FP4[codes >> 4]], axis=-1).reshape(n, rows, cols // 32, 32)
        dense[name] = (values * np.exp2(scales.astype(np.float32) - 127)[..., None]).reshape(n, rows, cols)
    write_hf(tmp_path, {**config, "quantization_config": {"quant_method": "mxfp4"}}, {})
    (tmp_path / "model.safetensors").write_bytes(safetensors({**stored_hf(arrays), **stored}))
    layer: Any = load(open_model([], tmp_path), ReferenceBackend()).decoder.layers[1]
    mlps, home = layer.sublayers[1].mlps, "model.layers.1.mlp.experts"
    assert mlps.gate.weight.format == "MXFP4"
    np.testing.assert_array_equal(mlps.gate.weight.data.values, dense[f"{home}.gate_up_proj"][:, ::2])
    np.testing.assert_array_equal(mlps.up.weight.data.values, dense[f"{home}.gate_up_proj"][:, 1::2])
    np.testing.assert_array_equal(mlps.down.weight.data.values, dense[f"{home}.down_proj"])


@pytest.mark.parametrize(("linear", "form"), [("bitlinear", "F32"), ("autobitlinear", "TQ2_0")])
def test_released_bitnet_keeps_four_codes_in_a_byte(linear: str, form: str, tmp_path: Path) -> None:
    """A factor that multiplies or divides; matrices that are no whole blocks become dense."""
    n_cols = 256 if form == "TQ2_0" else 96
    config = {**MORE_CASES["bitnet"], "intermediate_size": n_cols, "num_hidden_layers": 1}
    config["quantization_config"] = {"quant_method": "bitnet", "linear_class": linear, "quantization_mode": "offline"}
    rng, home = np.random.default_rng(0), "model.layers.0.mlp.down_proj"
    codes, arrays = rng.integers(0, 3, (64, n_cols), np.uint8), make_weights(MORE_CASES["bitnet"])
    arrays = {name: a for name, a in arrays.items() if "layers.1" not in name and "layers.2" not in name}
    for name in ("gate_proj", "up_proj"):
        arrays[f"model.layers.0.mlp.{name}.weight"] = np.zeros((n_cols, 64), np.float32)
    arrays["model.layers.0.mlp.ffn_sub_norm.weight"] = np.ones(n_cols, np.float32)
    del arrays[f"{home}.weight"]
    packed = sum(codes[16 * i : 16 * (i + 1)] << 2 * i for i in range(4)).astype(np.uint8)
    stored = stored_hf(arrays) | {f"{home}.weight": ("U8", packed.shape, packed.tobytes())}
    stored[f"{home}.weight_scale"] = ("F32", (1,), np.array([4], np.float32).tobytes())
    write_hf(tmp_path, config, {})
    (tmp_path / "model.safetensors").write_bytes(safetensors(stored))
    layer: Any = load(open_model([], tmp_path), ReferenceBackend()).decoder.layers[0]
    weight = layer.sublayers[1].down.weight
    assert weight.format == form
    factor = np.float32(0.25 if linear == "bitlinear" else 4)
    np.testing.assert_array_equal(weight.data.values, (codes.astype(np.float32) - 1) * factor)


@pytest.mark.parametrize(
    ("case", "change", "said"),
    [
        ("phi", {"qk_layernorm": True}, "norms queries and keys"),
        ("gpt_bigcode", {"scale_attn_weights": False}, "scales attention"),
        ("minicpm", {"sparse_config": {"dense_len": 8192}}, "sparse_config"),
        ("minicpm", {"num_experts": 8}, "num_experts"),
        ("mpt", {"attn_config": {"qk_ln": True}}, "qk_ln"),
        ("mpt", {"no_bias": False}, "biases"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scales attention"),
        ("gpt2", {"scale_attn_weights": False}, "scales attention"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "normed rows"),
        ("gpt_oss", {"swiglu_limit": 9.0}, "swiglu_limit"),
        ("granite4", {"layer_types": ["attention", "sliding", "attention"]}, "layers of types"),
        ("deepseek_v3", {"attention_bias": True}, "biases"),
        ("gemma4", {"use_bidirectional_attention": "all"}, "both directions"),
    ],
)
def test_variants_that_differ_are_refused_by_name(case: str, change: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        from_hf({**MORE_CASES[case], **change})


@pytest.mark.parametrize(
    ("case", "change"),
    [
        ("phi3_long", {"rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [1.0, 1.0]}}),
        ("phi3_long", {"rope_scaling": {"type": "longrope", "short_factor": ["x"] * 4}}),
        ("gpt2", {"n_embd": "64"}),
        ("gpt2", {"n_embd": None}),
        ("bloom", {"n_head": 10**9}),
        ("mpt", {"expansion_ratio": 10**9}),
        ("mpt", {"expansion_ratio": "x", "d_model": 10**12}),
        ("smollm3", {"no_rope_layers": [1, 1]}),
        ("ministral3", {"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}}),
        ("glm4_moe", {"n_shared_experts": 10**9}),
        ("glm4_moe", {"n_group": 3, "topk_group": 4}),
        ("deepseek_v3", {"kv_lora_rank": 10**6}),
        ("deepseek_v3", {"qk_nope_head_dim": None}),
        ("deepseek_v3", {"n_group": 7}),
        ("granite4_h", {"mamba_d_head": 12}),
        ("llama4", {"attention_chunk_size": -3}),
        ("llama4", {"no_rope_layers": [1]}),
        ("phimoe", {"router_jitter_noise": "x"}),
        ("granite4_h", {"mamba_n_groups": 3}),
        ("granite4_h", {"mamba_d_state": 10**9}),
        ("mixtral", {"num_experts_per_tok": 5}),
        ("gpt_oss", {"swiglu_limit": "7"}),
        ("gemma4", {"per_layer_config": [1]}),
        ("gemma4", {"num_global_key_value_heads": 3}),
        ("gemma4_e", {"num_kv_shared_layers": 7}),
        ("gemma4_e", {"num_kv_shared_layers": 5, "layer_types": ["sliding_attention"] * 6 + ["full_attention"]}),
    ],
)
def test_absurd_numbers_are_refused_in_a_sentence(case: str, change: dict[str, Any]) -> None:
    with pytest.raises(CorruptFile, match=r"fetch .*again|Fetch .*again"):
        from_hf({**MORE_CASES[case], **change})


def test_text_model_inside_mistral3(tmp_path: Path) -> None:
    """The outer config says mistral3; the inner one which family the text model is of."""
    inner = MORE_CASES["ministral3"]
    assert from_hf({"model_type": "mistral3", "text_config": inner}).family == "ministral3"
    assert from_hf({"model_type": "mistral3", "text_config": {**inner, "model_type": "mistral"}}).family == "mistral"


def test_rows_that_are_not_there_are_missed_when_a_matrix_is_cut(tmp_path: Path) -> None:
    arrays = make_weights(MORE_CASES["phi3"])
    arrays["model.layers.1.self_attn.qkv_proj.weight"] = np.zeros((100, 64), np.float32)
    with pytest.raises(CorruptFile, match=r"qkv_proj.weight has 100 rows, but .* 128"):
        load(open_model([], write_hf(tmp_path, MORE_CASES["phi3"], arrays)), ReferenceBackend())


HYBRIDS = ["qwen3_next", "qwen3_5", "qwen3_5_moe", "gemma4_e", "mistral4", "granite4_h", "granite4_h_dense"]
WITH_STATES = [case for case in HYBRIDS if case not in ("gemma4_e", "mistral4")]


def loaded_case(case: str, folder: Path, backend: Backend) -> Loaded:
    return load(open_model([], write_hf(folder, MORE_CASES[case], make_weights(MORE_CASES[case]))), backend)


def engine_of(loaded: Loaded, backend: Backend, whole_texts: int = 0, **more: Any) -> Engine:
    config = EngineConfig(context_size=32, page_size=4, kv_dtype="f32", prefill_chunk_size=5, **more)
    return build_engine(backend, loaded.decoder, config, whole_texts=whole_texts)[0]


@pytest.mark.parametrize("name", backends_here.NAMES)
@pytest.mark.parametrize("case", HYBRIDS)
def test_hybrids_are_served_as_they_run_alone(case: str, name: str, tmp_path: Path) -> None:
    """Batched, chunked, preempted and forked: states of sequences and pages of keys go together."""
    backend = backends_here.backend(name)
    loaded = loaded_case(case, tmp_path, backend)
    prompts = [token_ids()[:n] for n in (3, 17, 9, 20)]
    wanted = [alone(loaded, backend, prompt, 8)[len(prompt) :] for prompt in prompts]
    engine = engine_of(loaded, backend, max_batch_size=3)
    sequences = [engine.submit(ResolvedRequest(prompt, greedy(8), Tally)) for prompt in prompts]
    for _ in range(4):
        engine.step()
    engine.scheduler._preempt(engine.scheduler.running[0])  # as when pages run out
    while not all(seq.done for seq in sequences):
        engine.step()
    assert [seq.tokens[len(prompt) :] for seq, prompt in zip(sequences, prompts, strict=True)] == wanted
    parent = engine.submit(ResolvedRequest(prompts[1], greedy(8, n=3), Tally))
    while not all(seq.done for seq in (parent, *parent.queueing.forks)):
        engine.step()
    assert [seq.tokens[len(prompts[1]) :] for seq in (parent, *parent.queueing.forks)] == [wanted[1]] * 3


@pytest.mark.parametrize("name", backends_here.NAMES)
@pytest.mark.parametrize("case", WITH_STATES)
def test_hybrids_go_on_from_the_prefix_cache(
    case: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages and a checkpoint of the states: of the same prompt, and where two others part."""
    monkeypatch.setattr("tahr.kv.prefix.LEAST_KEPT", 4)
    backend = backends_here.backend(name, deterministic=True)
    loaded = loaded_case(case, tmp_path, backend)
    prompts = [token_ids()[:18], token_ids()[:18], *([*token_ids()[:10], 5 + i, 7, 9, 3, 2] for i in range(3))]
    engine, n_cached = engine_of(loaded, backend), []
    for prompt in prompts:
        seq = engine.submit(ResolvedRequest(prompt, greedy(8), Tally))
        while not seq.done:
            engine.step()
        assert seq.tokens == alone(loaded, backend, prompt, 8)
        n_cached.append(seq.result.stats.n_cached_tokens)
    assert n_cached == [0, 16, 0, 8, 8]


@pytest.mark.parametrize("name", backends_here.NAMES)
@pytest.mark.parametrize("case", WITH_STATES)
def test_sessions_of_hybrids_go_back_and_are_restored_from_snapshots(case: str, name: str, tmp_path: Path) -> None:
    """One shot, in pieces, after going back, from a copy and a snapshot: the same logits, on the CPU to the bit."""
    backend = backends_here.backend(name)
    loaded = loaded_case(case, tmp_path, backend)
    engines = [engine_of(loaded, backend, whole_texts=2, prefix_cache=False) for _ in range(3)]
    session, other, third = (Session(engine, "tiny") for engine in engines)
    text = token_ids()[:24]
    row = session.feed(text)
    session.truncate(0)
    session.feed(text[:14])
    copy, snapshot = session.copy(), take(session, InferenceConfig(), "tiny", "0")
    rows = [session.feed(text[14:])]
    session.truncate(14)
    rows.append(session.feed(text[14:]))
    other.feed(text[:3])
    other.restore(copy)
    rows.append(other.feed(text[14:]))
    put_back(third, *unpack(snapshot))
    rows.append(third.feed(text[14:]))
    for got in rows:
        np.testing.assert_allclose(got, row, rtol=0, atol=0 if name == "cpu" else 1e-4)


def test_a_latent_layer_is_not_stored_as_q8_0(tmp_path: Path) -> None:
    config, backend = MORE_CASES["deepseek_v3"], backends_here.backend("cpu")
    loaded = load(open_model([], write_hf(tmp_path, config, make_weights(config))), backend)
    with pytest.raises(ConfigError, match=r"one compressed vector per token .* ask for a KV cache of f16"):
        build_engine(backend, loaded.decoder, EngineConfig(context_size=32, kv_dtype="q8_0"))


# The numbers of released config.json files; what is left out equals the family's defaults.
RELEASED: dict[str, dict[str, Any]] = {
    "gpt-oss-20b": {
        "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
        "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "attention_bias": True,
        "max_position_embeddings": 131072, "rope_theta": 150000, "swiglu_limit": 7.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                         "original_max_position_embeddings": 4096},
        "quantization_config": {"quant_method": "mxfp4"},
    },
    "glm-4.5-air": {
        "model_type": "glm4_moe", "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
        "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151552,
        "n_routed_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "first_k_dense_replace": 1,
        "attention_bias": True, "rope_theta": 1000000, "max_position_embeddings": 131072,
    },
    "qwen3-next-80b-a3b": {
        "model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 151936,
        "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512, "rope_theta": 10000000,
        "shared_expert_intermediate_size": 512, "max_position_embeddings": 262144,
    },
    "phi-4": {
        "model_type": "phi3", "hidden_size": 5120, "intermediate_size": 17920, "num_hidden_layers": 40,
        "num_attention_heads": 40, "num_key_value_heads": 10, "vocab_size": 100352, "rope_theta": 250000,
        "max_position_embeddings": 16384, "original_max_position_embeddings": 16384, "sliding_window": None,
    },
    "command-r7b": {
        "model_type": "cohere2", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 256000,
        "sliding_window": 4096, "sliding_window_pattern": 4, "rope_theta": 50000, "logit_scale": 0.25,
        "max_position_embeddings": 132096,
    },
    "smollm3-3b": {
        "model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
        "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 128256, "rope_theta": 5000000.0,
        "max_position_embeddings": 65536, "no_rope_layers": [1, 1, 1, 0] * 9,
    },
    "falcon-40b": {
        "model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128,
        "num_kv_heads": 8, "vocab_size": 65024, "new_decoder_architecture": True, "parallel_attn": True,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
        "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
        "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 163840,
        "rope_theta": 10000, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True,
        "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                         "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096},
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    },
    "glm-4.7-flash": {
        "model_type": "glm4_moe_lite", "hidden_size": 2048, "intermediate_size": 10240, "num_hidden_layers": 47,
        "num_attention_heads": 20, "num_key_value_heads": 20, "vocab_size": 154880, "n_routed_experts": 64,
        "num_experts_per_tok": 4, "moe_intermediate_size": 1536, "first_k_dense_replace": 1, "kv_lora_rank": 512,
        "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
        "routed_scaling_factor": 1.8, "max_position_embeddings": 202752, "rope_theta": 1000000,
    },
    "granite-4.0-h-tiny": {
        "model_type": "granitemoehybrid", "hidden_size": 1536, "intermediate_size": 512, "num_hidden_layers": 40,
        "num_attention_heads": 12, "num_key_value_heads": 4, "vocab_size": 100352, "num_local_experts": 64,
        "num_experts_per_tok": 6, "shared_intermediate_size": 1024, "mamba_n_heads": 48, "mamba_d_head": 64,
        "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2,
        "position_embedding_type": "nope", "embedding_multiplier": 12, "attention_multiplier": 0.0078125,
        "layer_types": ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
        "max_position_embeddings": 131072,
    },
    "llama-4-scout": {"model_type": "llama4", "text_config": {
        "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 202048, "num_local_experts": 16, "num_experts_per_tok": 1, "rope_theta": 500000.0,
        "max_position_embeddings": 10485760, "attention_chunk_size": 8192, "use_qk_norm": True,
        "rope_scaling": {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
                         "original_max_position_embeddings": 8192},
    }},
    "bloom-176b": {"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112,
                   "vocab_size": 250880, "seq_length": 2048},
}  # fmt: skip
FACTS = {  # layers, key heads, head width, layers with a window, experts, layers with a state
    "gpt-oss-20b": (24, 8, 64, 12, 32, 0),
    "glm-4.5-air": (46, 8, 128, 0, 128, 0),
    "qwen3-next-80b-a3b": (48, 2, 256, 0, 512, 36),
    "phi-4": (40, 10, 128, 0, 0, 0),
    "command-r7b": (32, 8, 128, 24, 0, 0),
    "smollm3-3b": (36, 4, 128, 0, 0, 0),
    "falcon-40b": (60, 8, 64, 0, 0, 0),
    "bloom-176b": (70, 112, 128, 0, 0, 0),
    "deepseek-v3": (61, 1, 576, 0, 256, 0),
    "glm-4.7-flash": (47, 1, 576, 0, 64, 0),
    "granite-4.0-h-tiny": (40, 4, 128, 0, 64, 36),
    "llama-4-scout": (48, 8, 128, 36, 16, 0),
}


@pytest.mark.parametrize("name", RELEASED)
def test_released_configs_are_read(name: str) -> None:
    cfg = from_hf(RELEASED[name])
    windows, states = sum(map(bool, cfg.windows)), sum(kind.recurrent for kind in cfg.kinds)
    n_experts = cfg.moe.n_experts if cfg.moe else 0
    assert (cfg.n_layers, cfg.n_kv_heads, cfg.head_dim, windows, n_experts, states) == FACTS[name]


def test_a_longer_context_has_the_factors_of_long_texts(tmp_path: Path) -> None:
    opened = open_model([], write_hf(tmp_path, MORE_CASES["phi3_long"], {}, "F32"))
    plain = builder.for_context(opened, EngineConfig()).model_config()
    assert plain.max_context == 32 and "ask with -c 512" in builder.note_on_context(plain)
    for config in (EngineConfig(context_size=33), EngineConfig(context_share=0.5)):
        cfg = builder.for_context(opened, config).model_config()
        assert cfg.max_context == 512 and builder.note_on_context(cfg) == ""
        assert identity_of("digest", "q8_0", cfg) == "digest q8_0 long texts"
        assert cfg.kinds[0].rope.scaling.divisors == (1.0, 2.0, 4.0, 8.0)  # type: ignore[union-attr]
    within = builder.for_context(opened, EngineConfig(context_size=32)).model_config()
    assert within == plain and identity_of("digest", None, plain) == "digest"
