"""Requests that are sampled together, as the arrays `Backend.sample` reads."""

from array import array
from collections.abc import Callable, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import replace
from operator import sub

import numpy as np

from tahr.backends.sampling.sample_rows import SAMPLE_ROW, Ints, LogitEdits, SampleRows, Words, joined_edits, words
from tahr.engine.sampling.edit_table import EditTable
from tahr.engine.sampling.sampling_state import SampleRequest
from tahr.errors import GrammarError
from tahr.grammar.masks import Forced, GrammarToken, MaskFiller, MaskJob

UNEDITED = EditTable()


class SampleBatch:
    """Keeps what stays the same while the same requests are sampled step after step."""

    def __init__(
        self,
        requests: ListOf[SampleRequest],
        source: ListOf[int],
        n_vocab: int,
        is_draft: bool = False,
        mask_memory: Callable[[int, int], Words] = words,  # see `Backend.mask_memory`
    ):
        self.requests = list(requests)
        self.source = list(source)
        self._n_prompt = [request.n_prompt for request in requests]
        special = {i: request.sampling for i, request in enumerate(requests) if not request.is_plain}
        self.learners = [i for i, state in special.items() if state.learns]
        self._edited = any(state.processors for state in special.values())
        self._repeats = self._edited and len({id(request.sampling) for request in requests}) < len(requests)
        n_logprobs = [(i, n) for i, state in special.items() if (n := state.n_logprobs) is not None]
        self._masked = [(i, grammar) for i in special if (grammar := requests[i].grammar)]
        self._masks: MaskJob | None = None  # under way
        self.has_masks = bool(self._masked)
        self.rows = SampleRows(
            np.array(source, np.int32),
            np.frombuffer(bytearray().join([request.row for request in requests]), SAMPLE_ROW),
            n_vocab,
            n_logprobs=filled(len(requests), n_logprobs) if n_logprobs and not is_draft else None,
            mask=mask_memory(len(requests), -(-n_vocab // 32)) if self._masked else None,
            masked=np.array([bool(request.grammar) for request in requests]) if self._masked else None,
            slots=np.zeros(len(requests), np.int32),
        )
        self._counters = self.rows.params["counter"].data  # NumPy takes longer to write to a field
        self._slots = self.rows.slots.data
        self._fill_mu()
        self.host_bound: ListOf[int] = ()  # see `Backend.host_samples`

    def holds(self, requests: ListOf[SampleRequest], source: ListOf[int]) -> bool:
        """Whether it was made for these requests; if so, request i takes row `source[i]` from now on."""
        if self.requests != requests:
            return False
        if self.source != source:
            self.source = list(source)
            self.rows.source[:] = source
        return True

    def begin_masks(self, filler: MaskFiller, tokens: ListOf[GrammarToken] = ()) -> list[Forced]:
        """Let grammars take the tokens before, and begin the masks of the next sample; what each token forces."""
        assert self._masks is None and self.rows.mask is not None, "there are masks to fill, and none is being filled"
        self._masks = filler.begin(self._masked, self.rows.mask, tokens)
        return self._masks.forced

    def finish_masks(self) -> Mapping[int, GrammarError]:
        """Wait for the masks; the requests whose grammar cannot go on, and why."""
        masks = self._masks
        self._masks = None
        return masks.wait() if masks else {}

    def next_rows(self, lengths: ListOf[int] | None = None, slots: ListOf[int] | None = None) -> SampleRows:
        """The rows of the next sample: counters, mirostat's mu and edits are those of this moment.

        `lengths` says how many tokens come before the next one in each text: more than are known, where some are being
        sampled. `slots` are the token slots that samples go to.
        """
        rows = self.rows
        if lengths is None:
            lengths = [len(request.tokens) for request in self.requests]
        self._counters[:] = array(self._counters.format, map(sub, lengths, self._n_prompt))
        if slots is not None:
            self._slots[:] = array(self._slots.format, slots)
        if self.learners:
            self._fill_mu()
        if not self._edited:
            return rows
        return replace(rows, edits=self._edits(lengths))

    def _fill_mu(self) -> None:
        for i in self.learners:
            self.rows.params["mirostat_mu"][i] = self.requests[i].sampling.mu

    def _edits(self, lengths: ListOf[int]) -> LogitEdits:
        parts = []
        blank = []
        for request, length in zip(self.requests, lengths, strict=True):
            table = request.edits(length - len(request.tokens)) if request.sampling.processors else UNEDITED
            ids, before, penalty, after = table.columns
            if self._repeats:  # several rows of one request share a table, which the next of them changes
                ids = ids.copy()
                before = before.copy()
                penalty = penalty.copy()
                after = after.copy()
            parts.append((ids, before, penalty, after))
            blank.append(table.blank)
        return joined_edits(parts, np.array(blank))


def filled(n: int, wanted: ListOf[tuple[int, int]]) -> Ints:
    """How many log-probabilities each of n samples wants, by those that want any: -1 for the others."""
    counts = np.full(n, -1, np.int32)
    for i, n_logprobs in wanted:
        counts[i] = n_logprobs
    return counts
