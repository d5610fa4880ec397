"""Configuration of an engine."""

from dataclasses import dataclass
from typing import ClassVar

from tahr.config.checks import Range, check_ranges, keep_conventions, refuse_empty, whole
from tahr.config.lora import clean_lora_files
from tahr.config.sizes import parse_size
from tahr.errors import ConfigError

KV_NAMES = {"fp16": "f16", "float16": "f16", "fp32": "f32", "float32": "f32", "bfloat16": "bf16",
            "int8": "q8_0", "q8": "q8_0", "fp8_e4m3": "fp8"}  # fmt: skip


def kv_type(name: str | None) -> str | None:
    """A format of keys and values under the name the backends know.

    "q8_0/f16" names one for keys and one for values; a side left empty is the backend's default.
    """
    if name is None:
        return None
    sides = [KV_NAMES.get(side, side) for side in name.lower().split("/")]
    return sides[0] if len(set(sides)) == 1 else "/".join(sides)


def as_text(value: str | int | None) -> str | None:
    """A size or a count as the text that options are written in."""
    return str(value) if isinstance(value, int) else value


def check_experts(text: str | None) -> None:
    """Refuse what names no layers."""
    if text not in (None, "auto", "all") and not (text.isdecimal() and len(text) <= 4):
        raise ConfigError(f"cpu_experts is {text!r}, but it must be auto, all, or a number of layers.")


FILES = ("tokenizer", "chat_template", "mmproj", "offload_dir", "kv_disk", "kv_disk_key", "spec_draft")
SIZES = ("gpu_budget", "ram_budget", "kv_host_size", "kv_disk_size")
SCHEDULING_POLICIES = ("fcfs", "priority", "shortest_job_first", "sjf")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Configuration of an engine."""

    backend: str = "auto"
    n_threads: int | None = None  # None: one per core
    context_size: int | None = None  # None or 0: the model's own, as far as memory allows
    context_share: float | None = None  # a part of the model's own, where no size is given
    kv_dtype: str | None = None  # None: the backend's default; see `kv_type`
    # format that a float checkpoint is rounded to at load, such as int8; None: it stays as it is
    quantize: str | None = None
    page_size: int = 32
    kv_bytes: int | None = None  # None: enough for max_batch_size sequences, at most a quarter of free memory
    tokenizer: str | None = None  # a tokenizer.json or a directory with one; None: the model's own
    chat_template: str | None = None  # a file with a Jinja template; None: the model's own
    mmproj: str | None = None  # a GGUF's tower for images, a file; None: the one beside the model, if there is one
    tool_call_parser: str | None = None  # the model's way to write tool calls; None: its template shows that
    gpu_memory_utilization: float | None = None  # the share of a GPU that weights, KV and steps may take; None: 0.9
    # Weights larger than memory, see `tahr/offload`. Sizes are texts such as 8g or 50%.
    gpu_budget: str | None = None  # GPU memory for weights, KV and steps; goes before gpu_memory_utilization
    ram_budget: str | None = None  # host memory for weights and KV; None: what is free
    cpu_experts: str | None = None  # layers whose experts stay on the host: auto, all or a number
    offload_dir: str | None = None  # where matrices are kept that cannot be read from the model's files as they are
    # Pages outside the pools, see `tahr/engine/tiers`.
    kv_host_size: str | None = None  # host memory for pages that may return; None: they are dropped
    kv_disk: str | None = None  # a directory for pages that outlive the process; None: none do
    kv_disk_size: str | None = None  # bytes that the directory may hold; None: 20g
    kv_disk_key: str | None = None  # a file with the key that these are sealed with; None: they are not
    virtual_ranks: int = 1  # parts of the model in this process, which several devices would have: to check results
    tensor_parallel: int = 1  # processes that share the model, each a part of every large matrix
    deterministic: bool = False  # a reply never depends on the rest of the batch: always so on a CPU, slower on a GPU
    admit_below: float = 0.9  # share of the KV pool that new requests may fill; the rest is for growing
    scheduling_policy: str = "fcfs"
    # Sizes of steps; None: what suits the backend, see `Backend.step_defaults`.
    max_batch_size: int | None = None  # requests that run at once
    max_prefill_batch: int | None = None  # running sequences whose prompt is computed in one step
    max_decode_batch: int | None = None  # running sequences that get a token in one step; None: all
    max_decode_tokens: int = 4096  # tokens of all sequences that decode in a step: whichever limit is less
    prefill_chunk_size: int | None = None  # tokens of one prompt in one step
    max_prefill_tokens: int | None = None  # tokens of all prompts in one step
    active_prefill_tokens: int | None = None  # limit on prompt tokens while other sequences decode; None: no less
    prefill_first_until_active: int = 0  # prompts go first while fewer sequences decode
    prefix_cache: bool = True
    cache_max_entries: int | None = None  # texts of the longest length that can be found again; None: the whole pool
    cache_max_tokens: int | None = None  # tokens at the beginning of a text that can be; None: all
    cache_max_bytes: int | None = None
    loras: tuple[str, ...] = ()  # adapters to load, each as NAME=PATH or NAME=PATH,SCALE
    lora_rows: int | None = None  # ranks of adapters, in all, behind a GPU's matrices; None: LORA_ROWS
    # Limits of images: of one as it is sent, of its pixels, and of the memory that all take which are being decoded.
    max_image_bytes: int = 20_000_000
    max_image_pixels: int = 64_000_000
    decoded_image_bytes: int = 2**30
    image_max_tokens: int = 4096  # tokens of one image in a chat: a larger one is shrunk
    feature_cache_bytes: int = 2**29  # memory of what towers make of images
    spec_ngram: bool = False  # guess tokens from what followed the same words earlier in the text
    spec_draft: str | None = (
        None  # guess tokens with a smaller model of the same vocabulary, or a drafter trained for the model
    )
    spec_tokens: int | None = None  # guesses of a sequence in one step, at most; None: 8 from the text, 4 from a model
    spec_off: bool = False  # guess nothing, whatever else is set

    RANGES: ClassVar[dict[str, Range]] = {
        "n_threads": whole(1, 1024),
        "context_size": whole(8),
        "context_share": Range(0, 1, low_included=False),
        "page_size": whole(1, 4096),
        "kv_bytes": whole(1, 2**62),
        "gpu_memory_utilization": Range(0, 1, low_included=False),
        "virtual_ranks": whole(1, 64),
        "tensor_parallel": whole(1, 64),
        "admit_below": Range(0, 1, low_included=False),
        "max_batch_size": whole(1, 4096),
        "max_prefill_batch": whole(1, 4096),
        "max_decode_batch": whole(1, 4096),
        "prefill_chunk_size": whole(1, 65536),
        "max_decode_tokens": whole(1, 2**20),
        "max_prefill_tokens": whole(1, 2**20),
        "active_prefill_tokens": whole(1, 2**20),
        "prefill_first_until_active": whole(0, 4096),
        "cache_max_entries": whole(0),
        "cache_max_tokens": whole(0),
        "cache_max_bytes": whole(0, 2**62),
        "lora_rows": whole(0, 8192),
        "max_image_bytes": whole(1, 2**31),
        "max_image_pixels": whole(1, 2**28),
        "decoded_image_bytes": whole(1, 2**62),
        "image_max_tokens": whole(4, 2**16),
        "feature_cache_bytes": whole(1, 2**62),
        "spec_tokens": whole(1, 64),
    }

    @property
    def n_ranks(self) -> int:
        """Parts of the model, in this process or in others."""
        return max(self.virtual_ranks, self.tensor_parallel)

    def __post_init__(self) -> None:
        keep_conventions(self, {"context_size": (0, None)})
        check_ranges(self, self.RANGES)
        object.__setattr__(self, "kv_dtype", kv_type(self.kv_dtype))
        for name in (*SIZES, "cpu_experts"):
            object.__setattr__(self, name, as_text(getattr(self, name)))
        for name in SIZES:
            if (text := getattr(self, name)) is not None:
                parse_size(text, name)
        check_experts(self.cpu_experts)
        refuse_empty(self, FILES)
        for name in ("kv_disk_size", "kv_disk_key"):
            if getattr(self, name) is not None and self.kv_disk is None:
                raise ConfigError(f"{name} is set, but kv_disk names no directory: name one, or leave it out.")
        object.__setattr__(self, "loras", clean_lora_files(self.loras))
        if self.scheduling_policy not in SCHEDULING_POLICIES:
            raise ConfigError(
                f"There is no scheduling policy {self.scheduling_policy!r}: "
                f"take one of {', '.join(SCHEDULING_POLICIES)}."
            )
        if self.spec_ngram and self.spec_draft and not self.spec_off:
            raise ConfigError("spec_ngram and spec_draft are both set: guess from the text or with a draft model.")
