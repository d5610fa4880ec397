"""Attention to a compressed key per token (DeepSeek's MLA), in its absorbed form: the mixer of latent layers."""

from tahr.backends.api import AttentionSpec, KVShape, Rotation, Tensor
from tahr.models.config.record import ModelConfig
from tahr.models.parts.stream import ForwardPass, NormedInput
from tahr.models.parts.weights import Weights


class LatentAttention:
    """A token keeps a latent vector and one rotated key for all heads; keys and values of heads are linears of the
    latent. A query head goes through the linear of its keys instead, so that it meets the latent itself, and the linear
    of its values is applied to what it found."""

    def __init__(self, cfg: ModelConfig, layer: int, w: Weights):
        assert cfg.latent is not None
        latent = cfg.latent
        n = cfg.n_heads
        self.layer = layer
        self.n_heads = n
        self.rope = cfg.kinds[layer].rope
        self.style = cfg.rope_style
        self.memory = KVShape(1, latent.rope_dim + latent.rank, latent.rank)
        self.spec = AttentionSpec(cfg.attn_scale)
        self.attn_scaling = cfg.attn_scaling
        w.backend.check_attention(self.spec, self.memory, n)
        queries = {"q_nope_proj": n * latent.nope_dim, "q_rope_proj": n * latent.rope_dim}
        first = {"q_a_proj": latent.q_rank} if latent.q_rank else queries
        self.inward = w.joined(first | {"kv_a_proj": latent.rank, "k_rope_proj": latent.rope_dim}, cfg.width)
        self.q_norm = w.norm("q_a_layernorm", latent.q_rank) if latent.q_rank else None
        self.q_up = w.joined(queries, latent.q_rank) if latent.q_rank else None
        self.norm = w.norm("kv_a_layernorm", latent.rank)
        self.absorb = w.stack("k_b_proj", n, latent.rank, latent.nope_dim)
        self.values = w.stack("v_b_proj", n, latent.value_dim, latent.rank)
        self.out = w.linear("o_proj", cfg.width, n * latent.value_dim)

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor:
        b = run.backend
        memory = run.memory(self.layer)
        *queries, latent, k_rope = x.linears(self.inward)
        if self.q_norm and self.q_up:
            queries = b.linears(self.q_norm.apply(b, queries[0]), self.q_up)
        q = b.join_heads(queries[1], b.head_linears(queries[0], self.absorb), self.n_heads)
        key = b.join_heads(k_rope, self.norm.apply(b, latent), 1)
        q = b.rope_and_cache([q, key], Rotation(run.cos_sin(self.rope), self.style), memory)
        del queries, latent, k_rope, key  # frees memory for the ops that follow
        if self.attn_scaling:
            q = b.scale_queries(q, self.attn_scaling, run.step)
        return b.linear(b.head_linears(b.attention(q, self.spec, memory), self.values), self.out)
