"""Ways to a text of a window: the likeliest token after each other, tokens drawn by chance, or several beams."""

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


class BeamTexts(TextSearch):
    """The likeliest few texts, which are replaced by the likeliest ways to go on with any of them."""

    def __init__(self, engine: Engine, rows: PromptRows, wanted: WriteText, tokens: SpeechTokens, decode: Decode):
        super().__init__(engine, rows, wanted, tokens, decode)
        self._ended: list[Followed] = []
        self._n_wanted = max(1, round(wanted.n_texts * wanted.patience))
        self.texts.open()

    def advance(self) -> bool:
        self.texts.check()
        if self.texts.texts and all(text.last is not None for text in self.texts.texts):
            self._go_on()
        return not self.texts.texts

    def _go_on(self) -> None:
        live = list(self.texts.texts)
        rows = [ruled(text, self.tokens, self.wanted.has_times) for text in live]
        chosen: list[tuple[Followed, int, float]] = []
        for i, token, logprob in self._best(live, rows):
            text = live[i]
            if token == self.tokens.end:
                self._end(text, logprob)
            else:
                chosen.append((text, token, logprob))
            if len(chosen) == self.wanted.n_texts:
                break
        if len(self._ended) >= self._n_wanted or len(live[0].written) >= self.n_most or not chosen:
            self._finish(live)
        else:
            self._replace(live, chosen)

    def _best(self, live: list[Followed], rows: list[Row]) -> list[tuple[int, int, float]]:
        """The likeliest next tokens of each, together in order: as (text, token, log-probability)."""
        n = self.wanted.n_texts + 1
        found = []
        for i, row in enumerate(rows):
            top = np.argpartition(-row, n)[:n]
            found += [(i, int(token), float(row[token])) for token in top if row[token] > -np.inf]
        return sorted(found, key=lambda each: (-(live[each[0]].logprob_sum + each[2]), each[0], each[1]))

    def _end(self, text: Followed, logprob: float) -> None:
        if len(self._ended) < self._n_wanted:
            total = text.logprob_sum + logprob
            self._ended.append(Followed(written=list(text.written), logprob_sum=total, first=text.first))

    def _finish(self, live: list[Followed]) -> None:
        """Too few ended texts are made up by the likeliest that have not."""
        best = sorted(live, key=lambda text: -text.logprob_sum)
        self._ended += best[: max(0, self.wanted.n_texts - len(self._ended))]
        self.texts.close()

    def _replace(self, live: list[Followed], chosen: list[tuple[Followed, int, float]]) -> None:
        """The first way to go on with a text keeps its sequence, others get a fork."""
        kept: set[int] = set()
        following = []
        for text, token, logprob in chosen:
            following.append((self.texts.fork(text) if id(text) in kept else text, token, logprob))
            kept.add(id(text))
        for text in live:
            if id(text) not in kept:
                self.texts.drop(text)
        for text, token, logprob in following:
            self.texts.extend(text, token, logprob)

    def result(self) -> WindowText:
        return self.found(max(self._ended, key=lambda text: text.score))
