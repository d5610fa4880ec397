"""Which plans run before steps need them, and when."""

import time
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as ListOf

from tahr.backends.api import Backend, Plan, StepLimits

STRIDES = (8, 4, 2, 1)  # in which buckets are warmed: soon there is a warm one not much larger than any
LOOK_S, PAUSE_S = 0.05, 0.005  # that are spent on looking for a plan that can run, and before the next look


def warming_order(buckets: ListOf[StepLimits], n_decode_tokens: int) -> deque[StepLimits]:
    """Steps in which all decode, then others of all sizes, from both ends, then those between: prompts come alone, or
    bursts fill whole steps.

    Those with more rows than are sampled from are seldom wanted and come last.
    """
    most = buckets[-1].n_tokens_per_seq
    decoding = [each for each in buckets if each.n_tokens_per_seq < most]
    usual = [each for each in buckets if each.n_tokens_per_seq == most and each.n_rows <= each.n_seqs * n_decode_tokens]
    spread = [
        each for stride in STRIDES for pair in zip(usual[::stride], usual[::-stride], strict=True) for each in pair
    ]
    return deque(dict.fromkeys([*decoding, *spread, *buckets]))


def first_prepared(backend: Backend, plans: Iterable[Plan]) -> Plan | None:
    """The first plan whose run waits for nothing, while the backend prepares those behind it; None: look again.

    This takes little time whatever is being prepared, because a request may come.
    """
    began = time.perf_counter()
    for plan in plans:
        if backend.prepare(plan):
            return plan
        if time.perf_counter() - began > LOOK_S:
            return None
    time.sleep(PAUSE_S)
    return None
