"""How many tokens to draft: as many as are expected to bring the most tokens per second.

A draft token at depth j of a sequence whose drafts are right with probability a brings a ** j tokens, and makes the
step longer by what a token more costs. With a draft model each depth also takes a pass of it for the whole batch.
"""

from collections.abc import Callable
from collections.abc import Sequence as ListOf

from tahr.engine.speculation.costs import StepCosts

WORTH = 1.05  # the gain below which nothing is drafted: less is within the error of what is measured


def draft_lengths(
    acceptances: ListOf[float],
    n_decoding: int,
    costs: StepCosts,
    pass_seconds: Callable[[int], float],
    n_most: int,
) -> list[int]:
    """Draft tokens for each of some sequences, by how likely theirs are right; `n_decoding` sequences are in the step.

    `pass_seconds` says what drafting one token each for so many sequences takes.
    """
    plain_seconds = costs.seconds(n_decoding)
    if not plain_seconds:
        return [0] * len(acceptances)  # nothing has been measured yet
    per_token = costs.seconds(1) - costs.seconds(0)
    n_tokens, seconds = float(n_decoding), plain_seconds
    best_rate, best_depth = WORTH * n_tokens / seconds, 0
    least = per_token * n_tokens / seconds  # a token that is less likely right costs more than it brings
    for depth in range(1, n_most + 1):
        likely = [probability for a in acceptances if (probability := a**depth) > least]
        if not likely:
            break
        n_tokens += sum(likely)
        seconds += len(likely) * per_token + pass_seconds(len(likely))
        if n_tokens / seconds > best_rate:
            best_rate, best_depth = n_tokens / seconds, depth
    return [min(best_depth, depth_of(a, least, n_most)) for a in acceptances]


def depth_of(acceptance: float, least: float, n_most: int) -> int:
    """How deep a sequence's drafts are likely enough to be right."""
    depth, probability = 0, acceptance
    while depth < n_most and probability > least:
        depth, probability = depth + 1, probability * acceptance
    return depth
