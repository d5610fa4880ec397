"""The experts of Gemma 4 26B-A4B: beside a dense MLP, chosen by and reading rows with norms of their own."""

from tahr.backends.api import ExpertMLPs, Routing, Tensor
from tahr.models.config.record import ModelConfig
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.mlp import GatedMLP
from tahr.models.parts.stream import ForwardPass, NormedInput
from tahr.models.parts.weights import Norm, Weights


class DenseAndExperts:
    """norm(mlp(x)) + norm(experts(norm of the stream)); the router reads the stream through a third norm."""

    def __init__(self, cfg: ModelConfig, at: Weights, ffn_width: int):
        assert cfg.moe is not None
        n = cfg.moe.n_experts
        ffn = cfg.moe.ffn_width
        experts = at.at("experts")
        router = at.at("router")
        self.mlp = GatedMLP(cfg, at.at("mlp"), ffn_width)
        self.before = at.norm("pre_feedforward_layernorm_2")
        self.after = at.pick("post_feedforward_layernorm_1", "post_feedforward_layernorm_2")
        gain = router.find("scale.weight", (cfg.width,)).dense() * cfg.width**-0.5
        self.router_norm = Norm(at.upload(gain), cfg.norm_eps)
        self.router = router.linear("proj", n, cfg.width)
        self.mlps = ExpertMLPs(
            gate=experts.stack("gate_proj", n, ffn, cfg.width),
            up=experts.stack("up_proj", n, ffn, cfg.width),
            down=experts.stack("down_proj", n, cfg.width, ffn),
            routing=Routing(cfg.moe.n_active, True, factors=router.vector("per_expert_scale.weight", n)),
            act=cfg.activation,
        )

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor:
        b = run.backend
        dense = self.mlp(run, x)
        rows = x.unnormed()
        scores = b.linear(self.router_norm.apply(b, rows), self.router)
        chosen = b.experts(self.before.apply(b, rows), scores, self.mlps)
        return b.add(self.after[0].apply(b, dense), self.after[1].apply(b, chosen))


def arrange(cfg: ModelConfig, tensors: Tensors) -> Tensors:
    if cfg.moe:
        layer = r"(model\.layers\.\d+)"
        tensors.rename(rf"{layer}\.router\.proj\.scale", r"\1.router.scale.weight")
        tensors.rename(rf"{layer}\.experts\.down_proj\.scale", r"\1.router.per_expert_scale.weight")
        heights = {f"experts.{part}_proj": cfg.moe.ffn_width for part in ("gate", "up")}
        tensors.split("experts.gate_up_proj", heights)
    return tensors


HF_NAMES = {
    "experts.gate_up_proj": "experts.gate_up_proj.weight",
    "experts.down_proj": "experts.down_proj.weight",
    "router.scale": "router.scale.weight",
    "router.per_expert_scale": "router.per_expert_scale.weight",
}
GGUF_NAMES = {
    "ffn_gate_up_exps": "experts.gate_up_proj",
    "ffn_down_exps": "experts.down_proj",
    "ffn_gate_inp": "router.proj",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
}
