"""Size of a model on a backend, from the headers of its files: the model is built of tensors without bytes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, cast

import numpy as np

from tahr.backends.api import Backend, JoinedLinears, Linear, Vector, Weight
from tahr.backends.host.budget import HOST_SHARE
from tahr.config import EngineConfig
from tahr.errors import ConfigError, LoadError
from tahr.loading.budgets import (
    budget_bytes,
    experts_on_host,
    least_budget,
    policy_of,
    refuse_budgets,
    refuse_too_large_for_host,
    streamed_within,
    with_budget,
)
from tahr.loading.capacity import KVGroup, kv_groups, state_bytes
from tahr.loading.memory_plan import MemoryPlan, check_kv_dtype, plan_memory
from tahr.loading.placement import DeviceFacts, Placement, Pool, place, refuse_too_large
from tahr.loading.ranks import refuse_beside_ranks, refuse_drafter_beside_ranks
from tahr.loading.row_inputs import ROW_NUMBER_BYTES, inputs_of, n_row_slots, row_bytes
from tahr.loading.speculation import Draft, drafter_pool
from tahr.models.decoder import Decoder
from tahr.models.loader.drafters import LoadedDrafter, is_drafter, load_drafter
from tahr.models.loader.load import Loaded, OpenedModel, load
from tahr.models.parts.weights import NO_HOMES
from tahr.offload.homes import Home, Homes, Panels, TensorSize
from tahr.offload.plan import PagedPlan, plan_paging, refuse_budget
from tahr.weights.tensor import HostTensor
from tahr.weights.unread import without_data

VECTORS = "vectors"
ROW_SLOTS = "row slots"
LORA_BYTES = 2  # size of a number in adapter rows


PanelKey = tuple[str, int, int, int]


def panel_key(weight: Weight) -> PanelKey:
    """A matrix by its name in the file, which pieces of a tensor share, and its shape."""
    return weight.name, weight.n_stack, weight.n_rows, weight.n_cols


class SizingBackend:
    """A backend that is told of weights and takes none; for all else it is the one it stands for."""

    def __init__(self, backend: Backend):
        self.backend = backend
        self.n_taken = 0
        self.panels: dict[PanelKey, Panels | None] = {}
        self.n_lora_bytes = 0
        self.n_row_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def weight(self, tensor: HostTensor) -> Weight:
        n_bytes = self.backend.weight_bytes(tensor, self.n_taken)
        file_bytes = self.backend.file_bytes(tensor)
        self.n_taken += 0 if file_bytes else n_bytes
        n_stack = prod(tensor.shape[:-2])
        (n_rows, n_cols) = tensor.shape[-2:]
        weight = Weight(tensor.name, tensor.format.name, "", n_rows, n_cols, n_bytes, None, n_stack, file_bytes)
        self._keep_panels(panel_key(weight), self.backend.panels(tensor))
        return weight

    def weight_elsewhere(self, tensor: HostTensor, home: Home) -> Weight:
        n_bytes = self.backend.bytes_elsewhere(tensor, home)
        (n_rows, n_cols) = tensor.shape[-2:]
        return Weight(tensor.name, tensor.format.name, "", n_rows, n_cols, n_bytes, None, prod(tensor.shape[:-2]))

    def _keep_panels(self, key: PanelKey, panels: Panels | None) -> None:
        """All pieces of one tensor that are of one shape can be paged, or none."""
        self.panels[key] = panels if self.panels.get(key, panels) else None

    def vector(self, values: "np.ndarray[Any, np.dtype[np.float32]]") -> Vector:
        self.n_taken += 4 * len(values)
        return Vector(len(values), None)

    def join(self, linears: Sequence[Linear], lora_rows: int = 0) -> JoinedLinears:
        """Rows for adapters lie behind matrices of 16-bit floats."""
        is_half = all(linear.weight.format in ("F16", "BF16") for linear in linears)
        columns = sum(linear.weight.n_cols for linear in linears)
        self.n_lora_bytes += lora_rows * columns * LORA_BYTES if is_half else 0
        return JoinedLinears(tuple(linears))

    def kv_budget(self, share: float | None) -> int:
        """Memory that remains once the weights and row slots are there; a host gives row slots as they are filled."""
        taken = self.n_taken + self.n_lora_bytes + (self.n_row_bytes if self.has_own_memory else 0)
        return max(0, self.backend.kv_budget(share) - (taken if self.has_own_memory else taken // HOST_SHARE))


def size_up(
    source: OpenedModel,
    backend: SizingBackend,
    quantize: str | None = None,
    lora_rows: int = 0,
    n_ranks: int = 1,
    homes: Homes = NO_HOMES,
) -> Loaded:
    """The model as `load` makes it, of tensors without bytes."""
    tensors = {name: without_data(tensor) for name, tensor in source.tensors.items()}
    unread = replace(source, tensors=tensors)
    return load(unread, cast(Backend, backend), quantize=quantize, lora_rows=lora_rows, homes=homes, n_ranks=n_ranks)


def size_up_drafter(source: OpenedModel, backend: SizingBackend, target: Decoder) -> LoadedDrafter:
    """A drafter as `load_drafter` makes it, of tensors without bytes."""
    tensors = {name: without_data(tensor) for name, tensor in source.tensors.items()}
    return load_drafter(replace(source, tensors=tensors), cast(Backend, backend), target, with_map=False)


def tensor_sizes(loaded: Loaded, panels: Mapping[PanelKey, Panels | None] | None = None) -> dict[str, TensorSize]:
    """Every tensor of a model. A head that is the embedding is a tensor of its own where the embedding is mapped."""
    panels = panels or {}
    sizes = {
        name: TensorSize(w.format, w.n_bytes, w.file_bytes, panels.get(panel_key(w)))
        for name, w in loaded.sizes.items()
    }
    decoder = loaded.decoder
    if decoder.table.file_bytes and decoder.head and decoder.head.weight is decoder.table:
        table = decoder.table
        sizes["lm_head.weight"] = TensorSize(table.format, table.n_bytes, panels=panels.get(panel_key(table)))
    return sizes | {VECTORS: TensorSize("F32", loaded.n_vector_bytes)}


def plan_of(
    source: OpenedModel,
    backend: Backend,
    config: EngineConfig,
    lora_rows: int = 0,
    draft: OpenedModel | None = None,
    whole_texts: int = 0,
) -> Placement:
    """Homes and sizes of everything that a load of these files will take; no matrix is read."""
    refuse_budgets(config, backend)
    refuse_beside_ranks(config, backend)
    sizing = SizingBackend(backend)
    loaded = size_up(source, sizing, config.quantize, lora_rows, config.n_ranks)
    homes = experts_on_host(config, backend, loaded)
    if homes:
        sizing = SizingBackend(backend)
        loaded = size_up(source, sizing, config.quantize, lora_rows, homes=homes)
        refuse_too_large_for_host(sum(loaded.sizes[name].n_bytes for name in homes))
    sizes = tensor_sizes(loaded, sizing.panels)
    drafted = None
    if draft and is_drafter(draft):
        refuse_drafter_beside_ranks(config)
        found = size_up_drafter(draft, sizing, loaded.decoder)
        drafted = Draft(draft.name, found.drafter, found.n_weight_bytes)
        sizes |= {f"draft.{name}": size for name, size in found.sizes.items()}
        sizes["draft." + VECTORS] = TensorSize("F32", found.n_vector_bytes)
    elif draft:
        small = size_up(draft, sizing)
        drafted = Draft(draft.name, small.decoder, small.n_weight_bytes)
        sizes |= {f"draft.{name}": size for name, size in tensor_sizes(small).items()}
    devices = [device_of(backend)]
    least = least_pool_bytes(loaded.decoder, config, backend)
    is_bounded = config.ram_budget is not None or config.gpu_budget is not None
    if not is_bounded:
        refuse_too_large(place(sizes, devices, homes=homes), least)
    row_pools = row_pools_of(loaded.decoder, config)
    sizing.n_row_bytes = sum(pool.n_bytes for pool in row_pools)

    def pools_within(config: EngineConfig) -> list[Pool]:
        memory = plan_memory(cast(Backend, sizing), loaded.decoder, config, drafted, whole_texts)
        pools = [*pools_of(memory, sizing.n_lora_bytes), *row_pools]
        if drafted and drafted.drafter:
            pools.append(drafter_pool(drafted.drafter, memory.config, memory.capacity, memory.n_decode_tokens))
        return pools

    if not is_bounded:
        placed = place(sizes, devices, pools_within(config), homes=homes)
        return replace(placed, host_step_bytes=int(used_share(loaded) * placed.host_bytes))
    if config.gpu_budget is not None:
        has_experts = loaded.config.moe is not None
        pools, paged = streamed_within(config, sizes, len(loaded.decoder.layers), pools_within, has_experts)
    else:
        pools, paged = paged_within(config, sizes, loaded, pools_within)
    placed = place(sizes, devices, pools, paged)
    refuse_too_large(placed, least)
    return placed


def paged_within(
    config: EngineConfig,
    sizes: Mapping[str, TensorSize],
    loaded: Loaded,
    pools_within: Callable[[EngineConfig], list[Pool]],
) -> tuple[list[Pool], PagedPlan]:
    """Pools, and homes of the tensors beside them; a budget that is too small is refused with the least that works."""
    share = used_share(loaded)

    def plan(config: EngineConfig) -> tuple[list[Pool], PagedPlan]:
        pools = pools_within(config)
        n_bytes = sum(pool.n_bytes for pool in pools)
        policy = policy_of(config)
        return pools, plan_paging(sizes, budget_bytes(config), policy, len(loaded.decoder.layers), n_bytes, share)

    try:
        return plan(config)
    except (ConfigError, LoadError):
        budget = budget_bytes(config)
        # The memory of pools grows with the budget, so what this plan lacked does not say which budget suffices.
        least = least_budget(lambda n_bytes: plan(with_budget(config, n_bytes)), budget)
        if least is None:
            raise
        refuse_budget(budget, least, policy_of(config))


def used_share(loaded: Loaded) -> float:
    """The part of a layer's experts that a token is sent to."""
    moe = loaded.config.moe
    return moe.n_active / moe.n_experts if moe else 1.0


def least_pool_bytes(decoder: Decoder, config: EngineConfig, backend: Backend) -> int:
    """One page of all layers, and the states of one sequence beside the null slot."""
    dtype = check_kv_dtype(config.kv_dtype, backend)
    groups = kv_groups(decoder.memory, decoder.windows, config.page_size, dtype)
    return sum(group.page_bytes for group in groups) + 2 * state_bytes(decoder.memory)


def device_of(backend: Backend) -> DeviceFacts:
    """The memory that weights go to."""
    return DeviceFacts(backend.name, backend.free_bytes(), not backend.has_own_memory)


def pools_of(memory: MemoryPlan, n_lora_bytes: int = 0) -> list[Pool]:
    """Pages of every group of layers, states, and rows for adapters."""
    capacity = memory.capacity
    pools = [
        Pool(pool_name(group, memory.dtype), n, "pages", n * group.page_bytes)
        for group, n in zip(memory.groups, capacity.n_pages, strict=True)
    ]
    if capacity.slot_bytes:
        pools.append(Pool("states", capacity.n_slots, "slots", capacity.n_slots * capacity.slot_bytes))
    if n_lora_bytes:
        pools.append(Pool("adapters", 1, "part", n_lora_bytes))
    return pools


def row_pools_of(decoder: Decoder, config: EngineConfig) -> list[Pool]:
    """Row slots and the rows between the parts of a tower, if the model has one."""
    inputs = inputs_of(decoder, config)
    if inputs is None:
        return []
    pools: list[Pool] = []
    if n_slots := n_row_slots(decoder, inputs):
        pools.append(Pool(ROW_SLOTS, n_slots, "slots", n_slots * row_bytes(decoder)))
    if tower := inputs.tower:
        n_bytes = tower.n_tokens * ROW_NUMBER_BYTES * max(tower.width_in, tower.width)
        pools.append(Pool("rows of the tower", tower.n_tokens, "slots", n_bytes))
    return pools


def pool_name(group: KVGroup, dtype: str) -> str:
    """The name of the pages of a group of layers."""
    window = f", window of {group.window}" if group.window else ""
    return f"keys and values {'of inputs ' if group.n_rows else ''}in {dtype}{window}"


def summary(placement: Placement) -> str:
    """The line of the load log."""
    where = placement.devices[0].name
    in_file = f", {placement.file_bytes / 1e6:.1f} MB read in their file" if placement.file_bytes else ""
    pools = f"pools {placement.pool_bytes / 1e6:.1f} MB"
    n_row_bytes = sum(pool.n_bytes for pool in placement.pools if pool.name == ROW_SLOTS)
    rows = f", {n_row_bytes / 1e6:.1f} MB of them row slots" if n_row_bytes else ""
    paged = f", {placement.paged_bytes / 1e6:.1f} MB paged" if placement.paged_bytes else ""
    if placement.streamed_bytes:
        paged = f", {placement.streamed_bytes / 1e6:.1f} MB in host memory, which every step copies over the bus"
    elif paged:
        paged += f" of which a step of one token reads {placement.step_bytes / 1e6:.1f} MB"
    elif placement.host_bytes:
        paged = (
            f", experts of {placement.host_bytes / 1e6:.1f} MB in host memory of which a step of one token reads "
            f"{placement.host_step_bytes / 1e6:.1f} MB"
        )
    return f"Planned: weights {placement.resident_bytes / 1e6:.1f} MB on {where}{in_file}{paged}; {pools}{rows}"
