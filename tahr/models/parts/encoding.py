"""How whole texts become vectors: the states that are pooled, prompts before a text, and layers after pooling."""

from collections.abc import Mapping
from dataclasses import dataclass, field

POOLINGS = ("last", "mean", "max", "cls")


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear that pooled vectors go through."""

    n_in: int
    n_out: int
    biased: bool
    activation: str = ""  # "tanh", or none


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a model embeds texts or, if it is a cross-encoder, scores pairs of them."""

    pooling: str = "mean"  # a key of POOLINGS
    prompts: Mapping[str, str] = field(default_factory=dict)  # texts put before others, by name
    default_prompt: str = ""  # the name of the one that texts get where none is asked for
    dense: tuple[Dense, ...] = ()
    max_tokens: int | None = None  # limit on a text; None: all positions of the model
    n_padded: int = 0  # texts are padded to so many tokens, which all count; 0: they are not
    scores_pairs: bool = False
    sigmoid: bool = True  # a cross-encoder's scores are probabilities
    note: str = ""  # remark for the load log
