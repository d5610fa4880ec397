"""What a model makes of whole texts: which states become a vector, what is put before a text, what follows."""

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

    pooling: str = "mean"  # one of POOLINGS
    prompts: Mapping[str, str] = field(default_factory=dict)  # by name: what is put before a text
    default_prompt: str = ""  # the name of the one that texts get where none is asked for
    dense: tuple[Dense, ...] = ()
    max_tokens: int | None = None  # of a text; None: as many as the model has positions
    scores_pairs: bool = False
    sigmoid: bool = True  # of a cross-encoder: scores are probabilities
    note: str = ""  # what the load log says about it
