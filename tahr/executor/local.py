"""The executor of this process: a backend, a model and maybe its draft model, and the plans of both."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tahr.backends.api import (
    Backend,
    EnergyCounter,
    Fetched,
    Floats,
    HostRows,
    Ints,
    KVStore,
    Plan,
    RowStore,
    StepCheck,
    StepInputs,
    StepLimits,
    Tensor,
)
from tahr.backends.sampling.sample_rows import Sampled, SampleRows
from tahr.executor.adapters import LocalAdapters
from tahr.executor.draft_vocabulary import DraftVocabulary
from tahr.executor.output import Output
from tahr.executor.pages import LocalPages, memory_facts
from tahr.executor.plans import (
    TOWER_PAGE,
    ExecutedDecoder,
    ExecutedModel,
    Forward,
    StoredLayers,
    make_drafter,
    make_model,
    make_tower,
)
from tahr.executor.preparing import first_prepared, run_empty
from tahr.executor.protocol import (
    NO_FRAMES,
    NO_ROW_SLOTS,
    TOWER,
    DecoderFacts,
    ExecutorFacts,
    FrameFacts,
    RowFacts,
    StepRequest,
    StepResult,
    TowerFacts,
)
from tahr.executor.sampling import LocalSampling
from tahr.kv.tables import PageCopy
from tahr.models.decoder import Decoder
from tahr.models.drafters.eagle3 import Drafter
from tahr.models.parts.tower import Tower
from tahr.weights.watch import FileWatch


@dataclass(slots=True, eq=False)
class LaunchedStep:
    """A step whose logits nobody has written over yet, or whose tokens are on their way."""

    files: FileWatch  # watch on the model's files
    check: StepCheck
    result: Tensor
    rows: Fetched | None
    vocabulary: DraftVocabulary | None = None  # tokens of a drafter that has logits of some only
    sampled: Sampled | None = None


class LocalExecutor(LocalSampling):
    """Runs steps at once or enqueues them, as its backend does. Nothing is copied on the way."""

    def __init__(
        self,
        backend: Backend,
        decoder: Decoder,
        kv: KVStore,
        limits: StepLimits,
        n_vocab: int | None = None,
        n_decode_tokens: int = 1,  # tokens of one sequence in a step: its own and its drafts
        forward: Forward | None = None,
        rows: RowStore | None = None,  # slots that steps may read in place of embeddings
        stored: StoredLayers | None = None,  # layers of which a drafter reads something
    ):
        super().__init__(backend)
        main = make_model(backend, decoder, kv, limits, n_vocab, n_decode_tokens, forward, rows, stored)
        self.executed: dict[int, ExecutedModel] = {0: main}
        self.decoder = decoder
        self.models = [facts_of(main)]
        self._vocabularies: dict[int, DraftVocabulary] = {}
        self.tower: TowerFacts | None = None
        self.adapters = LocalAdapters(backend, main)
        self.pages = LocalPages(backend, kv)
        self.facts = ExecutorFacts(
            overlaps=backend.overlaps,
            has_own_memory=backend.has_own_memory,
            memory=memory_facts(kv, backend.page_order),
        )

    @property
    def kv(self) -> KVStore:
        return self.executed[0].kv

    def add_draft(self, decoder: Decoder, kv: KVStore, limits: StepLimits, n_vocab: int, n_decode_tokens: int) -> int:
        """Run steps of a draft model too; its number."""
        made = make_model(self.backend, decoder, kv, limits, n_vocab, n_decode_tokens)
        self.executed[len(self.models)] = made
        self.models.append(facts_of(made))
        return len(self.models) - 1

    def add_drafter(self, drafter: Drafter, tokens: Ints | None, kv: KVStore, limits: StepLimits) -> int:
        """Run steps of a drafter too, which reads the slots that steps of the model write; its number. `tokens` are
        those of its logits, if these are not all."""
        rows = self.executed[0].inputs.target_rows
        assert rows, "the model stores no rows"
        number = len(self.models)
        made = self.executed[number] = make_drafter(self.backend, drafter, kv, limits, rows)
        main = self.models[0]
        if tokens is not None:
            self._vocabularies[number] = DraftVocabulary(tokens, main.n_logits)
        buckets = tuple(map(tuple, made.buckets))
        width = drafter.config.width
        self.models.append(DecoderFacts(main.n_vocab, main.n_logits, width, 0, None, False, buckets, 1))
        return number

    def add_tower(self, tower: Tower, limits: StepLimits) -> None:
        """Run steps of a tower too, which compute rows that the model reads, or vectors for the host."""
        main = self.executed[0]
        made = self.executed[TOWER] = make_tower(self.backend, tower, limits, main.inputs.rows, main.kv)
        buckets = tuple(map(tuple, made.buckets))
        limits = made.inputs.limits
        seen = tuple(tower.windowed), tower.n_joined
        self.tower = TowerFacts(len(tower.parts), limits, buckets, tower.width_in, TOWER_PAGE, *seen)

    # ---- steps ------------------------------------------------------------------------------------------------

    def inputs(self, model: int = 0) -> StepInputs:
        return self.executed[model].inputs

    def launch(self, step: StepRequest) -> LaunchedStep:
        model = self.executed[step.model]
        backend = self.backend
        if step.state_copies:  # first: their sequences may not be in this step, and live on if it fails
            backend.copy_states(model.kv, step.state_copies)
        model.files.check(backend.file_stamp)
        if step.page_copies:
            self._copy_pages(model.kv, step.page_copies)
        if step.sends_adapter_rows:
            self.adapters.bank.send()
        result = self.run(model.plan(backend, step.plan, self.adapters.bank if step.adapter_rounds else None))
        check = backend.step_check()
        rows = self._rows_of(model, step, result) if step.wants_rows else None
        return LaunchedStep(model.files, check, result, rows, self._vocabularies.get(step.model))

    def _rows_of(self, model: ExecutedModel, step: StepRequest, result: Tensor) -> Fetched:
        """The rows that a step gives to the host: those of its result, or the codes that it has drawn."""
        frames = model.inputs.frames
        if step.output == Output.FRAME and frames:
            return HostRows(frames.drawn().astype(np.float32))
        return self.backend.fetch(result)

    def run(self, plan: Plan) -> Tensor:
        """Begin to compute the rows of a step; from here on its inputs may be filled again."""
        plan.run()
        return plan.result

    def sample(self, handle: LaunchedStep, rows: SampleRows) -> None:
        logits: Tensor | Floats = handle.result
        if handle.vocabulary:
            logits = handle.vocabulary.spread(self.backend.fetch(handle.result).collect())
        handle.sampled = self.backend.sample(logits, rows)

    def collect(self, handle: LaunchedStep) -> StepResult:
        result = StepResult(
            sampled=handle.sampled.collect() if handle.sampled else None,
            rows=handle.rows.collect() if handle.rows else None,
        )
        handle.check()
        handle.files.refuse_cut()  # zeros may have been read in place of weights
        return result

    def put_rows(self, slots: Sequence[int], rows: Floats, model: int = 0) -> None:
        buffer = self.executed[model].inputs.rows
        assert buffer, "the model reads no rows"
        self.backend.write_rows(buffer, slots, rows)

    def _copy_pages(self, kv: KVStore, copies: Sequence[PageCopy]) -> None:
        for group in {copy.group for copy in copies}:
            pairs = [(copy.source, copy.target) for copy in copies if copy.group == group]
            self.backend.copy_pages(kv, pairs, group)

    # ---- before steps need them -------------------------------------------------------------------------------

    def wants_warming(self) -> bool:
        return self.backend.wants_warming()

    def prepare(self, steps: Sequence[StepRequest]) -> StepRequest | None:
        plans = [self._plan(step) for step in steps]
        found = first_prepared(self.backend, plans)
        return next((step for step, plan in zip(steps, plans, strict=True) if plan is found), None)

    def warm(self, step: StepRequest) -> None:
        run_empty(self.backend, self.executed[step.model].inputs, self._plan(step))

    def weights_changed(self) -> bool:
        return any(model.files.has_changed for model in self.executed.values())

    def sleep(self) -> int:
        for model in self.executed.values():
            model.forget_plans()
        models = [model.forwards for model in self.executed.values()]
        return self.backend.sleep([self.decoder, *models], [model.kv for model in self.executed.values()])

    def wake(self) -> None:
        self.backend.wake()

    def energy_counter(self) -> EnergyCounter | None:
        return self.backend.energy_counter()

    def _plan(self, step: StepRequest) -> Plan:
        return self.executed[step.model].plan(self.backend, step.plan)

    # ---- texts ------------------------------------------------------------------------------------------------

    def apply_text_head(self, rows: Floats) -> Floats:
        head = self.decoder.text_head
        return head.apply(self.backend, rows) if head else rows


def frame_facts(decoder: Decoder) -> FrameFacts:
    speech = decoder.config.speech
    if speech is None:
        return NO_FRAMES
    return FrameFacts(speech.n_codes, speech.n_sounds, speech.n_first, speech.n_entries)


def facts_of(model: ExecutedDecoder) -> DecoderFacts:
    """A model in numbers."""
    decoder = model.decoder
    rows = model.inputs.rows
    row_facts = RowFacts(rows.n_slots, rows.width) if rows else NO_ROW_SLOTS
    audio = decoder.config.audio
    return DecoderFacts(
        n_vocab=model.n_vocab,
        n_logits=decoder.config.n_vocab,
        width=decoder.config.width,
        head_width=decoder.text_head.width if decoder.text_head else 0,
        encoding=decoder.encoding,
        has_states=model.kv.layout.n_slots > 1,
        buckets=tuple(map(tuple, model.buckets)),
        n_decode_tokens=model.n_decode_tokens,
        rows=row_facts._replace(n_each=audio.n_rows) if audio else row_facts,
        has_axes=decoder.has_axes,
        frames=frame_facts(decoder),
        placeholder=decoder.config.chat_vision.placeholder if decoder.tower and decoder.config.chat_vision else -1,
        line_end=b"" if decoder.line_end is None else decoder.line_end.tobytes(),
    )
