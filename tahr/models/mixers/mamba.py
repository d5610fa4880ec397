"""The selective state space of Mamba-2: the mixer of recurrent layers."""

from tahr.backends.api import StateShape, StateSpace, Tensor
from tahr.models.config.record import ModelConfig
from tahr.models.mixers.recurrence import decay, flat, taps
from tahr.models.parts.stream import ForwardPass, NormedInput
from tahr.models.parts.weights import Weights


class MambaMixer:
    """out(state_space(in(x))), with a state per sequence in place of keys and values."""

    def __init__(self, cfg: ModelConfig, layer: int, w: Weights):
        assert cfg.mamba is not None
        mamba = cfg.mamba
        self.layer = layer
        n = mamba.n_heads
        width = mamba.width
        channels = mamba.channels
        self.net = StateSpace(
            n,
            mamba.head_dim,
            mamba.n_groups,
            mamba.state_dim,
            mamba.kernel,
            mamba.n_norm_groups,
            conv=taps(w, channels, mamba.kernel),
            conv_bias=w.vector("conv1d.bias", channels) if w.has("conv1d.bias") else None,
            decay=decay(w, n),
            dt_bias=w.vector("dt.bias", n),
            skip=w.upload(flat(w, "D", n)),
            gain=w.upload(flat(w, "norm.weight", width)) if w.has("norm.weight") else None,
            eps=cfg.norm_eps,
        )
        w.backend.check_state_space(self.net)
        self.memory = StateShape((self.net.state_width,))
        heights = {"z_proj": width, "xbc_proj": channels, "dt_proj": n}
        self.inward = w.joined(heights, cfg.width, w.has("z_proj.bias"))
        self.out = w.linear("out_proj", cfg.width, width, w.has("out_proj.bias"))

    def __call__(self, run: ForwardPass, x: NormedInput) -> Tensor:
        mixed = run.backend.state_space(x.linears(self.inward), self.net, run.memory(self.layer))
        return run.backend.linear(mixed, self.out)
