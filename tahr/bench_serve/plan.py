"""Plan of a bench."""

from dataclasses import dataclass, field
from typing import ClassVar

from tahr.config import Range, check_ranges, whole
from tahr.errors import ConfigError

DATASETS = ("random", "sharegpt", "shared-prefix")
SLOS = ("ttft", "tpot", "e2el")
MIN_REPEATS_FOR_CI = 3


@dataclass(frozen=True, slots=True)
class Level:
    """How hard to press: so many requests at once (closed loop), or so many per second (open loop)."""

    concurrency: int | None = None
    rate: float | None = None

    RANGES: ClassVar[dict[str, Range]] = {
        "concurrency": whole(1, 65536),
        "rate": Range(0, 1e6, low_included=False),
    }

    def __post_init__(self) -> None:
        check_ranges(self, self.RANGES)
        assert (self.concurrency is None) != (self.rate is None)

    @property
    def label(self) -> str:
        return f"{self.concurrency} at once" if self.rate is None else f"{self.rate:g} per second"


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """Frozen and checked."""

    levels: tuple[Level, ...] = (Level(concurrency=32),)
    dataset: str = "random"
    dataset_path: str | None = None
    n_input: int | None = None  # tokens of a prompt, after the shared ones; None: as usual for the dataset
    n_output: int = 128
    n_prefix: int = 1024  # tokens all prompts share, with shared-prefix
    respect_eos: bool = False  # let replies end where the model ends them
    default_sampling: bool = False  # sample as the model's defaults say; else greedily
    n_prompts: int = 100
    n_warmup: int = 10
    n_repeats: int = 1
    slo_ms: dict[str, float] = field(default_factory=dict)
    timeout_s: float = 600.0
    seed: int = 0
    fail_on_error: bool = False
    max_error_rate: float | None = None
    require_ci: bool = False

    RANGES: ClassVar[dict[str, Range]] = {
        "n_input": whole(1),
        "n_output": whole(1),
        "n_prefix": whole(1),
        "n_prompts": whole(1),
        "n_warmup": whole(0),
        "n_repeats": whole(1, 1000),
        "timeout_s": Range(0, 1e6, low_included=False),
        "max_error_rate": Range(0, 1),
    }

    def __post_init__(self) -> None:
        check_ranges(self, self.RANGES)
        if self.dataset not in DATASETS:
            raise ConfigError(f"There is no dataset {self.dataset!r}: take one of {', '.join(DATASETS)}.")
        if (self.dataset == "sharegpt") != (self.dataset_path is not None):
            raise ConfigError("--dataset sharegpt and --dataset-path go together: give both, or neither.")
        if self.dataset == "sharegpt" and self.n_input is not None:
            raise ConfigError("--input-len goes with random prompts: those of a file are as long as they are.")
        if self.require_ci and self.n_repeats < MIN_REPEATS_FOR_CI:
            raise ConfigError(f"--require-ci needs --n-repeats {MIN_REPEATS_FOR_CI} or more: two say too little.")
        if self.slo_ms and any(level.rate is None for level in self.levels):
            raise ConfigError("--goodput needs --request-rate: in a closed loop a slow server is asked less.")

    @property
    def scenario(self) -> str:
        if self.dataset == "shared-prefix":
            return "shared_prefix"
        return "closed_loop" if self.levels[0].rate is None else "open_loop"


def parse_slo(text: str) -> dict[str, float]:
    """`ttft:200,tpot:50`: the milliseconds a good request may take."""
    made: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition(":")
        if name not in SLOS or not is_positive(value):
            raise ConfigError(f"--goodput has {part!r}: write ttft:MS, tpot:MS or e2el:MS, with commas between them.")
        made[name] = float(value)
    return made


def is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False
