"""Several texts of a window side by side: a beam search."""

import numpy as np

from tahr.engine.engine import Engine
from tahr.engine.sequences.prompt_rows import PromptRows
from tahr.library.transcribing.searches import Decode, TextSearch
from tahr.library.transcribing.texts import Followed, ruled
from tahr.speech.decoding.results import WindowText
from tahr.speech.decoding.rules import Row
from tahr.speech.decoding.tokens import SpeechTokens
from tahr.speech.decoding.wanted import WriteText


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

        def order(each: tuple[int, int, float]) -> tuple[float, int, int]:
            i, token, logprob = each
            return -(live[i].logprob_sum + logprob), i, token

        return sorted(found, key=order)

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
            next_text = self.texts.fork(text) if id(text) in kept else text
            following.append((next_text, token, logprob))
            kept.add(id(text))
        for text in live:
            if id(text) not in kept:
                self.texts.drop(text)
        for text, token, logprob in following:
            self.texts.extend(text, token, logprob)

    def result(self) -> WindowText:
        return self.found(max(self._ended, key=lambda text: text.score))
