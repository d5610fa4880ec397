"""Functions that narrow the candidates down, one for each stage."""

import numpy as np

from tahr.backends.sampling.candidates import Candidates
from tahr.backends.sampling.lanes import Doubles, running_sums


def top_n_sigma(s: Candidates) -> None:
    """Keep logits within n standard deviations of the best."""
    s.cut(s.logits >= -s.parameter("top_n_sigma") * s.fact("sigma")[:, None])


def xtc(s: Candidates) -> None:
    """Exclude top choices: now and then, of all tokens above the threshold, only the least likely stays."""
    likely = s.alive & (s.weights >= s.parameter("xtc_threshold") * s.mass())
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
    nearest = sum_before(np.take_along_axis(p, order, axis=1)) < wanted
    limit = np.where(nearest, np.take_along_axis(oddness, order, axis=1), -1).max(axis=1, keepdims=True)
    kept = oddness <= limit  # tokens as near as the last one stay too
    # Tokens beyond the list surprise more than its last one, so they are odder than all that are counted here.
    nearer = np.where(oddness < (surprise - s.entropy())[:, -1:], p, 0).sum(axis=1)
    s.cut(kept, beyond=nearer < wanted[:, 0])


def top_a(s: Candidates) -> None:
    """Keep probabilities of at least a times the square of the best."""
    mass = s.mass()
    best = s.weights.max(axis=1, keepdims=True)
    s.cut(s.weights * mass >= s.parameter("top_a") * best**2)


def eta(s: Candidates) -> None:
    """Keep probabilities of at least the cutoff, or less where the choice is wide open."""
    cutoff = s.parameter("eta_cutoff")
    s.cut(s.weights >= np.minimum(cutoff, np.sqrt(cutoff) * np.exp(-s.entropy())) * s.mass())


def temperature(s: Candidates) -> None:
    """Divide the logits by it: below 1 sharpens, above 1 flattens."""
    s.apply_temperature(s.parameter("temperature"))


def top_k(s: Candidates) -> None:
    """Keep the k best."""
    rank = np.cumsum(s.alive, axis=1)
    k = s.parameter("top_k")
    s.cut(rank <= k, beyond=rank[:, -1] < k[:, 0])


def min_p(s: Candidates) -> None:
    """Keep tokens at least min_p times as likely as the best."""
    s.cut(s.weights >= s.parameter("min_p") * s.weights.max(axis=1, keepdims=True))


def top_p(s: Candidates) -> None:
    """Keep the fewest best tokens that together make up top_p."""
    s.cut(sum_before(s.weights) < s.parameter("top_p") * s.mass())


def mirostat(s: Candidates) -> None:
    """Keep tokens whose surprise in bits is at most mu, which follows earlier samples; the best always stays."""
    kept = s.weights >= np.exp2(-s.parameter("mirostat_mu")) * s.mass()
    kept[:, 0] = True
    s.cut(kept)


def sum_before(values: Doubles) -> Doubles:
    """Running sums of each row, each without its own value."""
    sums = running_sums(values)
    sums[:, 1:] = sums[:, :-1]
    sums[:, 0] = 0
    return sums
