"""Puts speculation together: what an engine's configuration asks for, checked, and the draft model's part of memory."""

from dataclasses import dataclass, replace

from tahr.backends.api import Backend, Ints, KVStore, StepLimits
from tahr.config import EngineConfig
from tahr.engine.scheduling.scheduler import Scheduler
from tahr.engine.speculation.draft_model import DraftModelProposer
from tahr.engine.speculation.ngram import NgramProposer
from tahr.engine.speculation.row_rings import DrafterColumns, RowRings, TargetColumns, n_row_slots, ring_size
from tahr.engine.speculation.speculator import Speculator
from tahr.engine.speculation.trained import TrainedProposer
from tahr.engine.step.steps import Steps
from tahr.errors import ConfigError
from tahr.executor.local import LocalExecutor
from tahr.executor.plans import StoredLayers
from tahr.executor.protocol import Executor
from tahr.loading.capacity import Capacity, step_sizes
from tahr.loading.placement import Pool
from tahr.models.decoder import Decoder
from tahr.models.drafters.eagle3 import Drafter
from tahr.text.tokens.tokenizer import Tokenizer

ROW_NUMBER_BYTES = 4
# guesses of a sequence in one step where the configuration does not say
NGRAM_TOKENS = 8
DRAFT_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Draft:
    """A loaded draft model, or a drafter that was trained for the model."""

    name: str
    decoder: Decoder | Drafter
    n_weight_bytes: int = 0
    tokens: Ints | None = None  # tokens of a drafter's logits; None: those of the model

    @property
    def drafter(self) -> Drafter | None:
        """The drafter, if it is one."""
        return self.decoder if isinstance(self.decoder, Drafter) else None


def n_draft_tokens(config: EngineConfig, draft: Draft | None) -> int:
    """The most tokens that are guessed of a sequence in one step; 0 without speculation."""
    if config.spec_off:
        return 0
    if draft is not None:
        return config.spec_tokens or DRAFT_TOKENS
    if config.spec_ngram:
        return config.spec_tokens or NGRAM_TOKENS
    if config.spec_tokens:
        raise ConfigError("spec_tokens is set, but nothing guesses: set spec_draft or spec_ngram too.")
    return 0


def draft_windows(draft: Draft, windows: list[int]) -> list[int]:
    """The windows that the draft model's layers get beside those of the model it guesses for: its widest."""
    widest = 0 if not windows or 0 in windows else max(windows)
    own = draft.decoder.windows
    if widest and not all(0 < window <= widest for window in own):
        raise ConfigError(
            f"The draft model {draft.name} looks further back than the {widest} tokens that the model keeps: "
            "choose another draft."
        )
    return [widest] * len(own)


def check_context(draft: Draft | None, context_size: int, has_states: bool) -> None:
    """Refuse what cannot follow every text, or cannot take a guess back."""
    if has_states:
        raise ConfigError("A layer keeps a state, which cannot take a guess back: leave speculation out.")
    if draft and not draft.drafter and draft.decoder.config.max_context < context_size:
        n_most = draft.decoder.config.max_context
        raise ConfigError(
            f"The draft model {draft.name} was trained for {n_most} tokens, but the context has {context_size}: "
            f"ask for a context of {n_most} (-c), or choose another draft."
        )


def check_same_vocabulary(name: str, draft: Tokenizer, target: Tokenizer) -> None:
    """A draft's tokens must mean what they mean to the model it guesses for."""
    if draft.n_vocab != target.n_vocab or draft.vocab_bytes() != target.vocab_bytes():
        raise ConfigError(
            f"{name} cannot be the draft model, because its vocabulary is another one: take a smaller model of the "
            "same family."
        )


def make_speculator(
    config: EngineConfig, draft: Draft | None, executor: Executor, scheduler: Scheduler
) -> Speculator | None:
    """Make the source of guesses for an engine; None without speculation."""
    n_most = n_draft_tokens(config, draft)
    if not n_most:
        return None
    if draft is None:
        return Speculator(NgramProposer(), n_most)
    assert isinstance(executor, LocalExecutor), "draft models run where their model does"
    if isinstance(draft.decoder, Drafter):
        return trained_speculator(draft, draft.decoder, executor, scheduler, n_most)
    return Speculator(draft_proposer(draft.decoder, executor, scheduler), n_most)


def trained_speculator(
    draft: Draft, drafter: Drafter, executor: LocalExecutor, scheduler: Scheduler, n_most: int
) -> Speculator:
    """A drafter beside the model of an executor, in the last layers of its KV store, and the slots between both."""
    sizes = scheduler.limits
    inputs = executor.inputs()
    n_chunk = max(sizes.prefill_chunk, sizes.n_seqs * ring_size(sizes.n_decode_tokens))
    limits = StepLimits(n_chunk, sizes.n_seqs, sizes.n_seqs, inputs.limits.n_pages_per_seq)
    number = executor.add_drafter(drafter, draft.tokens, last_layers(executor.kv, len(drafter.memory)), limits)
    rings = RowRings(inputs.limits.n_tokens, sizes.n_seqs, sizes.n_decode_tokens)
    columns = DrafterColumns(executor.inputs(number), rings)
    proposer = TrainedProposer(Steps(executor, number, more=columns), n_chunk, rings, columns)
    return Speculator(proposer, n_most, targets=TargetColumns(inputs, rings))


def draft_proposer(decoder: Decoder, executor: LocalExecutor, scheduler: Scheduler) -> DraftModelProposer:
    """A draft model that runs beside the model of an executor, in the last layers of its KV store."""
    sizes = scheduler.limits
    n_pages = executor.inputs().limits.n_pages_per_seq
    n_chunk = max(sizes.prefill_chunk, 2 * sizes.n_seqs)
    limits = StepLimits(n_chunk, sizes.n_seqs, sizes.n_seqs, n_pages)
    view = last_layers(executor.kv, len(decoder.memory))
    # After a draft that was right to the end, two of its tokens are new to the draft model.
    model = executor.add_draft(decoder, view, limits, executor.models[0].n_vocab, n_decode_tokens=2)
    return DraftModelProposer(Steps(executor, model), n_chunk)


def last_layers(kv: KVStore, n: int) -> KVStore:
    """The last n layers of a KV store as one of their own, in the same pages."""
    layout = replace(kv.layout, layers=kv.layout.layers[-n:], groups=(tuple(range(n)),))
    return KVStore(layout, kv.group_of[-n:], kv.n_bytes, kv.layers[-n:])


def stored_layers(backend: Backend, drafter: Drafter, limits: StepLimits, n_decode_tokens: int) -> StoredLayers:
    """The row slots between a model and its drafter, and the layers that write to them."""
    n_slots = n_row_slots(limits.n_tokens, limits.n_seqs, n_decode_tokens)
    return StoredLayers(drafter.kind.taps, backend.row_store(n_slots, drafter.row_width))


def drafter_pool(drafter: Drafter, config: EngineConfig, capacity: Capacity, n_decode_tokens: int) -> Pool:
    """Memory of these slots."""
    sizes = replace(step_sizes(config, capacity), n_decode_tokens=n_decode_tokens)
    n = n_row_slots(sizes.n_tokens, sizes.n_seqs, n_decode_tokens)
    return Pool("rows of the drafter", n, "slots", n * drafter.row_width * ROW_NUMBER_BYTES)
