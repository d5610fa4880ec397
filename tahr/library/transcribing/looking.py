"""How the tokens of a text look at their window: a pass over a text that is known."""

from collections.abc import Sequence

import numpy as np

from tahr.backends.api import Floats
from tahr.engine.engine import Engine
from tahr.engine.sequences.prompt_rows import PromptRows
from tahr.executor.output import Output
from tahr.executor.stored_keys import stored_keys
from tahr.models.config.record import ModelConfig
from tahr.speech.decoding.tokens import SpeechTokens
from tahr.speech.decoding.wanted import LookAt
from tahr.speech.words.looks import Looks

N_PAGES = 16  # pages whose keys are copied at once
N_LOGITS = 32  # rows of logits that are in memory at once


class LookedAt:
    """Hidden rows of a `WhisperDecoder`, and keys in memory that they meet."""

    def __init__(self, engine: Engine, rows: PromptRows, wanted: LookAt, config: ModelConfig, tokens: SpeechTokens):
        self._engine = engine
        self._config = config
        self._speech = tokens
        self._wanted = wanted
        self._tokens = [*wanted.before, *wanted.text, tokens.end]
        self._hidden: Floats = np.zeros((len(self._tokens), 0), np.float32)
        self._n_there = 0
        self._sequence = engine.submit_rows(self._tokens, self._take, Output.HIDDEN, first_row=0, stays=True, rows=rows)

    def _take(self, rows: Floats) -> None:
        """Rows come chunk by chunk; a sequence that was preempted gives them again."""
        end = self._sequence.computed
        if not self._hidden.shape[1]:
            self._hidden = np.zeros((len(self._tokens), rows.shape[1]), np.float32)
        self._hidden[end - len(rows) : end] = rows
        self._n_there = end

    def advance(self) -> bool:
        if self._sequence.result.error:
            raise self._sequence.result.error
        return self._n_there == len(self._tokens)

    def result(self) -> Looks:
        config = self._config
        width = config.n_heads * config.head_dim
        queries = self._hidden[:, config.width :].reshape(len(self._tokens), config.n_layers, config.n_heads, -1)
        assert config.width + config.n_layers * width == self._hidden.shape[1]
        heads = self._speech.alignment_heads
        return Looks(
            queries=np.stack([queries[:, layer, head] for layer, head in heads]),
            keys=self._keys(heads),
            scale=config.attn_scale,
            probabilities=self._probabilities(),
        )

    def _probabilities(self) -> Floats:
        """How likely each token of the text is after those before it, among all that are text."""
        first = len(self._wanted.before) - 1
        text = np.array(self._wanted.text)
        found = np.zeros(len(text), np.float32)
        for begin in range(0, len(text), N_LOGITS):
            tokens = text[begin : begin + N_LOGITS]
            rows = self._hidden[first + begin : first + begin + len(tokens), : self._config.width]
            logits = self._engine.executor.apply_text_head(rows)[:, : self._speech.end]
            scores = np.exp(logits - logits.max(axis=1, keepdims=True))
            found[begin : begin + len(tokens)] = scores[np.arange(len(tokens)), tokens] / scores.sum(axis=1)
        return found

    def _keys(self, heads: Sequence[tuple[int, int]]) -> Floats:
        """[n_heads, n_rows, head_dim], as the memory has them: queries are turned as they are."""
        engine = self._engine
        assert engine.scheduler.rows, "the sequence holds rows"
        slots = engine.scheduler.rows.slots
        assert slots.pages, "its model looks at inputs"
        (span,) = self._sequence.rows.spans
        (slot,) = slots.slots(span.digest)
        pages = slots.pages.of(slot)
        parts = [self._keys_of(pages[i : i + N_PAGES], heads) for i in range(0, len(pages), N_PAGES)]
        return np.concatenate(parts, axis=1)[:, : slots.pages.n_rows]

    def _keys_of(self, pages: Sequence[int], heads: Sequence[tuple[int, int]]) -> Floats:
        memory = self._engine.executor.facts.memory
        layers = self._engine.executor.pages.read(pages, len(memory.layout.groups) - 1)
        head_dim = self._config.head_dim
        return np.stack([stored_keys(layers[layer][:, head], memory.dtype, head_dim) for layer, head in heads])

    def close(self) -> None:
        self._engine.abort(self._sequence)
