"""The prompt of a model that speaks: by token, a token of text and the codes of a frame."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tahr.speech.speaking.tokens import VoiceTokens

Encode = Callable[[str], list[int]]  # tokens of a text, whose special tokens are only text


@dataclass(frozen=True, slots=True)
class SpokenPrompt:
    """All that a model reads before it speaks, and besides the frames that it draws."""

    tokens: list[int]
    codes: NDArray[np.int32]  # [n_tokens, n_codes]
    later: list[int]  # tokens of text beside the frames that it draws; behind them comes padding
    voice_at: int  # token that is the vector of a voice; -1: none


class PromptWriter:
    """Collects tokens and codes."""

    def __init__(self, tokens: VoiceTokens):
        self._tokens = tokens
        self._text: list[int] = []
        self._codes: list[list[int]] = []

    @property
    def n(self) -> int:
        return len(self._text)

    def add(self, token: int, first: int) -> None:
        self._text.append(token)
        self._codes.append([first, *[self._tokens.no_other] * (self._tokens.n_codes - 1)])

    def add_texts(self, tokens: Sequence[int], first: int) -> None:
        for token in tokens:
            self.add(token, first)

    def prompt(self, later: list[int], voice_at: int) -> SpokenPrompt:
        return SpokenPrompt(self._text, np.array(self._codes, np.int32), later, voice_at)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A text to be said, and how. A voice is the name of a speaker, a vector, or left to the model."""

    text: str
    language: str = ""
    speaker: str = ""
    instructions: str = ""
    has_vector: bool = False
    is_streaming: bool = False  # the model reads the text word by word while it speaks


def spoken_prompt(wanted: Wanted, tokens: VoiceTokens, encode: Encode) -> SpokenPrompt:
    """The prompt of the released code."""
    text = tokens.text
    codes = tokens.codes
    writer = PromptWriter(tokens)
    if wanted.instructions:
        around = [text.im_start, *encode(f"user\n{wanted.instructions}"), text.im_end, *encode("\n")]
        writer.add_texts(around, tokens.no_first)
    opening = encode("assistant\n")
    words = encode(f"assistant\n{wanted.text}")[len(opening) :]
    writer.add_texts([text.im_start, *opening], tokens.no_first)
    for code in way_of(wanted, tokens):
        writer.add(text.pad, code)
    voice_at = writer.n if wanted.has_vector else -1
    if wanted.has_vector:
        writer.add(text.pad, tokens.no_first)
    if wanted.speaker:
        writer.add(text.pad, tokens.speakers[wanted.speaker])
    writer.add(text.begin, codes.pad)
    if wanted.is_streaming:
        writer.add(words[0], codes.begin)
        return writer.prompt([*words[1:], text.end], voice_at)
    writer.add_texts([*words, text.end], codes.pad)
    writer.add(text.pad, codes.begin)
    return writer.prompt([], voice_at)


def way_of(wanted: Wanted, tokens: VoiceTokens) -> list[int]:
    """The codes that name a language, or leave it to the model. A speaker of a dialect speaks that in its place."""
    codes = tokens.codes
    language = wanted.language
    if language in ("", "chinese"):
        language = tokens.dialects.get(wanted.speaker, language)
    if not language:
        return [codes.no_think, codes.think_begin, codes.think_end]
    return [codes.think, codes.think_begin, tokens.languages[language], codes.think_end]
