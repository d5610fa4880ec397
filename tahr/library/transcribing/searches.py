"""Ways to a text of a window: the likeliest token after each other, or tokens drawn by chance."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from tahr.engine.engine import Engine
from tahr.engine.sequences.prompt_rows import PromptRows
from tahr.library.transcribing.texts import Followed, WindowTexts, probability, ruled
from tahr.speech.decoding.results import WindowText
from tahr.speech.decoding.rules import Row
from tahr.speech.decoding.tokens import SpeechTokens
from tahr.speech.decoding.wanted import WriteText

Decode = Callable[[Sequence[int]], str]


class WindowTask(Protocol):
    """A result in the making."""

    def advance(self) -> bool:
        """Go on with what the last step brought; whether the result is there."""

    def result(self) -> object: ...
    def close(self) -> None: ...


class NextRow:
    """The logits after a few tokens."""

    def __init__(self, engine: Engine, rows: PromptRows, prompt: Sequence[int]):
        self._texts = WindowTexts(engine, rows, prompt)
        self._text = self._texts.open()

    def advance(self) -> bool:
        self._texts.check()
        return self._text.last is not None

    def result(self) -> Row:
        assert self._text.last is not None
        return self._text.last

    def close(self) -> None:
        self._texts.close()


class TextSearch:
    """Texts that are searched for in either way."""

    def __init__(self, engine: Engine, rows: PromptRows, wanted: WriteText, tokens: SpeechTokens, decode: Decode):
        self.wanted = wanted
        self.tokens = tokens
        self.decode = decode
        self.texts = WindowTexts(engine, rows, wanted.prompt, wanted.prompt.index(tokens.start))
        self.n_most = min(engine.context_size // 2, engine.context_size - len(wanted.prompt))

    def close(self) -> None:
        self.texts.close()

    def found(self, text: Followed) -> WindowText:
        assert text.first is not None
        return WindowText(
            tokens=tuple(text.written),
            text=self.decode(self.tokens.texts(text.written)),
            mean_logprob=text.mean_logprob,
            no_speech=probability(text.first, self.tokens.no_speech, self.tokens),
            temperature=self.wanted.temperature,
        )


class IndependentTexts(TextSearch):
    """Texts that go on each by itself; the likeliest of them is the result."""

    def __init__(self, engine: Engine, rows: PromptRows, wanted: WriteText, tokens: SpeechTokens, decode: Decode):
        super().__init__(engine, rows, wanted, tokens, decode)
        self._random = [
            np.random.default_rng([wanted.seed, i]) for i in range(wanted.n_texts if wanted.temperature else 1)
        ]
        for _ in self._random:
            self.texts.open()

    def advance(self) -> bool:
        self.texts.check()
        for text, random in zip(self.texts.texts, self._random, strict=True):
            if text.last is not None and not text.has_ended:
                self._go_on(text, random)
        return all(text.has_ended for text in self.texts.texts)

    def _go_on(self, text: Followed, random: np.random.Generator) -> None:
        row = ruled(text, self.tokens, self.wanted.has_times)
        token = drawn(row, self.wanted.temperature, random) if self.wanted.temperature else int(row.argmax())
        if token == self.tokens.end or len(text.written) >= self.n_most:
            text.logprob_sum += float(row[token])
            text.has_ended = True
        else:
            self.texts.extend(text, token, float(row[token]))

    def result(self) -> WindowText:
        return self.found(max(self.texts.texts, key=lambda text: text.score))


def drawn(row: Row, temperature: float, random: np.random.Generator) -> int:
    """A token by its probability at a temperature."""
    scaled = (row / temperature).astype(np.float64)
    sums = np.exp(scaled - scaled.max()).cumsum()
    return int(np.searchsorted(sums, random.random() * sums[-1], side="right"))
