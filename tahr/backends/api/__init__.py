"""The op interface: everything a model may ask of a device, with the numerics each op promises.

Activations are flat rows `[n, width]` of f32-valued numbers with no batch axis. An op call enqueues and returns at
once; `flush` runs the queue; `record` keeps the queue as a `Plan` whose `run` replays it. Addresses stay fixed and
contents change: a step reads changing facts only from its `StepInputs`, so one plan serves every step that fits.

Ops are functional: they return new tensors and never write their arguments (but for the memory of layers). A backend
may therefore reuse the memory of a tensor as soon as the last Python reference to it is gone.

Unless an op says otherwise: inputs and results are f32, sums are accumulated in f32, and a row's result does not
depend on which other rows are in the batch (on a backend that is not `deterministic`: but for its last bits).
"""

from tahr.backends.api.arguments import (
    Activation,
    AddedNorm,
    AttentionScaling,
    AttentionSpec,
    DeltaNet,
    ExpertMLPs,
    HeadNorms,
    Rope,
    RopeStyle,
    Rotation,
    Routing,
    StateSpace,
    StateSpaceSizes,
)
from tahr.backends.api.backend import Backend
from tahr.backends.api.lora import (
    LORA_TILE,
    MAX_ADAPTERS,
    MAX_RANK,
    MAX_STACK,
    HostLoraBank,
    LinearShape,
    LoraBank,
    LoraFactors,
    LoraRows,
)
from tahr.backends.api.memory import (
    KV_BLOCK,
    NULL_SLOT,
    KVShape,
    KVStore,
    LayerMemory,
    LayerShape,
    MemoryLayout,
    StateShape,
    kv_sides,
    rotated_together,
    stored_head_bytes,
)
from tahr.backends.api.pages import (
    PINNED_BYTES,
    EndedCopy,
    HostPages,
    PageForm,
    PageIO,
    PageIOAtOnce,
    Ticket,
    check_content,
    check_pages,
    page_form,
)
from tahr.backends.api.recording import Fetched, HostRows
from tahr.backends.api.step import Plan, StepDefaults, StepInputs, StepLimits
from tahr.backends.api.tensors import (
    INT8_BLOCK,
    Bytes,
    Doubles,
    Floats,
    Ints,
    JoinedLinears,
    Linear,
    Rows,
    Tensor,
    Vector,
    Weight,
)

__all__ = [
    "INT8_BLOCK",
    "KV_BLOCK",
    "LORA_TILE",
    "MAX_ADAPTERS",
    "MAX_RANK",
    "MAX_STACK",
    "NULL_SLOT",
    "PINNED_BYTES",
    "Activation",
    "AddedNorm",
    "AttentionScaling",
    "AttentionSpec",
    "Backend",
    "Bytes",
    "DeltaNet",
    "Doubles",
    "EndedCopy",
    "ExpertMLPs",
    "Fetched",
    "Floats",
    "HeadNorms",
    "HostLoraBank",
    "HostPages",
    "HostRows",
    "Ints",
    "JoinedLinears",
    "KVShape",
    "KVStore",
    "LayerMemory",
    "LayerShape",
    "Linear",
    "LinearShape",
    "LoraBank",
    "LoraFactors",
    "LoraRows",
    "MemoryLayout",
    "PageForm",
    "PageIO",
    "PageIOAtOnce",
    "Plan",
    "Rope",
    "RopeStyle",
    "Rotation",
    "Routing",
    "Rows",
    "StateShape",
    "StateSpace",
    "StateSpaceSizes",
    "StepDefaults",
    "StepInputs",
    "StepLimits",
    "Tensor",
    "Ticket",
    "Vector",
    "Weight",
    "check_content",
    "check_pages",
    "kv_sides",
    "page_form",
    "rotated_together",
    "stored_head_bytes",
]
