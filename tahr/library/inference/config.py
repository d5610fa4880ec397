"""Configuration of an `InferenceEngine`."""

from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, ClassVar

from tahr.config import GREEDY, Range, SamplingParams, check_ranges, keep_conventions, kv_type, whole
from tahr.errors import ConfigError
from tahr.library.inputs.arguments import short


@dataclass(frozen=True, slots=True)
class InferenceConfig:
    """Frozen; checked when it is made, before any file is opened."""

    model_path: str = ""  # a GGUF file, or the directory of a checkpoint
    tokenizer_path: str | None = None  # None: the tokenizer that comes with the model
    context_size: int | None = None  # None or 0: the model's own, as far as memory allows
    num_threads: int | None = 4  # never more than the machine has cores; None: one per core
    sampler: SamplingParams = GREEDY
    prefill_chunk_size: int = 512  # prompt tokens per step; 0: the whole prompt in one
    offload_policy: None = None  # weights stay where the backend keeps them
    backend: str = "auto"
    kv_dtype: str | None = None  # None: the backend's default
    deterministic: bool = False  # see EngineConfig
    origin: str | None = None  # the reference the files were fetched by, so that they can be fetched again

    RANGES: ClassVar[dict[str, Range]] = {
        "context_size": whole(8),
        "num_threads": whole(1, 1024),
        "prefill_chunk_size": whole(0, 1 << 20),
    }

    def __post_init__(self) -> None:
        keep_conventions(self, {"context_size": (0, None)})
        check_ranges(self, self.RANGES)
        for name in ("model_path", "tokenizer_path"):  # texts, because snapshots hold no other type
            object.__setattr__(self, name, path_text(name, getattr(self, name)))
        object.__setattr__(self, "kv_dtype", kv_type(self.kv_dtype))
        if self.offload_policy is not None:
            raise ConfigError(
                f"offload_policy is {self.offload_policy!r}, but weights cannot be offloaded: leave it None."
            )
        if not isinstance(self.sampler, SamplingParams):
            raise ConfigError(f"sampler is {self.sampler!r}, but it must be SamplingParams.")


def path_text(name: str, path: Any) -> str | None:
    """A path as text, however it was given; None: there is none."""
    text = fspath(path) if isinstance(path, PathLike) else path
    if text is not None and not isinstance(text, str):
        raise ConfigError(f"{name} is {short(path)}, but it must be the path of a file or a directory.")
    return text
