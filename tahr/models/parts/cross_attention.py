"""Attention of a text's tokens to the rows of an encoder."""

from tahr.backends.api import AttentionSpec, Backend, CrossShape, LayerMemory, Rotation, StepInputs, Tensor
from tahr.models.config.record import ModelConfig
from tahr.models.parts.stream import ForwardPass, NormedInput, ResidualStream
from tahr.models.parts.sublayers import DecoderLayer, Mixer, Sublayer
from tahr.models.parts.weights import Norm, Weights


class CrossAttention:
    """All tokens look at all rows, whose keys and values the encoder stores once, in memory that follows that of the
    text's own layers."""

    def __init__(self, cfg: ModelConfig, layer: int, n_rows: int, w: Weights):
        width = cfg.n_heads * cfg.head_dim
        self.memory = CrossShape(cfg.n_heads, cfg.head_dim, n_rows=n_rows)
        self.layer = cfg.n_layers + layer
        self.rope = cfg.kinds[layer].rope
        self.style = cfg.rope_style
        self.spec = AttentionSpec(cfg.attn_scale, causal=False)
        w.backend.check_attention(self.spec, self.memory, cfg.n_heads)
        self.query = w.joined({"q_proj": width}, cfg.width, bias=True)
        self.keys_values = w.joined({"k_proj": width, "v_proj": width}, cfg.width, bias=True)
        self.out = w.linear("o_proj", cfg.width, width, bias=True)

    def queries(self, run: ForwardPass, x: NormedInput) -> Tensor:
        """The queries of tokens, as they meet the keys in memory."""
        rotation = Rotation(run.cos_sin(self.rope), self.style)
        return run.backend.rope_and_cache(x.linears(self.query), rotation, run.memory(self.layer))

    def attended(self, run: ForwardPass, queries: Tensor) -> Tensor:
        """The result of tokens' queries."""
        b = run.backend
        return b.linear(b.attention(queries, self.spec, run.memory(self.layer)), self.out)

    def store(self, b: Backend, rows: Tensor, cos_sin: Tensor, step: StepInputs) -> None:
        """Store what tokens look at: keys and values of an encoder's rows."""
        assert step.target_memory, "rows are stored in the memory of the layers that read them"
        keys, values = b.linears(rows, self.keys_values)
        b.store_cross(keys, values, Rotation(cos_sin, self.style), LayerMemory(step, step.target_memory, self.layer))


class CrossedLayer(DecoderLayer):
    """A layer whose tokens look at each other, then at the rows of an encoder."""

    def __init__(self, attention: Mixer, cross: CrossAttention, ffn: Sublayer, norms: tuple[Norm, Norm, Norm]):
        super().__init__(attention, ffn, (norms[0], norms[2]))
        self.cross = cross
        self.cross_norm = norms[1]

    def attention(self, run: ForwardPass, stream: ResidualStream) -> None:
        """Let tokens read each other, and the encoder's rows."""
        self.crossed(run, stream)

    def crossed(self, run: ForwardPass, stream: ResidualStream) -> Tensor:
        """`attention`; the queries with which tokens look at the rows."""
        super().attention(run, stream)
        queries = self.cross.queries(run, NormedInput(stream, self.cross_norm))
        stream.add(self.cross.attended(run, queries))
        return queries
