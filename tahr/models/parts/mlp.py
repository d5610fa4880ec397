"""MLPs, plain, gated or chosen by a router."""

from tahr.backends.api import Backend, ExpertMLPs, Routing, Tensor
from tahr.models.config.record import ModelConfig, MoeConfig
from tahr.models.parts.stream import ForwardPass, NormedInput
from tahr.models.parts.weights import Weights


class GatedMLP:
    """down(act(gate(x)) * up(x)), in some families with a norm before down."""

    def __init__(self, cfg: ModelConfig, w: Weights, ffn_width: int | None = None):
        n = ffn_width or cfg.ffn_width
        self.act = cfg.activation
        self.gate_up = w.joined({"gate_proj": n, "up_proj": n}, cfg.width, cfg.mlp_bias)
        self.down = w.linear("down_proj", cfg.width, n, cfg.mlp_bias)
        self.sub_norm = w.norm("ffn_sub_norm", n) if w.has("ffn_sub_norm.weight") else None

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor:
        return self.downward(run.backend, x.gated(self.gate_up, self.act))

    def of_rows(self, b: Backend, rows: Tensor) -> Tensor:
        """Compute from rows that another sublayer reads too."""
        return self.downward(b, b.gated(rows, self.gate_up, self.act))

    def downward(self, b: Backend, inner: Tensor) -> Tensor:
        return b.linear(self.sub_norm.apply(b, inner) if self.sub_norm else inner, self.down)


class PlainMLP:
    """down(act(up(x)))."""

    def __init__(self, cfg: ModelConfig, w: Weights):
        self.act = cfg.activation
        self.up = w.joined({"up_proj": cfg.ffn_width}, cfg.width, cfg.mlp_bias)
        self.down = w.linear("down_proj", cfg.width, cfg.ffn_width, cfg.mlp_bias)

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor:
        (up,) = x.linears(self.up)
        return run.backend.linear(run.backend.activate(up, None, self.act), self.down)


class Experts:
    """A gated MLP per expert; a router sends each token to a few of them, and all to the shared one if there is one."""

    def __init__(self, cfg: ModelConfig, w: Weights):
        assert cfg.moe is not None
        moe = cfg.moe
        experts = w.at("experts")
        self.router = w.linear("gate", moe.n_experts, cfg.width, moe.biased)
        self.mlps = ExpertMLPs(
            gate=experts.stack("gate_proj", moe.n_experts, moe.ffn_width, cfg.width, moe.biased),
            up=experts.stack("up_proj", moe.n_experts, moe.ffn_width, cfg.width, moe.biased),
            down=experts.stack("down_proj", moe.n_experts, cfg.width, moe.ffn_width, moe.biased),
            routing=routing(moe, w),
            act=cfg.activation,
        )
        self.shared_gate = w.linear("shared_expert_gate", 1, cfg.width) if moe.shared_gate else None
        self.shared = GatedMLP(cfg, w.at("shared_experts"), moe.shared_width) if moe.shared_width else None

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor:
        b = run.backend
        rows = x.rows()
        mixed = b.experts(rows, b.linear(rows, self.router), self.mlps)
        if self.shared is None:
            return mixed
        shared = self.shared.of_rows(b, rows)
        return b.add(mixed, b.gate_rows(shared, b.linear(rows, self.shared_gate)) if self.shared_gate else shared)


def routing(moe: MoeConfig, w: Weights) -> Routing:
    bias = w.vector("gate.e_score_correction.bias", moe.n_experts) if moe.choice_bias else None
    return Routing(
        moe.n_active,
        moe.renormalise,
        moe.sigmoid,
        bias,
        moe.n_groups,
        moe.n_best_groups,
        moe.group_top,
        scale=moe.scale,
        scales_input=moe.scales_input,
        jitter=moe.jitter,
    )
