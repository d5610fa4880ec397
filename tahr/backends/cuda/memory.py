"""The memory of a CUDA device: matrices, keys and values, states, and what is read back."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from tahr.backends.api import (
    PINNED_BYTES,
    Backend,
    Bytes,
    EnergyCounter,
    Fetched,
    Floats,
    HostRows,
    JoinedLinears,
    KVShape,
    KVStore,
    Linear,
    MemoryLayout,
    PageIO,
    Rows,
    StateShape,
    StepCheck,
    StepInputs,
    StepLimits,
    Tensor,
    Vector,
    Weight,
)
from tahr.backends.cuda.host_experts import HostExperts
from tahr.backends.cuda.host_layers import measured_rate
from tahr.backends.cuda.layer_ring import LayerRing
from tahr.backends.cuda.layouts import kv as cuda_kv
from tahr.backends.cuda.layouts.fp8 import converts_fp8
from tahr.backends.cuda.ops.device_rows import FetchedRows, made
from tahr.backends.cuda.ops.step_inputs import RecordingContext, make_inputs
from tahr.backends.cuda.pages import CudaPageIO
from tahr.backends.cuda.sleeping import SleepingMemory
from tahr.backends.cuda.weights import free_and_total, join, refusing_unfit, take, taken_bytes
from tahr.backends.host.budget import device_kv_budget
from tahr.backends.host.energy import nvml_counter
from tahr.errors import ConfigError
from tahr.offload.homes import ON_HOST, USUAL_HOMES, Home
from tahr.weights.tensor import HostTensor

F32 = torch.float32
NO_COPIES = 1.0  # no copy leaves all of a card free
N_TOKEN_SLOTS = 1 << 16  # limit above the sequences that may run at once


class CudaMemory(Backend):
    """The part of the backend that says how much memory there is and what lies in it."""

    free_share = 0.6  # share of the card's memory that dense copies of packed matrices leave free
    homes = USUAL_HOMES | {"streamed", ON_HOST}
    mixes_kv_dtypes = False
    device: torch.device
    deterministic: bool
    last_tokens: torch.Tensor
    context: RecordingContext
    device_summary: str
    _host_experts: HostExperts | None = None
    _ring: LayerRing | None = None  # layers that do not stay on the device
    _page_size = 0  # smallest page size of its KV stores
    _sleeping: SleepingMemory | None = None  # once it has slept

    @property
    def kv_dtypes(self) -> tuple[str, ...]:
        return tuple(name for name in cuda_kv.TYPES if name != "fp8" or converts_fp8(self.device))

    def kv_budget(self, share: float | None) -> int:
        if self.device.type == "cpu":
            return super().kv_budget(share)
        return device_kv_budget(*free_and_total(self.device), share)

    def weight(self, tensor: HostTensor) -> Weight:
        with refusing_unfit(tensor.name):
            return take(tensor, self.device, not self.deterministic, self.free_share)

    def weight_elsewhere(self, tensor: HostTensor, home: Home) -> Weight:
        """Matrices of layers that pass through the device are taken as all are, and leave it with their layer."""
        if home.device is None:
            return self._keep_on_host(tensor)
        assert home.layer is not None
        if self._ring is None:
            self._ring = LayerRing(self.device)
            self.context.ring = self._ring
        weight = self.weight(tensor)
        self._ring.take(home.layer, weight.data)
        return replace(weight, kernel=f"{weight.kernel}, streamed")

    @property
    def host_experts(self) -> HostExperts:
        """Experts that stay on the host; their threads are made when the first is met."""
        if self._host_experts is None:
            self._host_experts = HostExperts(self.device)
        return self._host_experts

    def _keep_on_host(self, tensor: HostTensor) -> Weight:
        host = self.host_experts
        taken = host.weight(tensor)
        self.summary = f"{self.device_summary}; {host.n_stacks} stacks of experts on {host.cpu.summary}"
        return taken

    def bytes_elsewhere(self, tensor: HostTensor, home: Home) -> int:
        return self.host_experts.weight_bytes(tensor) if home.device is None else super().bytes_elsewhere(tensor, home)

    def step_check(self) -> StepCheck:
        return self._host_experts.step_check() if self._host_experts else super().step_check()

    def settle_weights(self) -> None:
        if self._ring:
            self._ring.settle()

    def weight_bytes(self, tensor: HostTensor, n_taken: int = 0) -> int:
        return taken_bytes(tensor, self.device, not self.deterministic, self.free_share, n_taken)

    def total_bytes(self) -> int:
        return free_and_total(self.device)[1] if self.has_own_memory else super().total_bytes()

    def copy_rate(self) -> float | None:
        return measured_rate(self.device) if self.device.type == "cuda" else None

    def bound_memory(self, n_bytes: int) -> None:
        self.free_share = NO_COPIES

    def free_bytes(self) -> int | None:
        return free_and_total(self.device)[0] if self.has_own_memory else super().free_bytes()

    def energy_counter(self) -> EnergyCounter | None:
        if self.device.type == "cpu":
            return super().energy_counter()
        return nvml_counter(f"GPU-{torch.cuda.get_device_properties(self.device).uuid}")

    def vector(self, values: Floats) -> Vector:
        return Vector(len(values), torch.tensor(values, dtype=F32, device=self.device))

    def join(self, linears: Sequence[Linear], lora_rows: int = 0) -> JoinedLinears:
        with refusing_unfit(linears[0].weight.name):
            joined = join(linears, lora_rows if self.keeps_lora_rows else 0)
        if self._ring and joined.data:
            parts = [linear.weight.data for linear in linears]
            made = [joined.data.values, *(linear.weight.data for linear in joined.parts)]
            self._ring.join(parts, made)
        return joined

    def tensor(self, values: Floats) -> Tensor:
        return made(torch.tensor(values, dtype=F32, device=self.device), Rows.FIXED, F32)

    def read(self, tensor: Tensor) -> Floats:
        return self.fetch(tensor).collect()

    def fetch(self, tensor: Tensor) -> Fetched:
        live = tensor.data.live()
        return HostRows(live.float().numpy()) if self.device.type == "cpu" else FetchedRows(live)

    def sleep(self, models: Sequence[object], stores: Sequence[KVStore]) -> int:
        if self._ring:
            raise ConfigError("Models whose layers pass through the card do not sleep: unload the model.")
        if self._host_experts:
            raise ConfigError("Models with experts in the host's memory do not sleep: unload the model.")
        self._sleeping = self._sleeping or SleepingMemory(self.device)
        return self._sleeping.sleep(models, [store.layers for store in stores])

    def wake(self) -> None:
        if self._sleeping:
            self._sleeping.wake()

    def step_inputs(self, limits: StepLimits) -> StepInputs:
        return make_inputs(limits, self.last_tokens, self._page_size or 1)

    def paged_layer(self, shape: KVShape, n_pages: int, layout: MemoryLayout) -> torch.Tensor:
        self._page_size = min(self._page_size or layout.page_size, layout.page_size)
        return cuda_kv.make(shape, n_pages, layout.page_size, layout.dtype, self.device)

    def state_layer(self, shape: StateShape, n_slots: int) -> torch.Tensor:
        return torch.zeros((n_slots, *shape.shape), dtype=F32, device=self.device)

    def read_pages(self, kv: KVStore, pages: Sequence[int], group: int = 0) -> list[Bytes]:
        return [cuda_kv.read(layer, pages) for layer in kv.paged(group)]

    def write_pages(self, kv: KVStore, pages: Sequence[int], layers: Sequence[Bytes], group: int = 0) -> None:
        for layer, content in zip(kv.paged(group), layers, strict=True):
            cuda_kv.write(layer, pages, content)

    def copy_pages(self, kv: KVStore, pairs: Sequence[tuple[int, int]], group: int = 0) -> None:
        for layer in kv.paged(group):
            cuda_kv.copy(layer, pairs)

    def page_io(self, kv: KVStore, pinned_bytes: int = PINNED_BYTES) -> PageIO:
        if self.device.type == "cpu":
            return super().page_io(kv, pinned_bytes)
        return CudaPageIO(kv, pinned_bytes)

    @property
    def page_order(self) -> str:
        return super().page_order if self.device.type == "cpu" else "layers"

    def read_states(self, kv: KVStore, slots: Sequence[int]) -> list[Floats]:
        return [layer[list(slots)].cpu().numpy() for layer in kv.states()]

    def write_states(self, kv: KVStore, slots: Sequence[int], layers: Sequence[Floats]) -> None:
        for layer, content in zip(kv.states(), layers, strict=True):
            layer[list(slots)] = torch.from_numpy(np.array(content)).to(self.device)

    def copy_states(self, kv: KVStore, pairs: Sequence[tuple[int, int]]) -> None:
        for layer in kv.states():
            layer[[to for _, to in pairs]] = layer[[source for source, _ in pairs]]
