"""Ranks: options that do not go with them, and the executor of those in processes of their own."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, cast

from tahr.backends.api import Backend, MemoryLayout, StepLimits
from tahr.config import EngineConfig
from tahr.errors import ConfigError
from tahr.models.decoder import Decoder
from tahr.models.loader.load import OpenedModel, sharding_of
from tahr.models.sharding.rules import VOCABULARY
from tahr.models.sharding.virtual import VirtualRanks

if TYPE_CHECKING:
    from tahr.executor.ranks.executor import GroupExecutor

# Backends whose steps may be recorded from several threads, one at a time.
BACKENDS = ("cpu", "reference")
OPTIONS = ("quantize", "ram_budget")
ELSEWHERE = ("spec_draft", "kv_host_size", "kv_disk")
TEXT_BYTES = 1 << 20  # bytes of a message beside the arrays of a step
NUMBER_BYTES = 4
NO_SESSIONS = (
    "tensor_parallel has no sessions that go back in a text, whose pages lie in the ranks: leave it out for them."
)


def refuse_beside_ranks(config: EngineConfig, backend: Backend) -> None:
    """Refuse, before anything is read, what a model over several ranks does not have."""
    if config.n_ranks == 1:
        return
    if config.tensor_parallel > 1:
        refuse_beside_processes(config, backend)
    if backend.name not in BACKENDS:
        raise ConfigError(
            f"virtual_ranks is there to check results, and not on the {backend.name} backend: leave it out, or take "
            "the cpu backend."
        )
    name_of_ranks = "tensor_parallel" if config.tensor_parallel > 1 else "virtual_ranks"
    for name in OPTIONS:
        if getattr(config, name) is not None:
            raise ConfigError(
                f"{name} is set beside {name_of_ranks}, whose parts of matrices it does not know: leave one of them "
                "out."
            )


def refuse_beside_processes(config: EngineConfig, backend: Backend) -> None:
    """Refuse what ranks in processes do not have, though virtual ones may."""
    if config.virtual_ranks > 1:
        raise ConfigError("tensor_parallel and virtual_ranks are both set: leave one of them out.")
    if backend.name != "cpu":
        raise ConfigError(
            f"tensor_parallel shares a model among processes of the cpu backend, and not of {backend.name}: leave it "
            "out, or add --backend cpu."
        )
    for name in ELSEWHERE:
        if getattr(config, name) is not None and not (name == "spec_draft" and config.spec_off):
            raise ConfigError(
                f"{name} is set beside tensor_parallel, whose ranks keep their pages to themselves: leave one of them "
                "out."
            )


def refuse_drafter_beside_ranks(config: EngineConfig) -> None:
    """A trained drafter reads the layers of one decoder; those of several ranks are several."""
    if config.virtual_ranks > 1:
        raise ConfigError(
            "spec_draft names a drafter that was trained for the model, which virtual_ranks do not have: leave one of "
            "them out, or take a smaller model of the same vocabulary."
        )


@dataclass(frozen=True, slots=True)
class RankProcessesOf:
    """A model over processes, before its executor is made."""

    source: OpenedModel
    config: EngineConfig
    n_weight_bytes: int
    log: list[str] = field(default_factory=list)  # a line of every rank, when they are there

    def executor(
        self,
        backend: Backend,
        decoder: Decoder,
        layout: MemoryLayout,
        limits: StepLimits,
        n_vocab: int | None,
        n_decode_tokens: int,
    ) -> "GroupExecutor":
        """The ranks, loaded; `decoder` is one of all of them without weights."""
        from tahr.executor.ranks.executor import GroupExecutor
        from tahr.executor.ranks.group import GroupStart, RankGroup
        from tahr.executor.ranks.handshake import hello_of
        from tahr.executor.ranks.region import RegionSizes

        n_ranks = self.config.tensor_parallel
        plan = sharding_of(self.source, n_ranks)
        n_vocab = n_vocab or decoder.config.n_vocab
        sizes = RegionSizes(n_ranks, *self._sizes(decoder, limits))
        given = self._given(decoder, layout, limits, n_vocab, n_decode_tokens)
        group = RankGroup(GroupStart(sizes, given, hello_of(self.source, plan), self.n_weight_bytes // n_ranks))
        made = GroupExecutor(backend, decoder, layout, limits, n_vocab, n_decode_tokens, group, self.n_weight_bytes)
        group.begin()
        self.log[:] = group.log
        return made

    def _sizes(self, decoder: Decoder, limits: StepLimits) -> tuple[int, int, int]:
        """Bytes of the largest message, of the rows that come back, and of what a rank hands in at a meeting."""
        cfg = decoder.config
        plan = cast(VirtualRanks, decoder).plan
        n = max(limits.n_tokens, limits.n_rows)
        head_rows = max(map(len, plan.shares[VOCABULARY]))
        pages = limits.n_groups * limits.n_seqs * (limits.n_pages_per_seq + 1)
        numbers = 64 * n + limits.n_groups * n + 4 * limits.n_seqs + 2 * pages
        return (
            TEXT_BYTES + NUMBER_BYTES * numbers,
            NUMBER_BYTES * max(limits.n_rows * cfg.n_vocab, n * cfg.width),
            NUMBER_BYTES * max(limits.n_rows * head_rows, n * cfg.width),
        )

    def _given(
        self, decoder: Decoder, layout: MemoryLayout, limits: StepLimits, n_vocab: int, n_decode_tokens: int
    ) -> Mapping[str, Any]:
        """The start message of ranks: layers of memory are those of one rank, the same in all."""
        from tahr.backends.cpu.processor.isa import choose_threads
        from tahr.executor.ranks.handshake import origin

        n_threads = choose_threads(self.config.n_threads)
        n_ranks = self.config.tensor_parallel
        n_layers = len(layout.layers) // n_ranks
        return origin(self.source) | {
            "n_ranks": n_ranks,
            "n_threads": [max(1, (n_threads + n_ranks - 1 - rank) // n_ranks) for rank in range(n_ranks)],
            "limits": asdict(limits),
            "n_pages": layout.n_pages,
            "page_size": layout.page_size,
            "kv_dtype": layout.dtype,
            "groups": layout.part(range(n_layers)).groups,
            "n_vocab": n_vocab,
            "n_decode_tokens": n_decode_tokens,
        }
