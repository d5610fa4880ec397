"""Log-probabilities in the two shapes of the API."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tahr.server.openai.replies import (
    ChatLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TextLogprobs,
    TokenLogprob,
    TopLogprob,
)

if TYPE_CHECKING:
    from tahr.engine.sampler import SampledToken
    from tahr.library.outputs import Chunk
    from tahr.text.tokenizer import Tokenizer

LEAST = -9999.0  # JSON has no infinity


def shown(tokenizer: "Tokenizer", chunk: "Chunk") -> "Sequence[SampledToken]":
    """A chunk's tokens with their log-probabilities, without the token that only ends the reply."""
    tokens = chunk.logprobs
    ends = chunk.finish_reason == "stop" and tokens and tokenizer.is_eos(tokens[-1].token)
    return tokens[:-1] if ends else tokens


def finite(logprob: float | None) -> float:
    return LEAST if logprob is None else max(logprob, LEAST)


def text_of(tokenizer: "Tokenizer", token: int) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


def chat_logprobs(tokenizer: "Tokenizer", picks: "Sequence[SampledToken]") -> ChatLogprobs:
    """As chats give them: an object per token."""

    def top(token: int, logprob: float) -> TopLogprob:
        data = tokenizer.token_bytes(token)
        return TopLogprob(data.decode("utf-8", "replace"), finite(logprob), list(data))

    def one(pick: "SampledToken") -> TokenLogprob:
        data = tokenizer.token_bytes(pick.token)
        best = [top(*each) for each in pick.top_logprobs]
        return TokenLogprob(data.decode("utf-8", "replace"), finite(pick.logprob), list(data), best)

    return ChatLogprobs([one(pick) for pick in picks])


def text_logprobs(
    tokenizer: "Tokenizer", picks: "Sequence[SampledToken]", offset: int, first: int | None = None
) -> tuple[TextLogprobs, int]:
    """As completions give them: lists side by side, and the offset after them. `first` has nothing before it."""
    tokens = [] if first is None else [text_of(tokenizer, first)]
    logprobs: list[float | None] = [None] * len(tokens)
    tops: list[dict[str, float] | None] = [None] * len(tokens)
    for pick in picks:
        tokens.append(text_of(tokenizer, pick.token))
        logprobs.append(finite(pick.logprob))
        tops.append({text_of(tokenizer, token): finite(logprob) for token, logprob in pick.top_logprobs})
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return TextLogprobs(tokens, logprobs, tops, offsets), offset


def prompt_logprobs(tokenizer: "Tokenizer", picks: "Sequence[SampledToken]") -> PromptLogprobs:
    """Of each token of the prompt: how likely it was, and the likeliest; nothing precedes the first."""

    def one(token: int, logprob: float | None) -> PromptLogprob:
        return PromptLogprob(finite(logprob), text_of(tokenizer, token))

    return [None, *({str(t): one(t, lp) for t, lp in (*p.top_logprobs, (p.token, p.logprob))} for p in picks)]
