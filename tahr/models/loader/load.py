"""Files become a decoder on a backend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tahr.backends.api import Backend, Weight
from tahr.config import SamplingParams
from tahr.errors import CorruptFile, LoadError, ModelNotFound, UnsupportedModel, printable
from tahr.models.config.longer import for_context
from tahr.models.config.record import ModelConfig
from tahr.models.decoder import Decoder
from tahr.models.encoders.reading import gguf_encoding, hf_encoding
from tahr.models.encoders.sentence_files import SentenceFiles, read_sentence_files
from tahr.models.family import Family
from tahr.models.files.gguf_rope import ROPE_TENSORS
from tahr.models.files.hf import quant_scheme
from tahr.models.files.json_files import read_json
from tahr.models.files.schemes import Scheme, join_parts
from tahr.models.loader import sampling
from tahr.models.loader.registry import family_of, from_gguf, from_hf
from tahr.models.parts.arrange import Tensors
from tahr.models.parts.encoding import Encoding
from tahr.models.parts.text_head import text_head
from tahr.models.parts.weights import NO_HOMES, Change, Progress, Weights, gguf_name, hf_name
from tahr.offload.homes import Homes, refuse_homes
from tahr.regular_file import read_start
from tahr.weights import HostTensor, open_gguf, open_safetensors
from tahr.weights.unread import without_data
from tahr.weights.watch import refuse_changed

if TYPE_CHECKING:
    from tahr.models.sharding.plan import ShardingPlan

MOST_JSON_BYTES = 16 << 20
# Buffers of older checkpoints that follow from the configuration.
RESTATED = (
    "embeddings.position_ids",
    "rotary_emb.inv_freq",
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
)
N_NAMED = 5  # unused tensors named in the log


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model whose files are open: `config` is config.json or GGUF metadata, `generation` generation_config.json."""

    name: str
    format: Literal["gguf", "safetensors"]
    config: Mapping[str, Any]
    tensors: Mapping[str, HostTensor]
    n_bytes: int
    generation: Mapping[str, Any]
    sentence: SentenceFiles | None = None  # settings that sentence-transformers saved beside a checkpoint
    n_context: int = 0  # tokens of the longest text that was asked for; 0: any number will do
    files: tuple[Path, ...] = ()  # paths it was opened from, and the directory; none of a model in memory
    directory: Path | None = None

    def model_config(self) -> ModelConfig:
        """The model in numbers."""
        cfg = from_gguf(self.config, self.tensors) if self.format == "gguf" else from_hf(self.config, self.name)
        return for_context(cfg, self.n_context)

    def encoding(self, config: ModelConfig) -> Encoding | None:
        """How the model turns whole texts into vectors; None: it generates."""
        return (
            gguf_encoding(self.config, config, self.tensors)
            if self.format == "gguf"
            else hf_encoding(self.config, config, self.sentence)
        )

    def sampling(self, config: ModelConfig) -> SamplingParams:
        """How the model's makers want it sampled."""
        metadata = self.config if self.format == "gguf" else {}
        return sampling.recommended(self.generation, metadata, family_of(config))


@dataclass(frozen=True, slots=True)
class Loaded:
    """A decoder ready to run, and the lines of the load log."""

    decoder: Decoder
    config: ModelConfig
    log: list[str]
    n_weight_bytes: int
    sizes: Mapping[str, Weight] = field(default_factory=dict)  # all matrices, without their data
    n_vector_bytes: int = 0


def open_model(weights: Sequence[Path] | bytes, directory: Path | None = None) -> OpenedModel:
    """Open a GGUF (its parts, or its bytes) or safetensors with the config.json beside them."""
    if isinstance(weights, bytes):
        return open_gguf_source(weights, "model", {})
    if not weights:
        weights = [find_weights(directory)]
    if is_gguf(weights[0]):
        # A lone GGUF may lie in a folder of downloads, beside files of other models.
        generation = read_object(directory / "generation_config.json", needed=False) if directory else {}
        source = open_gguf_source(weights[0], weights[0].stem, generation)
    else:
        source = open_safetensors_source(weights, directory or weights[0].parent)
    return replace(source, files=tuple(weights), directory=directory)


def open_gguf_source(file: Path | bytes, name: str, generation: Mapping[str, Any]) -> OpenedModel:
    gguf = open_gguf(file)
    return OpenedModel(name, "gguf", gguf.metadata, gguf.tensors, gguf.n_bytes, generation)


def open_safetensors_source(weights: Sequence[Path], directory: Path) -> OpenedModel:
    config = read_object(directory / "config.json", needed=True)
    generation = read_object(directory / "generation_config.json", needed=False)
    found = open_safetensors(weights[0] if len(weights) == 1 else directory)
    sentence = read_sentence_files(directory)
    tensors = {**found.tensors, **sentence.tensors} if sentence else found.tensors
    n_bytes = found.n_bytes + (sentence.n_bytes if sentence else 0)
    return OpenedModel(directory.name, "safetensors", config, tensors, n_bytes, generation, sentence)


def find_weights(directory: Path | None) -> Path:
    """A directory stands for the checkpoint in it."""
    if directory is None or not directory.is_dir():
        raise ModelNotFound(f"{directory} is not a directory; give a GGUF file or the directory of a checkpoint.")
    return directory


def is_gguf(path: Path) -> bool:
    if path.is_dir():
        return False
    try:
        return read_start(path, 4) == b"GGUF"
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read ({error.strerror}); check the path and its permissions.") from error


def read_object(path: Path, needed: bool) -> dict[str, Any]:
    """The JSON object in a file of a model."""
    value: dict[str, Any] | None = read_json(path, dict, MOST_JSON_BYTES)
    if value is None and needed:
        raise ModelNotFound(f"{path} is missing: safetensors need it beside them to say what model they hold.")
    return value or {}


BACKEND_ROUNDINGS = ("fp8",)  # formats that backends round matrices to themselves


def load(
    source: OpenedModel,
    backend: Backend,
    progress: Progress | None = None,
    quantize: str | None = None,
    lora_rows: int = 0,
    homes: Homes = NO_HOMES,
    n_ranks: int = 1,
    rank: int | None = None,
) -> Loaded:
    """Build the model on `backend`, quantising a float checkpoint if asked to; `progress` is called per tensor.

    The backend keeps `lora_rows` for adapters behind the matrix of each linear, see `Backend.join`. Tensors with one of
    `homes` go there instead of the backend's usual place. With several ranks the decoder is one for each, see
    `VirtualRanks`, or that of one `rank` alone.
    """
    refuse_homes(homes, backend.homes, backend.name, backend.has_own_memory)
    config, tensors, encoding = settled(source)
    change = changing(config, quantize, backend)
    weights = Weights(config, tensors, backend, progress, change=change, lora_rows=lora_rows, homes=homes)
    try:
        decoder = built(source, weights, n_ranks, rank)
        if encoding:
            decoder.encoding = encoding
            decoder.text_head = text_head(config, encoding, weights)
    except LoadError as error:
        if config.guess:
            raise UnsupportedModel(f"The model was {config.guess}, but that failed: {error}") from error
        raise
    backend.settle_weights()
    refuse_changed(tensor.source for tensor in source.tensors.values())
    unused = weights.unused()
    refuse_bad_guess(config, unused)
    log = (
        weights.counts.summary()
        + describe_dense(tensors)
        + describe_unused(unused)
        + ([encoding.note] if encoding and encoding.note else [])
    )
    if config.guess:
        log.append(f"The model was {config.guess}.")
    return Loaded(decoder, config, log, weights.counts.total_bytes, weights.counts.sizes, weights.counts.n_vector_bytes)


def settled(source: OpenedModel) -> tuple[ModelConfig, Tensors, Encoding | None]:
    """The model in numbers, its tensors by canonical names, and its way from texts to vectors, if it does not
    generate."""
    config = source.model_config()
    encoding = source.encoding(config)
    config = replace(config, generates=encoding is None)
    if encoding and encoding.max_tokens:
        config = replace(config, max_context=min(config.max_context, encoding.max_tokens))
    tensors = canonical(source, config)
    return replace(config, tied=config.tied or tied_outside(source, tensors)), tensors, encoding


def built(source: OpenedModel, weights: Weights, n_ranks: int, rank: int | None = None) -> Decoder:
    """The decoder of a family, on one rank, on several, or of one of these."""
    build = family_of(weights.config).build
    if n_ranks == 1:
        return build(weights.config, weights)
    from tahr.models.sharding.building import build_rank, build_ranks  # rarely needed, so not imported at start-up

    plan = sharding_of(source, n_ranks)
    return build_ranks(build, weights, plan) if rank is None else build_rank(build, weights, plan, rank)


def sharding_of(source: OpenedModel, n_ranks: int) -> "ShardingPlan":
    """The parts of the model that so many ranks have; no matrix is read."""
    from tahr.models.sharding.plan import plan_sharding

    unread = {name: without_data(tensor) for name, tensor in source.tensors.items()}
    config, tensors, _ = settled(replace(source, tensors=unread))
    return plan_sharding(config, tensors, n_ranks)


def tied_outside(source: OpenedModel, tensors: Mapping[str, HostTensor]) -> bool:
    """Whether a multimodal model says of itself, though not of its text model, that its head is the embedding. Some say
    so and have a head all the same, which then counts."""
    says_so = source.format == "safetensors" and source.config.get("tie_word_embeddings") is True
    return says_so and isinstance(source.config.get("text_config"), Mapping) and "lm_head.weight" not in tensors


def changing(config: ModelConfig, quantize: str | None, backend: Backend) -> Change | None:
    if quantize is None:
        return None
    from tahr.models.loader.requantise import (  # rarely needed, so not imported at start-up
        backend_rounding,
        requantiser,
    )

    if quantize.lower() in BACKEND_ROUNDINGS:
        return backend_rounding(config, quantize.lower(), backend)
    return requantiser(config, family_of(config).gguf_names, quantize)


def canonical(source: OpenedModel, config: ModelConfig) -> Tensors:
    """The tensors by canonical names, cut as blocks want them, less those that only restate the configuration."""
    family = family_of(config)
    if source.format == "safetensors":
        named = [(hf_name(n, family.hf_names), t) for n, t in source.tensors.items() if not n.endswith(RESTATED)]
    else:
        named = [(gguf_name(n, family.gguf_names), t) for n, t in source.tensors.items() if n not in ROPE_TENSORS]
    tensors = Tensors(by_name(named))
    if scheme := quantised_by(source, family):
        join_parts(tensors, scheme)
    return family.arrange(config, tensors)


def by_name(named: Sequence[tuple[str, HostTensor]]) -> dict[str, HostTensor]:
    """Tensors by canonical names. A file may hold one twice under names that mean the same, but not two."""
    found: dict[str, HostTensor] = {}
    for name, tensor in named:
        first = found.setdefault(name, tensor)
        if first is not tensor and not same(first, tensor):
            raise CorruptFile(
                f"The model has both {first.name} and {tensor.name}, which are names of the same tensor, and they "
                "differ. Which one counts cannot be told; fetch the model again, or delete one."
            )
    return found


def same(one: HostTensor, two: HostTensor) -> bool:
    return one.format == two.format and one.shape == two.shape and np.array_equal(one.data, two.data)


def quantised_by(source: OpenedModel, family: Family) -> Scheme | None:
    """How a checkpoint keeps scales and packed integers beside or instead of weights; None of a float checkpoint."""
    return quant_scheme(source.config, family) if source.format == "safetensors" else None


def refuse_bad_guess(config: ModelConfig, unused: list[str]) -> None:
    if config.guess and unused:
        raise UnsupportedModel(
            f"The model was {config.guess}, but it has tensors that family does not: {', '.join(unused[:N_NAMED])}."
        )


def describe_dense(tensors: Tensors) -> list[str]:
    """Quantised matrices that take more memory than their file."""
    if not tensors.made_dense:
        return []
    why = "act-order, 8 bits with zero points or odd widths"
    return [f"{len(tensors.made_dense)} quantised matrices fit no block format ({why}) and are stored dense."]


def describe_unused(unused: list[str]) -> list[str]:
    more = f" and {len(unused) - N_NAMED} more" if len(unused) > N_NAMED else ""
    return [printable(f"Not used: {', '.join(unused[:N_NAMED])}{more}.")] if unused else []
