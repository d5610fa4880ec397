"""Engines that guess, with every kind of proposer."""

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from functools import cache
from pathlib import Path

from drafter_runs import taught_draft
from engines import here, loaded
from late_backend import LateBackend
from tahr.config import EngineConfig
from tahr.engine.engine import Engine
from tahr.engine.scheduling.work import StepWork
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.speculation.proposer import DraftRequest
from tahr.engine.speculation.speculator import Speculator
from tahr.loading.builder import build_engine
from tahr.loading.speculation import Draft
from tahr.models.decoder import Decoder
from tahr.models.loader.load import load, open_model

KINDS = ["ngram", "itself", "another", "trained", "wrong", "script"]


class Script:
    """Guesses from texts that are known already; `wrong_at` says by its place in the text where it errs."""

    prior = 0.9
    follows = False

    def __init__(self, texts: ListOf[list[int]], wrong_at: ListOf[int] = ()):
        self._texts, self._wrong = texts, frozenset(wrong_at)

    def may_propose(self, seq: Sequence) -> bool:
        return True

    def pass_seconds(self, n_seqs: int) -> float:
        return 0.0

    def first_seconds(self, seq: Sequence) -> float:
        return 0.0

    def computed(self, work: StepWork) -> None:
        pass

    def propose(self, requests: ListOf[DraftRequest]) -> None:
        for seq, n_most in requests:
            n = len(seq.tokens)
            known = next((text for text in self._texts if text[:n] == seq.tokens), [])
            seq.set_drafts([(t + 1) % 512 if n + i in self._wrong else t for i, t in enumerate(known[n : n + n_most])])


class Wrong(Script):
    """Guesses nonsense."""

    def __init__(self) -> None:
        super().__init__([])

    def propose(self, requests: ListOf[DraftRequest]) -> None:
        for seq, n_most in requests:
            seq.set_drafts([3 + (7 * len(seq.tokens) + i) % 500 for i in range(n_most)])


@cache
def rounded(path: Path) -> Decoder:
    """The same model with its weights rounded to four bits: it agrees now and then."""
    return load(open_model([], path.parent / "hf"), here(), quantize="q4_0").decoder


def speculating(
    path: Path,
    kind: str,
    k: int,
    *,
    late: bool = False,
    texts: ListOf[list[int]] = (),
    wrong_at: ListOf[int] = (),
    adapts: bool = False,
    **options: object,
) -> Engine:
    """An engine that always guesses k tokens, unless it `adapts`."""
    settings = {"context_size": 256, "page_size": 8, "spec_tokens": k, "spec_ngram": True, **options}
    device = LateBackend(here()) if late and not here().overlaps else here()
    decoder = loaded(path)[0].decoder
    drafts: dict[str, Callable[[], Draft]] = {
        "itself": lambda: Draft(kind, decoder),
        "another": lambda: Draft(kind, rounded(path)),
        "trained": lambda: taught_draft(path),
    }
    draft = drafts[kind]() if kind in drafts else None
    eng = build_engine(device, decoder, EngineConfig(**settings), draft=draft)[0]  # type: ignore[arg-type]
    assert eng.speculator
    proposers = {"wrong": Wrong(), "script": Script(texts, wrong_at)}
    eng.speculator = Speculator(proposers.get(kind, eng.speculator.proposer), k, adapts)
    return eng
