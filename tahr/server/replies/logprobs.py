"""Log-probabilities in the two shapes of the API."""

from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from tahr.engine.sampling.sampling_state import SampledToken
    from tahr.generation.outputs import Chunk
    from tahr.text.tokens.tokenizer import Tokenizer


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class PromptLogprob(Struct):
    logprob: float
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]

LEAST = -9999.0  # JSON has no infinity
UTF8 = getincrementaldecoder("utf-8")


def shown(tokenizer: "Tokenizer", chunk: "Chunk") -> "Sequence[SampledToken]":
    """A chunk's tokens with their log-probabilities, without the token that only ends the reply."""
    tokens = chunk.logprobs
    ends = chunk.finish_reason == "stop" and tokens and tokenizer.is_eos(tokens[-1].token)
    return tokens[:-1] if ends else tokens


def finite(logprob: float | None) -> float:
    return LEAST if logprob is None else max(logprob, LEAST)


def text_of(tokenizer: "Tokenizer", token: int) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


def chat_logprobs(tokenizer: "Tokenizer", samples: "Sequence[SampledToken]") -> ChatLogprobs:
    """Log-probabilities in the form of chats: an object per token."""

    def top(token: int, logprob: float) -> TopLogprob:
        data = tokenizer.token_bytes(token)
        return TopLogprob(data.decode("utf-8", "replace"), finite(logprob), list(data))

    def one(sample: "SampledToken") -> TokenLogprob:
        data = tokenizer.token_bytes(sample.token)
        best = [top(*each) for each in sample.top_logprobs]
        return TokenLogprob(data.decode("utf-8", "replace"), finite(sample.logprob), list(data), best)

    return ChatLogprobs([one(sample) for sample in samples])


class TextOffsets:
    """Where tokens begin in a text. One that goes on with a character begins where the character does."""

    def __init__(self) -> None:
        self._at = 0
        self._decoder = UTF8("replace")

    def after(self, parts: Iterable[bytes]) -> list[int]:
        """Where each of these parts of the text begins, which follow those before."""
        return [self._take(part) for part in parts]

    def _take(self, part: bytes) -> int:
        begin = self._at
        self._at = self._at + len(self._decoder.decode(part))
        return begin

    def skip_to(self, at: int) -> None:
        self._at = at
        self._decoder.reset()


def text_parts(tokenizer: "Tokenizer", tokens: Iterable[int]) -> Iterator[bytes]:
    """Bytes that each token adds to a text."""
    return (b"" if tokenizer.is_special(token) else tokenizer.token_bytes(token) for token in tokens)


def prompt_parts(tokenizer: "Tokenizer", tokens: Sequence[int], is_text: bool) -> Iterator[bytes]:
    """Bytes that each token adds to the text of a prompt that was sent as text, or as tokens."""
    n_opening = len(tokenizer.prefix) if is_text else 0  # the client did not send these
    yield from [b""] * n_opening
    drops_space = tokenizer.drops_first_space
    for token in tokens[n_opening:]:
        part = tokenizer.token_bytes(token) if is_text or not tokenizer.is_special(token) else b""
        yield part.removeprefix(b" ") if drops_space else part
        drops_space = drops_space and not part


def text_logprobs(
    tokenizer: "Tokenizer", samples: "Sequence[SampledToken]", offsets: list[int], first: int | None = None
) -> TextLogprobs:
    """Log-probabilities in the form of completions: lists side by side. `first` has nothing before it."""
    tokens = [] if first is None else [text_of(tokenizer, first)]
    logprobs: list[float | None] = [None] * len(tokens)
    tops: list[dict[str, float] | None] = [None] * len(tokens)
    for sample in samples:
        tokens.append(text_of(tokenizer, sample.token))
        logprobs.append(finite(sample.logprob))
        tops.append(tops_by_text(tokenizer, sample))
    return TextLogprobs(tokens, logprobs, tops, offsets)


def tops_by_text(tokenizer: "Tokenizer", sample: "SampledToken") -> dict[str, float]:
    """The likeliest tokens and the one that was taken: it is always there, so there may be one more than asked for."""
    tops: dict[str, float] = {}
    for token, logprob in sample.top_logprobs:  # halves of characters look the same: the best of them stays
        tops.setdefault(text_of(tokenizer, token), finite(logprob))
    tops[text_of(tokenizer, sample.token)] = finite(sample.logprob)
    return tops


def prompt_logprobs(tokenizer: "Tokenizer", samples: "Sequence[SampledToken]") -> PromptLogprobs:
    """Each token of the prompt with its probability and the likeliest ones; nothing precedes the first."""

    def one(token: int, logprob: float | None) -> PromptLogprob:
        return PromptLogprob(finite(logprob), text_of(tokenizer, token))

    return [None, *({str(t): one(t, lp) for t, lp in (*p.top_logprobs, (p.token, p.logprob))} for p in samples)]
