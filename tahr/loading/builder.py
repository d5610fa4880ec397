"""Puts an engine together: files, tokenizer, template, backend, model, memory."""

from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tahr import hub
from tahr.backends import LogitWidth, open_backend
from tahr.backends.api import LORA_TILE, Backend, StepLimits
from tahr.collector import no_collections
from tahr.config import EngineConfig, LoraFile, SamplingParams
from tahr.engine.adapters.registry import check_name
from tahr.engine.engine import Engine
from tahr.engine.sampling.dry import Resolve, breaker_finder
from tahr.engine.scheduling.scheduler import Scheduler
from tahr.engine.scheduling.work import SchedulerLimits
from tahr.errors import AdapterError, ConfigError, ModelNotFound, TokenizerError
from tahr.executor.local import LocalExecutor
from tahr.hub import ModelFiles
from tahr.hub.refs import expanded
from tahr.images.reading import ImageReader
from tahr.kv.checkpoints import StateCheckpoints
from tahr.kv.pages import PagePool, pages_for
from tahr.kv.prefix import PrefixCache
from tahr.kv.row_slots import RowSlots
from tahr.kv.slots import StateSlots
from tahr.loading.budgets import speed_note, within_budget, within_gpu_budget
from tahr.loading.capacity import (
    Capacity,
    KVGroup,
    cache_pages,
    step_sizes,
)
from tahr.loading.images import image_reader
from tahr.loading.kv_tiers import add_tiers
from tahr.loading.memory_plan import plan_memory
from tahr.loading.projectors import with_projector
from tahr.loading.ranks import NO_SESSIONS, RankProcessesOf
from tahr.loading.row_inputs import RowInputs, add_tower, extras_of, image_rows_of, inputs_of, make_row_store, slots_for
from tahr.loading.sidecars import TEMPLATES, TOKENIZER, ollama_template, recommended_sampling, sidecar
from tahr.loading.sizing import SizingBackend, plan_of, size_up, summary
from tahr.loading.sound.recordings import refuse_drafts, speech_tokens
from tahr.loading.sound.speaking import SpeakingParts, refuse_unspoken, speaking_parts
from tahr.loading.speculation import (
    Draft,
    check_same_vocabulary,
    make_speculator,
    stored_layers,
)
from tahr.loading.text_padding import TextPadding, text_padding
from tahr.loading.unfit import unfit_for
from tahr.models.config.longer import longer_rope
from tahr.models.config.record import ModelConfig
from tahr.models.decoder import Decoder
from tahr.models.loader.drafters import is_drafter, load_drafter
from tahr.models.loader.load import OpenedModel, load, open_model
from tahr.models.loader.runnable import refuse_unsupported, refuse_unsupported_draft
from tahr.regular_file import read_text
from tahr.speech.decoding.tokens import SpeechTokens
from tahr.text.templates.chat import ChatTemplate, template_for
from tahr.text.tokens.json_object import read_bytes
from tahr.text.tokens.tokenizer import Tokenizer
from tahr.text.tool_calls.call_formats import call_format_named

if TYPE_CHECKING:
    from tahr.executor.ranks.executor import GroupExecutor

MAX_TEMPLATE_BYTES = 1 << 20
LORA_ROWS = 128  # kept where adapters are loaded at start: eight of rank 16


@dataclass(frozen=True, slots=True)
class Assembled:
    """Everything a loaded model is made of."""

    name: str
    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate | None
    model_config: ModelConfig
    sampling: SamplingParams
    log: list[str]
    backend_summary: str
    n_weight_bytes: int  # a draft model's among them
    n_host_weight_bytes: int  # the part in the host's memory, of a model that runs on a device
    images: ImageReader | None  # None: the model reads texts alone
    padding: TextPadding | None  # None: texts are read as they are
    speech: SpeechTokens | None  # None: the model writes down no recordings
    speaking: SpeakingParts | None  # None: the model does not speak


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine, and what is known of its model and of its loading."""

    engine: Engine
    model_config: ModelConfig
    log: list[str]
    backend_summary: str
    n_weight_bytes: int  # a draft model's among them
    n_host_weight_bytes: int  # the part in the host's memory, of a model that runs on a device


def build_engine(
    backend: Backend,
    decoder: Decoder,
    config: EngineConfig,
    eos_ids: frozenset[int] = frozenset(),
    resolve: Resolve | None = None,
    n_vocab: int | None = None,
    whole_texts: int = 0,
    n_row_tokens: int | None = None,
    draft: Draft | None = None,
    row_inputs: RowInputs | None = None,
    ranks: RankProcessesOf | None = None,
) -> tuple[Engine, str]:
    """An engine around a decoder, and a note on its memory. Tokens from `n_vocab` on are padding, never sampled.

    With `whole_texts` every layer keeps all of a text, whatever its window, so that sequences can go back; there is
    memory for so many full texts. `n_row_tokens` is how many tokens of a step may have rows, see `SchedulerLimits`.
    With `row_inputs` prompts may have rows in place of embeddings. With `ranks` other processes run the decoder.
    """
    row_inputs = row_inputs or inputs_of(decoder, config)
    rows = make_row_store(backend, decoder, row_inputs) if row_inputs else None
    planned = plan_memory(backend, decoder, config, draft, whole_texts)
    config = planned.config
    groups = planned.groups
    capacity = planned.capacity
    n_decode_tokens = planned.n_decode_tokens
    sizes = step_sizes(config, capacity)
    n_input_rows = max((group.n_rows for group in groups), default=0)
    n_pages_per_seq = pages_for(max(capacity.context_size, n_input_rows), config.page_size)
    sizes = replace(
        sizes,
        n_row_tokens=n_row_tokens or sizes.n_row_tokens,
        n_decode_tokens=n_decode_tokens,
        mixed_s=backend.step_defaults.mixed_s,
        whole_texts=decoder.config.embeds_whole,
        image_rows=image_rows_of(decoder),
    )
    limits = StepLimits(sizes.n_tokens, sizes.n_seqs, sizes.n_rows, n_pages_per_seq, n_groups=len(groups))
    limits = replace(limits, extras=extras_of(decoder)) if rows else limits
    executor: LocalExecutor | GroupExecutor
    if ranks:
        executor = ranks.executor(backend, decoder, planned.layout, limits, n_vocab, n_decode_tokens)
    else:
        stored = stored_layers(backend, draft.drafter, limits, n_decode_tokens) if draft and draft.drafter else None
        kv = backend.kv_store(planned.layout)
        executor = LocalExecutor(backend, decoder, kv, limits, n_vocab, n_decode_tokens, rows=rows, stored=stored)
        if row_inputs:
            add_tower(executor, row_inputs)
    slots = slots_for(rows, groups, capacity.n_inputs, config.page_size) if row_inputs else None
    scheduler = make_scheduler(config, capacity, groups, sizes, planned.n_in_flight, slots)
    n_pages = " + ".join(map(str, capacity.n_pages))
    note = (
        f"KV: {n_pages} pages of {config.page_size} tokens in {planned.dtype}, {capacity.kv_bytes / 1e6:.0f} MB at most"
    )
    speculator = make_speculator(config, draft, executor, scheduler)
    engine = Engine(scheduler, executor, capacity.context_size, eos_ids, resolve, speculator)
    if any(shape.spare_rows for shape in decoder.linears.values()):
        while engine.adapters.warm_next():  # adapters are to come: they must find their kernels
            pass
    return engine, "; ".join(filter(None, [note, capacity.note]))


def make_scheduler(
    config: EngineConfig,
    capacity: Capacity,
    groups: list[KVGroup],
    sizes: SchedulerLimits,
    n_in_flight: int,
    row_slots: RowSlots | None = None,
) -> Scheduler:
    """A scheduler over all of the memory; `n_in_flight` tokens of a sequence may be computed and not yet accepted."""
    pools = [
        PagePool(n, config.page_size, group.window, n_in_flight, group.page_bytes)
        for n, group in zip(capacity.n_pages, groups, strict=True)
        if not group.n_rows
    ]
    slots = StateSlots(capacity.n_slots - capacity.n_checkpoints - 1) if capacity.slot_bytes else None
    cache = prefix_cache(config, capacity, pools, slots)
    return Scheduler(pools, sizes, cache, config.scheduling_policy, slots, row_slots)


def prefix_cache(
    config: EngineConfig, capacity: Capacity, pools: list[PagePool], slots: StateSlots | None
) -> PrefixCache | None:
    """None if it is switched off, or if texts could never be continued because no state is kept; what is said in a
    recording is written once."""
    if not config.prefix_cache or (slots and not capacity.n_checkpoints) or capacity.n_inputs:
        return None
    checkpoints = StateCheckpoints(slots, capacity.n_checkpoints, capacity.slot_bytes) if slots else None
    return PrefixCache(pools, cache_pages(config, capacity), checkpoints, config.cache_max_tokens)


def assemble(
    model: str | None, config: EngineConfig, quantization: str | None = None, progress: hub.Progress | None = None
) -> Assembled:
    """Everything from a model's name, fetching its files if they are not here."""
    name = model or hub.DEFAULT_MODEL
    adapters = lora_files(config)
    if config.tool_call_parser:
        call_format_named(config.tool_call_parser)  # refused before anything is fetched
    unfit = unfit_for(config.backend, config.n_threads)
    files = hub.resolve(name, quant=quantization, progress=progress, check=refuse_unsupported, unfit=unfit)
    with no_collections():  # vocabularies are many objects that stay, and would be looked through
        source = open_model(files.weights, files.directory)
        refuse_drafts(source, config)
        refuse_unspoken(source, config)
        tokenizer = tokenizer_at(config.tokenizer) if config.tokenizer else open_tokenizer(files, source)
    source, sight = with_projector(source, files.weights[0], config)
    draft = open_draft(config, tokenizer, progress)
    loaded = load_engine(replace(source, name=files.name), tokenizer, config, draft)
    engine = loaded.engine
    engine.adapters.model_name = files.name
    tiers = add_tiers(engine, config, loaded.backend_summary, files.weights, loaded.model_config)
    notes = [note for each in adapters for note in load_adapter(engine, each)]
    notes += [engine.adapters.note] if adapters else []
    return Assembled(
        name=files.name,
        engine=engine,
        tokenizer=tokenizer,
        template=with_parser(config, template_of(config, tokenizer) or open_template(files, source, tokenizer)),
        model_config=loaded.model_config,
        sampling=recommended_sampling(files, source, loaded.model_config),
        log=[*loaded.log, *filter(None, [sight, tiers, *notes, ollama_template(files)[1]])],
        backend_summary=loaded.backend_summary,
        n_weight_bytes=loaded.n_weight_bytes,
        n_host_weight_bytes=loaded.n_host_weight_bytes,
        images=image_reader(files.directory, source, loaded.model_config, config) if engine.tower_facts else None,
        padding=text_padding(files.directory, engine.facts.encoding, tokenizer),
        speech=speech_tokens(source, loaded.model_config, tokenizer),
        speaking=speaking_parts(source, loaded.model_config, files.directory),
    )


def load_engine(
    source: OpenedModel,
    tokenizer: Tokenizer,
    config: EngineConfig,
    draft_source: OpenedModel | None = None,
    whole_texts: int = 0,
) -> LoadedEngine:
    """The backend that a configuration names, with a model and its draft model on it, and an engine around them.

    Nothing else opens a backend for an engine. `whole_texts` is as `build_engine` says.
    """
    source = for_context(source, config)
    if draft_source and not is_drafter(draft_source):
        draft_source = for_context(draft_source, config)
    config = within_budget(config)
    logits = LogitWidth(tokenizer.n_vocab, source.model_config().n_vocab)
    with no_collections():  # torch's modules are many objects that stay
        backend = open_backend(config.backend, config.n_threads, config.deterministic, logits)
    config = within_gpu_budget(config, backend)
    lora_rows = kept_lora_rows(config, backend)
    planned = plan_of(source, backend, config, lora_rows, draft_source, whole_texts)
    backend.hold_arenas(planned.arenas)
    ranks = None
    if config.tensor_parallel > 1:
        if whole_texts:
            raise ConfigError(NO_SESSIONS)
        loaded = size_up(source, SizingBackend(backend), n_ranks=config.n_ranks)
        ranks = RankProcessesOf(source, config, loaded.n_weight_bytes)
    else:
        loaded = load(
            source,
            backend,
            quantize=config.quantize,
            lora_rows=lora_rows,
            homes=planned.elsewhere,
            n_ranks=config.virtual_ranks,
        )
    check_vocabulary(tokenizer, loaded.config, source.name)
    draft = load_draft(draft_source, backend, tokenizer, loaded.decoder) if draft_source else None
    engine, note = build_engine(
        backend,
        loaded.decoder,
        config,
        tokenizer.eos_ids,
        breakers(tokenizer),
        tokenizer.n_vocab,
        whole_texts,
        draft=draft,
        ranks=ranks,
    )
    loading = [summary(planned), speed_note(planned, backend), *(ranks.log if ranks else loaded.log)]
    return LoadedEngine(
        engine=engine,
        model_config=loaded.config,
        log=list(filter(None, [*loading, note, note_on_context(loaded.config)])),
        backend_summary=f"{backend.summary}, {config.tensor_parallel} ranks" if ranks else backend.summary,
        n_weight_bytes=loaded.n_weight_bytes + (draft.n_weight_bytes if draft else 0),
        n_host_weight_bytes=planned.host_bytes,
    )


def for_context(source: OpenedModel, config: EngineConfig) -> OpenedModel:
    """A model that is read for texts as long as asked for."""
    longer = longer_rope(source.model_config())
    shared = int(longer.context * (config.context_share or 0)) if longer else 0
    return replace(source, n_context=config.context_size or shared)


def note_on_context(cfg: ModelConfig) -> str:
    """The line of the load log on longer contexts that a model has."""
    longer = longer_rope(cfg)
    if longer is None:
        return ""
    return f"Texts of more than {cfg.max_context} tokens have rope factors of their own: ask with -c {longer.context}"


def useful_threads(requested: int | None) -> int | None:
    """At most as many threads as the processor runs at once: more would only wait for each other."""
    from tahr.backends.cpu.processor.info import read_cpu_info

    return requested and min(requested, read_cpu_info().n_threads)


def fetch_model(model: str, progress: hub.Progress | None = None) -> None:
    """Have the newest files of a model on disk; a model that cannot run is refused before its weights are fetched."""
    hub.pull(model, progress=progress, check=refuse_unsupported, unfit=unfit_for())


def weight_file_bytes(
    model: str, config: EngineConfig, quantization: str | None = None, progress: hub.Progress | None = None
) -> int:
    """The size of a model's weights, and of its draft model's, as files, which are fetched if they are not here."""
    draft = None if config.spec_off else config.spec_draft
    named = [(model, quantization, refuse_unsupported), (draft, None, refuse_unsupported_draft)]
    unfit = unfit_for(config.backend, config.n_threads)
    found = [
        hub.resolve(name, quant=quant, progress=progress, check=check, unfit=unfit)
        for name, quant, check in named
        if name
    ]
    return sum(path.stat().st_size for files in found for path in files.weights)


def open_draft(config: EngineConfig, tokenizer: Tokenizer, progress: hub.Progress | None) -> OpenedModel | None:
    """The draft model that the configuration names; its files are fetched if they are not here."""
    if not config.spec_draft or config.spec_off:
        return None
    unfit = unfit_for(config.backend, config.n_threads)
    files = hub.resolve(config.spec_draft, progress=progress, check=refuse_unsupported_draft, unfit=unfit)
    source = open_model(files.weights, files.directory)
    if not is_drafter(source) or has_tokenizer(files):
        check_same_vocabulary(files.name, open_tokenizer(files, source), tokenizer)
    return replace(source, name=files.name)


def has_tokenizer(files: ModelFiles) -> bool:
    """Whether a checkpoint has a tokenizer of its own."""
    return files.directory is not None and (files.directory / TOKENIZER).is_file()


def load_draft(source: OpenedModel, backend: Backend, tokenizer: Tokenizer, target: Decoder) -> Draft:
    """A draft model, or a drafter that was trained for the model, on the backend of the model it guesses for."""
    if is_drafter(source):
        found = load_drafter(source, backend, target)
        return Draft(source.name, found.drafter, found.n_weight_bytes, found.tokens)
    loaded = load(source, backend, quantize=None)
    check_vocabulary(tokenizer, loaded.config, source.name)
    return Draft(source.name, loaded.decoder, loaded.n_weight_bytes)


def lora_files(config: EngineConfig) -> list[LoraFile]:
    """The adapters to load; a wrong name or path is found before a model is fetched."""
    files = [LoraFile.parse(text) for text in config.loras]
    for each in files:
        check_name(each.name)
        if not expanded(each.path).exists():
            raise AdapterError(f"There is no adapter at {each.path!r}: name a folder of PEFT's, or a GGUF file.")
    return files


def kept_lora_rows(config: EngineConfig, backend: Backend) -> int:
    """The rows that the backend keeps for adapters behind each matrix; none where it does not multiply them so."""
    if config.lora_rows and not backend.keeps_lora_rows:
        raise ConfigError(
            "lora_rows is room for adapters behind the matrices of a GPU whose results may depend on the batch: leave "
            "it out here."
        )
    requested = (LORA_ROWS if config.loras else 0) if config.lora_rows is None else config.lora_rows
    return -(-requested // LORA_TILE) * LORA_TILE if backend.keeps_lora_rows else 0


def load_adapter(engine: Engine, file: LoraFile) -> list[str]:
    """Load an adapter; the lines of the load log that say so."""
    prepared = engine.adapters.prepare(file.path)
    loaded = engine.adapters.add(file.name, prepared, file.scale)
    line = f"Adapter {loaded.name}: rank {loaded.rank}, {loaded.n_bytes / 1e6:.1f} MB, digest {loaded.digest}"
    return [line, *prepared.notes]


def open_tokenizer(files: ModelFiles, source: OpenedModel) -> Tokenizer:
    """The tokenizer that came with the weights: a GGUF's own, else the one of the files beside it."""
    if files.directory is not None:
        return Tokenizer.from_dir(files.directory)
    try:
        return Tokenizer.from_gguf(source.config)
    except TokenizerError:
        beside = sidecar(files, TOKENIZER)
        if beside is None:
            raise
        return Tokenizer.from_dir(beside.parent)


def tokenizer_at(path: str) -> Tokenizer:
    """A tokenizer.json, or the one of a directory in the Hugging Face layout."""
    place = expanded(path)
    if not place.exists():
        raise ModelNotFound(f"There is no tokenizer at {path!r}: name a tokenizer.json or leave the setting out.")
    return Tokenizer.from_dir(place) if place.is_dir() else Tokenizer.from_json(read_bytes(place, TokenizerError))


def template_of(config: EngineConfig, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The template the configuration names."""
    if config.chat_template is None:
        return None
    path = expanded(config.chat_template)
    try:
        source = read_text(path, MAX_TEMPLATE_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"The chat template {path} cannot be read ({error}): name a file with a Jinja template."
        ) from error
    return template_for({"tokenizer.chat_template": source}, tokenizer)


def with_parser(config: EngineConfig, template: ChatTemplate | None) -> ChatTemplate | None:
    """The template, with the parser of tool calls that the configuration names."""
    if template is not None and config.tool_call_parser:
        template.tool_call_parser = config.tool_call_parser
    return template


def breakers(tokenizer: Tokenizer) -> Resolve:
    """How a request's DRY breakers become tokens; the vocabulary is looked at when the first one asks."""
    finder: list[Resolve] = []

    def resolve(text: str) -> Iterable[ListOf[int]]:
        if not finder:
            # Without BOS: a breaker stands in the middle of a text.
            finder.append(breaker_finder(tokenizer.vocab_bytes(), partial(tokenizer.encode, add_special=False)))
        return finder[0](text)

    return resolve


def open_template(files: ModelFiles, source: OpenedModel, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The model's own chat template: Ollama's, a GGUF's own, or that of files beside it; a base model has none."""
    if files.directory is not None:
        return template_for(files.directory, tokenizer)
    if translated := ollama_template(files)[0]:
        return template_for({"tokenizer.chat_template": translated}, tokenizer)
    beside = sidecar(files, *TEMPLATES)
    return template_for(source.config, tokenizer) or (template_for(beside.parent, tokenizer) if beside else None)


def check_vocabulary(tokenizer: Tokenizer, model: ModelConfig, name: str) -> None:
    """A tokenizer with more tokens than the model has embeddings belongs to another model."""
    if tokenizer.n_vocab > model.n_vocab:
        raise TokenizerError(
            f"The tokenizer of {name} has {tokenizer.n_vocab} tokens, but the model knows {model.n_vocab}: "
            "they do not belong together. Fetch the model again."
        )
