"""The CUDA backend: torch for memory and large products, Triton for everything an LLM does between them."""

import os
from collections.abc import Callable, Sequence

import numpy as np
import torch

from tahr.backends.api import Floats, Ints, Plan, StepDefaults, StepInputs, StepLimits, Tensor
from tahr.backends.cuda.ahead import Ahead
from tahr.backends.cuda.host_experts import HostExperts
from tahr.backends.cuda.layouts.fp8 import converts_fp8
from tahr.backends.cuda.layouts.presence import build_problem, describe, interprets
from tahr.backends.cuda.logprobs import begin_logprobs
from tahr.backends.cuda.memory import N_TOKEN_SLOTS, CudaMemory
from tahr.backends.cuda.ops.attention_ops import RopeOnDevice, TokenOps
from tahr.backends.cuda.ops.expert_ops import ExpertOps
from tahr.backends.cuda.ops.linear_ops import LinearOps
from tahr.backends.cuda.ops.products import Products
from tahr.backends.cuda.ops.row_ops import DeviceRowOps
from tahr.backends.cuda.ops.slot_ops import SlotOps
from tahr.backends.cuda.ops.step_inputs import RecordingContext
from tahr.backends.cuda.profile import time_ops
from tahr.backends.cuda.sampling import CudaSampler, host_rows
from tahr.backends.cuda.steps import EagerPlan, GraphMemory, GraphPlan, buckets
from tahr.backends.host.profile import VARIABLE
from tahr.backends.sampling.sample_rows import Logprobs, Sampled, SampleRows, Words
from tahr.errors import ConfigError


class CudaBackend(CudaMemory, DeviceRowOps, LinearOps, ExpertOps, TokenOps, SlotOps):
    """One GPU. The residual stream is f32; what meets a matrix takes the type of the model's embedding table.

    A model in f32 is computed in f32 throughout (no TF32); in bf16 and f16 models the rows that enter products are
    rounded to that type and summed in f32. Block-quantised weights are multiplied from packed codes, or stored dense
    in bf16 where no kernel knows their format; rows are not rounded to int8.

    The fastest kernel depends on how many rows there are, so a row may change in its last bits with the size of its
    batch. A `deterministic` backend sums in one way whatever the size, and every row keeps to itself; it stores
    block-quantised weights dense.
    """

    name = "cuda"
    overlaps = True
    _host_experts: HostExperts | None = None
    # Shorter steps of prompts cost bursts of requests up to a tenth of their tokens/s.
    step_defaults = StepDefaults(
        n_seqs=256,
        n_prefill_seqs=256,
        prefill_chunk=4096,
        n_prefill_tokens=8192,
        mixed_s=0.2,
        tower_tokens=1 << 14,
        tower_speed=200,
    )

    def __init__(self, device: str = "cuda", deterministic: bool = False) -> None:
        self.device = torch.device(device)
        self.deterministic = deterministic
        self.has_own_memory = self.device.type == "cuda"
        self.keeps_lora_rows = not deterministic
        self._products = Products(deterministic)
        self.rounds_to = ("fp8",) if converts_fp8(self.device) and not deterministic else ()
        sum_in_f32()
        facts = [*describe().values(), *(["deterministic"] if deterministic else [])]
        self.device_summary = f"cuda: {', '.join(facts)}"
        self.summary = self.device_summary
        self.context = RecordingContext()
        # The tokens sampled last, by token slot: what negative ids of the next steps point at.
        self.last_tokens = torch.zeros(N_TOKEN_SLOTS, dtype=torch.int32, device=self.device)
        self.sampler = CudaSampler(self.last_tokens)
        self._graphs = GraphMemory() if self.device.type == "cuda" else None
        self._ropes: dict[int, RopeOnDevice] = {}

    # ---- running ----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        pass  # ops are on the stream already

    def record(self, step: Callable[[], Tensor], inputs: StepInputs) -> Plan:
        if self._graphs is None:
            return EagerPlan(self.context, step, inputs)
        may_capture = self._ring is None or self._ring.is_pinned
        return GraphPlan(self.context, step, inputs, self._graphs, may_capture, self._host_experts)

    def buckets(self, limits: StepLimits, n_decode_tokens: int = 1) -> Sequence[StepLimits]:
        return buckets(limits, n_decode_tokens)

    def wants_warming(self) -> bool:
        return self._graphs is not None and self._graphs.free_memory()

    def prepare(self, plan: Plan) -> bool:
        return not isinstance(plan, GraphPlan) or plan.prepare()

    # ---- sampling ---------------------------------------------------------------------------------------------

    def sample(self, logits: Tensor | Floats, rows: SampleRows) -> Sampled:
        if not isinstance(logits, Tensor):
            return super().sample(logits, rows)
        return self.sampler.sample(logits.data.live(), rows)

    def mask_memory(self, n: int, n_words: int) -> Words:
        if self.device.type != "cuda":
            return super().mask_memory(n, n_words)
        pinned = torch.empty((n, n_words), dtype=torch.int32, pin_memory=True)
        words: Words = pinned.numpy().view(np.uint32)
        return words

    def host_samples(self, rows: SampleRows) -> Sequence[int]:
        return host_rows(rows)

    def logprobs(self, logits: Tensor | Floats, n_vocab: int, source: Ints, tokens: Ints, n_top: Ints) -> Logprobs:
        if not isinstance(logits, Tensor):
            return super().logprobs(logits, n_vocab, source, tokens, n_top)
        of = torch.from_numpy(np.array(tokens)).to(self.device)
        pending = begin_logprobs(logits.data.live(), n_vocab, source, of, n_top)
        if self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        return pending.collect()


def sum_in_f32() -> None:
    """Have libraries compute products of f32 in f32, and sum those of shorter types in f32."""
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = False
    matmul.allow_bf16_reduced_precision_reduction = False
    matmul.allow_fp16_reduced_precision_reduction = False


def open_device(deterministic: bool = False, ahead: Ahead | None = None) -> CudaBackend:
    """The backend on this machine's GPU, or on the CPU where Triton interprets its kernels."""
    if not interprets() and (problem := build_problem()):
        raise ConfigError(f"The cuda backend cannot run here: {problem}.")
    backend = CudaBackend("cpu" if interprets() else "cuda", deterministic)
    if os.environ.get(VARIABLE) == "1":
        time_ops(backend)
    if ahead:
        backend.sampler.load_kernels(ahead)
    return backend
