"""Steps whose tokens the device draws itself: where every request takes the best token, or draws from all by its
temperature, the logits need not come to the host."""

from collections.abc import Sequence as ListOf

import numpy as np

from tahr.backends.api import Backend, Tensor
from tahr.engine.sampling.rows import not_numbers
from tahr.engine.sampling.sampling_state import SampledToken
from tahr.engine.sampling.stages import DRAW_FROM_ALL, TAKE_BEST
from tahr.engine.sequence import Sequence
from tahr.engine.work import WorkItem
from tahr.errors import TahrError

PLAIN = (TAKE_BEST, DRAW_FROM_ALL)


def drawable(work: ListOf[WorkItem]) -> list[Sequence]:
    """The sequences that get a token in this step, if the device can draw all of them; else nobody."""
    ready = []
    for seq, _, _, picks, n_rows, _ in work:
        if n_rows > picks:
            return []  # somebody wants to see the logits of a prompt
        if picks:
            if not is_plain(seq):
                return []
            ready.append(seq)
    return ready


def is_plain(seq: Sequence) -> bool:
    """Whether nothing but the logits and a random number is needed."""
    parts = bool(seq.forks) and not seq.n_generated  # one row, several tokens
    if parts or not seq.request:
        return False
    sampling = seq.request.sampling
    return sampling.chain in PLAIN and not sampling.edits and sampling.params.logprobs is None


def draw(backend: Backend, logits: Tensor, ready: ListOf[Sequence], n_vocab: int) -> list[SampledToken | TahrError]:
    """The tokens of those that get one."""
    states = [seq.request.sampling for seq in ready if seq.request]
    temperatures = np.array([sampling.params.temperature for sampling in states], np.float64)
    chances = [sampling.chances(seq.n_generated)[1] for sampling, seq in zip(states, ready, strict=True)]
    tokens = backend.draw(logits, n_vocab, temperatures, np.array(chances, np.float64))
    return [not_numbers() if token < 0 else SampledToken(token) for token in tokens.tolist()]
