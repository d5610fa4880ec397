"""Functions that narrow the candidates down, one for each stage."""

import numpy as np

from tahr.backends.sampling.candidates import Candidates
from tahr.backends.sampling.lanes import Doubles, running_sums


def top_n_sigma(s: Candidates) -> None:
    """Keep logits within n standard deviations of the best."""
    sigma = s.fact("sigma")[:, None]
    floor = -s.parameter("top_n_sigma") * sigma
    s.cut(s.logits >= floor)


def xtc(s: Candidates) -> None:
    """Exclude top choices: now and then, of all tokens above the threshold, only the least likely stays."""
    floor = s.parameter("xtc_threshold") * s.mass()
    likely = s.alive & (s.weights >= floor)
    s.unsure |= s.open & likely[:, -1]
    fires = s.uniforms[:, :1] < s.parameter("xtc_probability")
    followed = np.zeros_like(likely)
    followed[:, :-1] = likely[:, 1:]
    s.drop(fires & likely & followed)


def typical(s: Candidates) -> None:
    """Keep the tokens whose surprise is nearest to the expected one, until they make up typical_p."""
    p = s.weights / s.mass()
    surprise = -np.log(p, out=np.full_like(p, -np.inf), where=p > 0)
    oddness = np.abs(surprise - s.entropy())
    wanted = s.parameter("typical_p")
    order = np.argsort(oddness, axis=1)
    before = sum_before(np.take_along_axis(p, order, axis=1))
    ordered = np.take_along_axis(oddness, order, axis=1)
    nearest = np.where(before < wanted, ordered, -1)
    limit = nearest.max(axis=1, keepdims=True)
    kept = oddness <= limit  # tokens as near as the last one stay too
    # Tokens beyond the list surprise more than its last one, so they are odder than all that are counted here.
    last = (surprise - s.entropy())[:, -1:]
    nearer = np.where(oddness < last, p, 0).sum(axis=1)
    s.cut(kept, beyond=nearer < wanted[:, 0])


def top_a(s: Candidates) -> None:
    """Keep probabilities of at least a times the square of the best."""
    mass = s.mass()
    best = s.weights.max(axis=1, keepdims=True)
    floor = s.parameter("top_a") * best**2
    s.cut(s.weights * mass >= floor)


def eta(s: Candidates) -> None:
    """Keep probabilities of at least the cutoff, or less where the choice is wide open."""
    cutoff = s.parameter("eta_cutoff")
    open_cutoff = np.sqrt(cutoff) * np.exp(-s.entropy())
    share = np.minimum(cutoff, open_cutoff)
    s.cut(s.weights >= share * s.mass())


def temperature(s: Candidates) -> None:
    """Divide the logits by it: below 1 sharpens, above 1 flattens."""
    s.apply_temperature(s.parameter("temperature"))


def top_k(s: Candidates) -> None:
    """Keep the k best."""
    rank = np.cumsum(s.alive, axis=1)
    k = s.parameter("top_k")
    has_fewer = rank[:, -1] < k[:, 0]
    s.cut(rank <= k, beyond=has_fewer)


def min_p(s: Candidates) -> None:
    """Keep tokens at least min_p times as likely as the best."""
    best = s.weights.max(axis=1, keepdims=True)
    floor = s.parameter("min_p") * best
    s.cut(s.weights >= floor)


def top_p(s: Candidates) -> None:
    """Keep the fewest best tokens that together make up top_p."""
    limit = s.parameter("top_p") * s.mass()
    s.cut(sum_before(s.weights) < limit)


def mirostat(s: Candidates) -> None:
    """Keep tokens whose surprise in bits is at most mu, which follows earlier samples; the best always stays."""
    floor = np.exp2(-s.parameter("mirostat_mu")) * s.mass()
    kept = s.weights >= floor
    kept[:, 0] = True
    s.cut(kept)


def sum_before(values: Doubles) -> Doubles:
    """Running sums of each row, each without its own value."""
    sums = running_sums(values)
    sums[:, 1:] = sums[:, :-1]
    sums[:, 0] = 0
    return sums
