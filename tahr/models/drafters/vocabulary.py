"""The tokens that a drafter may guess, where these are not all of its model's."""

from collections.abc import Mapping

import numpy as np

from tahr.backends.api import Ints
from tahr.errors import CorruptFile
from tahr.models.drafters.reading import DrafterConfig
from tahr.weights.tensor import HostTensor

MAP = "d2t"  # the difference of each draft token to its token of the model
NUMBERS = {"I64": np.int64, "I32": np.int32}


def draft_tokens(cfg: DrafterConfig, tensors: Mapping[str, HostTensor]) -> Ints | None:
    """The token of each logit; None: the logits are those of all tokens, in order."""
    n = cfg.n_draft_vocab
    n_vocab = cfg.layers.n_vocab
    tensor = tensors.get(MAP)
    if tensor is None:
        if n == n_vocab:
            return None
        raise CorruptFile(
            f"The drafter guesses {n} of {n_vocab} tokens and has no tensor {MAP} that says which; fetch it again."
        )
    if tensor.format.name not in NUMBERS or tensor.shape != (n,):
        raise CorruptFile(
            f"Tensor {MAP} of the drafter is {list(tensor.shape)} in {tensor.format.name}, but a map of its {n} tokens "
            "is one whole number for each; fetch it again."
        )
    apart = np.frombuffer(np.ascontiguousarray(tensor.data), NUMBERS[tensor.format.name]).astype(np.int64)
    tokens = np.arange(n) + np.clip(apart, -n_vocab - 1, n_vocab + 1)  # a damaged file may hold numbers of any size
    if tokens.min() < 0 or tokens.max() >= n_vocab:
        raise CorruptFile(
            f"The drafter's map names tokens from {tokens.min()} to {tokens.max()}, but its model has {n_vocab}: the "
            "file is damaged or belongs to another model; fetch it again."
        )
    if len(np.unique(tokens)) < n:
        raise CorruptFile("The drafter's map names a token twice: the file is damaged; fetch it again.")
    return tokens.astype(np.int32)
