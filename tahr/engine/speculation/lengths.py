"""How many tokens to draft: as many as are expected to bring the most tokens per second.

A draft token at depth j of a sequence whose drafts are right with probability a brings a ** j tokens, and makes the
step longer by what a token more costs. With a draft model each depth also takes a pass of it for the whole batch, and
a sequence whose text it has not computed yet costs that first: what is left of the reply must repay it.
"""

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from typing import NamedTuple

from tahr.engine.speculation.costs import StepCosts

WORTH = 1.05  # the gain below which nothing is drafted: less is within the error of what is measured


class Prospect(NamedTuple):
    """Prospects of drafting for a sequence."""

    acceptance: float  # probability of a guess, if those before it are right
    first_s: float = 0.0  # seconds before its first draft, as a share of each step that is left of its reply


def draft_lengths(
    prospects: ListOf[Prospect],
    n_decoding: int,
    costs: StepCosts,
    pass_seconds: Callable[[int], float],
    n_most: int,
) -> list[int]:
    """Draft tokens for each of some sequences; `n_decoding` sequences are in the step.

    `pass_seconds` says what drafting one token each for so many sequences takes.
    """
    plain_seconds = costs.seconds(n_decoding)
    if not plain_seconds:
        return [0] * len(prospects)  # nothing has been measured yet
    plain_rate = n_decoding / plain_seconds
    least = costs.per_token * plain_rate  # a token that is less likely right costs more than it brings
    depths = [depth_of(a, least, n_most) for a, _ in prospects]
    paying = [
        i
        for i, (a, first_s) in enumerate(prospects)
        if brought(a, depths[i]) > depths[i] * least + first_s * plain_rate
    ]
    n_tokens = float(n_decoding)
    n_rows = n_decoding
    drafting_s = sum(prospects[i].first_s for i in paying)
    best_rate = WORTH * plain_rate
    best_depth = 0
    for depth in range(1, n_most + 1):
        likely = [prospects[i].acceptance ** depth for i in paying if depths[i] >= depth]
        if not likely:
            break
        n_tokens = n_tokens + sum(likely)
        n_rows = n_rows + len(likely)
        drafting_s += pass_seconds(len(likely))
        rate = n_tokens / (costs.seconds(n_rows) + drafting_s)
        if rate > best_rate:
            best_rate = rate
            best_depth = depth
    lengths = [0] * len(prospects)
    for i in paying:
        lengths[i] = min(best_depth, depths[i])
    return lengths


def depth_of(acceptance: float, least: float, n_most: int) -> int:
    """How deep a sequence's drafts are likely enough to be right."""
    depth = 0
    probability = acceptance
    while depth < n_most and probability > least:
        depth = depth + 1
        probability = probability * acceptance
    return depth


def brought(acceptance: float, depth: int) -> float:
    """How many of a sequence's drafts are expected to be right."""
    return sum(acceptance**j for j in range(1, depth + 1))
