"""How an encoder's files say what it makes of texts: pooling, prompts, labels."""

from collections.abc import Mapping, Sequence
from typing import Any

from tahr.errors import CorruptFile, UnsupportedModel
from tahr.models.config.fields import Fields
from tahr.models.config.record import ModelConfig
from tahr.models.encoders.sentence_files import SentenceFiles
from tahr.models.parts.encoding import Dense, Encoding
from tahr.weights.tensor import HostTensor

CLASSIFIER = "ForSequenceClassification"
RANK = 4
GGUF_POOLINGS = {0: "mean", 1: "mean", 2: "cls", 3: "last", RANK: "cls"}  # 0: none is named
GGUF_DENSE = ("dense_2.weight", "dense_3.weight")
MOST_LABELS = 1 << 16
UNCHAINED = "The dense layers of the model do not fit each other; fetch the model again."


def hf_labels(f: Fields) -> int:
    """The labels of a classifier; 0 for other models."""
    architectures = f.items("architectures")
    if not (architectures and str(architectures[0]).endswith(CLASSIFIER)):
        return 0
    names = f.part("id2label").values
    return one_label(f.count("num_labels", MOST_LABELS, default=len(names) or 2))


def gguf_labels(f: Fields) -> int:
    labels = f.items("classifier.output_labels")
    return one_label(len(labels) or 1) if f.get("pooling_type") == RANK else 0


def one_label(n: int) -> int:
    if n != 1:
        raise UnsupportedModel(
            f"The model sorts texts into {n} classes; Tahr runs classifiers with one label, which rerank texts."
        )
    return n


def hf_encoding(config: Mapping[str, Any], cfg: ModelConfig, files: SentenceFiles | None) -> Encoding | None:
    """How a checkpoint turns texts into vectors; None: it generates."""
    if cfg.n_labels:
        pooling = Fields(config, "config.json").text("classifier_pooling", "cls")
        if pooling not in ("cls", "mean"):
            raise CorruptFile(f"classifier_pooling is {pooling[:80]!r}, but it must be cls or mean.")
        sigmoid = has_sigmoid(config, files.activation if files else "")
        return Encoding(pooling, scores_pairs=True, sigmoid=sigmoid, max_tokens=files.max_tokens if files else None)
    if cfg.vision:
        vision = cfg.vision
        dense = Dense(cfg.width, vision.width_out, vision.text_bias)
        return Encoding(vision.text_pooling, dense=(dense,), n_padded=vision.n_padded)
    if files is None:
        note = "No modules.json says how states become vectors: their mean is taken."
        return Encoding(note=note) if cfg.bidirectional else None
    if not chain_of(files.dense, cfg):
        raise CorruptFile(UNCHAINED)
    return Encoding(files.pooling or "mean", files.prompts, files.default_prompt, files.dense, files.max_tokens)


def chain_of(chain: Sequence[Dense], cfg: ModelConfig) -> bool:
    """Whether each dense layer takes what the one before gives."""
    given = [cfg.width, *(dense.n_out for dense in chain)]
    return all(dense.n_in == width for dense, width in zip(chain, given, strict=False))


def has_sigmoid(config: Mapping[str, Any], stated: str = "") -> bool:
    """Whether a cross-encoder's scores go through a sigmoid: yes, unless its files name another function; `stated` is
    what the newest ones say beside config.json."""
    inner = config.get("sentence_transformers")
    named = stated or (inner.get("activation_fn") if isinstance(inner, Mapping) else None)
    named = named or config.get("sbert_ce_default_activation_function")
    kind = str(named or "Sigmoid").rpartition(".")[2].removesuffix("()")
    if kind not in ("Sigmoid", "Identity"):
        raise UnsupportedModel(f"The model's scores go through {kind[:80]!r}; Tahr knows Sigmoid and Identity.")
    return kind == "Sigmoid"


def gguf_encoding(metadata: Mapping[str, Any], cfg: ModelConfig, tensors: Mapping[str, HostTensor]) -> Encoding | None:
    """How the model of a GGUF turns texts into vectors; None: it generates."""
    f = Fields(metadata, "the GGUF metadata", prefix=f"{metadata['general.architecture']}.")
    kind = f.count("pooling_type", 255, default=0, least=0)
    if kind not in GGUF_POOLINGS:
        raise UnsupportedModel(f"The GGUF pools by type {kind}; Tahr knows {', '.join(map(str, GGUF_POOLINGS))}.")
    if not cfg.bidirectional and kind in (0, RANK):
        return None
    dense = gguf_dense(tensors)
    if not chain_of(dense, cfg):
        raise CorruptFile(UNCHAINED)
    return Encoding(GGUF_POOLINGS[kind], scores_pairs=cfg.n_labels > 0, dense=dense)


def gguf_dense(tensors: Mapping[str, HostTensor]) -> tuple[Dense, ...]:
    """The dense layers after pooling that converters take over from sentence-transformers if told to."""
    found = [tensors[name].shape for name in GGUF_DENSE if name in tensors]
    if any(len(shape) != 2 for shape in found):
        raise CorruptFile(UNCHAINED)
    return tuple(Dense(n_in=n_in, n_out=n_out, biased=False) for n_out, n_in in found)
