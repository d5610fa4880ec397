"""How many tokens to guess: as long as one more is expected to bring more tokens per second than there are without it.

A guess at depth j of a sequence whose guesses are right with probability a brings a ** j tokens, and makes the step
longer by what a token more costs. With a draft model each depth also takes a pass of it for the whole batch.
"""

from collections.abc import Sequence as ListOf

from tahr.engine.speculation.costs import StepCosts

WORTH = 1.05  # the gain that pays for a depth: less is within the error of what is measured


def draft_lengths(
    acceptances: ListOf[float], n_decoding: int, costs: StepCosts, pass_seconds: float, n_most: int
) -> list[int]:
    """Guesses for each of some sequences, by how likely theirs are right; `n_decoding` sequences are in the step.

    `pass_seconds` is what one depth costs besides its verification.
    """
    lengths = [0] * len(acceptances)
    n_tokens, seconds = float(n_decoding), costs.seconds(n_decoding)
    if not seconds:
        return [1] * len(acceptances)  # nothing has been measured yet
    n_computed, going = n_decoding, list(range(len(acceptances)))
    for depth in range(1, n_most + 1):
        per_token = costs.seconds(n_computed + 1) - costs.seconds(n_computed)
        price = WORTH * n_tokens / seconds
        going = [i for i in going if acceptances[i] ** depth > price * per_token]
        gain = sum(acceptances[i] ** depth for i in going)
        cost = costs.seconds(n_computed + len(going)) - costs.seconds(n_computed) + pass_seconds
        if not going or gain <= price * cost:
            break
        n_tokens, seconds, n_computed = n_tokens + gain, seconds + cost, n_computed + len(going)
        for i in going:
            lengths[i] = depth
    return lengths
