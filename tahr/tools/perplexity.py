"""How surprised a model is by a text: what its weights lost shows here before anybody notices it in replies."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tahr.errors import ConfigError
from tahr.tools.full_logits import FullLogits


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of text that is read from its beginning; tokens from `begin` on are scored."""

    ids: list[int]
    begin: int


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Perplexity of `n_tokens` scored tokens; `error` is the standard error of the value."""

    value: float
    error: float
    n_tokens: int

    @staticmethod
    def of(surprise: NDArray[np.float64]) -> "Perplexity":
        """Compute it from the negative logarithms of the tokens' probabilities."""
        value = math.exp(surprise.mean())
        spread = float(surprise.std())
        return Perplexity(value, value * spread / math.sqrt(len(surprise)), len(surprise))


def windows(ids: list[int], size: int, n_unscored: int, bos: int | None) -> list[Window]:
    """A text cut into windows of one size, the rest left out; each begins with BOS where the model wants one."""
    if not 1 <= n_unscored < size:
        raise ConfigError(f"A window of {size} tokens with {n_unscored} that do not count leaves nothing to score.")
    if len(ids) < size:
        raise ConfigError(
            f"The text has {len(ids)} tokens, but a window takes {size}: give more text, or a smaller -c."
        )
    cut = [ids[i : i + size] for i in range(0, len(ids) - size + 1, size)]
    return [Window(some if bos is None else [bos, *some[1:]], n_unscored) for some in cut]


def logprobs(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Logarithms of probabilities, row by row."""
    shifted: NDArray[np.float64] = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def surprise(logits_of: FullLogits, window: Window) -> NDArray[np.float64]:
    """Negative logarithm of each scored token's probability."""
    wanted = np.array(window.ids[window.begin :])
    found: list[NDArray[np.float64]] = []
    done = 0
    for logits in logits_of.run(window.ids[:-1], window.begin - 1):
        rows = logprobs(logits)
        found.append(-rows[np.arange(len(rows)), wanted[done : done + len(rows)]])
        done += len(rows)
    return np.concatenate(found)


def measure(logits_of: FullLogits, cut: list[Window], tick: Callable[[str], None] = lambda text: None) -> Perplexity:
    """The perplexity of a text; `tick` hears which window is read."""
    found = []
    for i, window in enumerate(cut):
        tick(f"window {i + 1} of {len(cut)}")
        found.append(surprise(logits_of, window))
    return Perplexity.of(np.concatenate(found))
