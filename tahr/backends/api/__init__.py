"""The op interface: everything a model may ask of a device, with the numerics each op promises.

Activations are flat rows `[n, width]` of f32-valued numbers with no batch axis. An op call enqueues and returns at
once; `flush` runs the queue; `record` keeps the queue as a `Plan` whose `run` replays it. Addresses stay fixed and
contents change: a step reads changing facts only from its `StepInputs`, so one plan serves every step that fits.

Ops are functional: they return new tensors and never write their arguments (the KV store is the one exception). A
backend may therefore reuse the memory of a tensor as soon as the last Python reference to it is gone.

Unless an op says otherwise: inputs and results are f32, sums are accumulated in f32, and a row's result does not
depend on which other rows are in the batch (on a backend that is not `deterministic`: but for its last bits).
"""

from tahr.backends.api.arguments import Activation, HeadNorms, Rope, RopeStyle, Routing
from tahr.backends.api.backend import Backend
from tahr.backends.api.memory import KV_BLOCK, KV_BLOCK_BYTES, KVShape, KVStore, Memory, layer_groups, stored_head_bytes
from tahr.backends.api.step import Plan, StepInputs, StepLimits
from tahr.backends.api.tensors import INT8_BLOCK, Bytes, Doubles, Floats, Ints, Rows, Tensor, Vector, Weight

__all__ = [
    "INT8_BLOCK",
    "KV_BLOCK",
    "KV_BLOCK_BYTES",
    "Activation",
    "Backend",
    "Bytes",
    "Doubles",
    "Floats",
    "HeadNorms",
    "Ints",
    "KVShape",
    "KVStore",
    "Memory",
    "Plan",
    "Rope",
    "RopeStyle",
    "Routing",
    "Rows",
    "StepInputs",
    "StepLimits",
    "Tensor",
    "Vector",
    "Weight",
    "layer_groups",
    "stored_head_bytes",
]
