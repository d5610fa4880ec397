"""Linear attention by the gated delta rule: the mixer of recurrent layers."""

from tahr.backends.api import DeltaNet, StateShape, Tensor
from tahr.models.config.record import ModelConfig
from tahr.models.mixers.recurrence import decay, taps
from tahr.models.parts.stream import ForwardPass, NormedInput
from tahr.models.parts.weights import Weights


class DeltaMixer:
    """out(delta_net(in(x))), with a state per sequence in place of keys and values."""

    def __init__(self, cfg: ModelConfig, layer: int, w: Weights):
        assert cfg.delta is not None
        delta = cfg.delta
        self.layer = layer
        self.net = DeltaNet(
            delta.n_k_heads,
            delta.n_v_heads,
            delta.k_dim,
            delta.v_dim,
            delta.kernel,
            delta.tiled,
            conv=taps(w, 2 * delta.n_k_heads * delta.k_dim + delta.n_v_heads * delta.v_dim, delta.kernel),
            decay=decay(w, delta.n_v_heads),
            dt_bias=w.vector("dt.bias", delta.n_v_heads),
            gain=w.vector("norm.weight", delta.v_dim),
            eps=cfg.norm_eps,
        )
        w.backend.check_delta_net(self.net)
        self.memory = StateShape((self.net.state_width,))
        n = delta.n_v_heads
        n_values = delta.n_v_heads * delta.v_dim
        heights = {"in_proj_qkv": self.net.channels, "in_proj_z": n_values, "in_proj_b": n, "in_proj_a": n}
        self.inward = w.joined(heights, cfg.width)
        self.out = w.linear("out_proj", cfg.width, n_values)

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor:
        mixed = run.backend.delta_net(x.linears(self.inward), self.net, run.memory(self.layer))
        return run.backend.linear(mixed, self.out)
