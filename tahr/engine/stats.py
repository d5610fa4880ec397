"""What a request cost: cheap enough to be always on."""

from dataclasses import dataclass


@dataclass(slots=True)
class RequestStats:
    """Seconds and counts of one request."""

    n_prompt_tokens: int = 0
    n_generated_tokens: int = 0
    n_cached_tokens: int = 0
    queue_s: float = 0.0  # arrival to first computed token
    prefill_s: float = 0.0  # first computed token to first picked token
    first_token_s: float = 0.0  # arrival to first picked token
    decode_s: float = 0.0  # first picked token to last

    @property
    def prompt_tokens_per_s(self) -> float:
        return rate(self.n_prompt_tokens - self.n_cached_tokens, self.prefill_s)

    @property
    def tokens_per_s(self) -> float:
        """Decode speed: the first token belongs to the prompt's time."""
        return rate(self.n_generated_tokens - 1, self.decode_s)


def rate(n: int, seconds: float) -> float:
    """n per second, 0 when nothing was measured."""
    return n / seconds if n > 0 and seconds > 0 else 0.0
