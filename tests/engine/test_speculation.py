"""Guesses change no token: the equality suite, with every proposer."""

from collections import Counter
from collections.abc import Sequence as ListOf
from itertools import product
from pathlib import Path

import pytest

from engines import alone, engine, greedy, loaded, page_bytes, run, submit
from late_backend import blank_free_pages
from speculating import KINDS, Script, speculating
from tahr.config import SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.sampling.sampling_state import Sample
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.speculation.proposer import DraftRequest
from tahr.engine.speculation.speculator import Speculator
from tahr.engine.step.drafts import AcceptedTokens, Drafts, verify
from tahr.errors import WeightsChanged
from tahr.executor.output import Output
from tahr.generation.writers import TextWriter
from test_engine import prompts
from tiers import full_but

LENGTHS = [1, 3, 8]
LATE = [False, True]
AT_ONCE = [*product(KINDS, [3], LATE), *product(["script"], LENGTHS, [False])]  # the whole product in the full tier


@pytest.fixture(scope="module")
def wanted(stories: Path) -> list[list[int]]:
    return [alone(stories, prompt) for prompt in prompts(stories)]


@pytest.fixture(scope="module")
def texts(stories: Path, wanted: list[list[int]]) -> list[list[int]]:
    return [prompt + reply for prompt, reply in zip(prompts(stories), wanted, strict=True)]


def counts(eng: Engine) -> tuple[int, int]:
    assert eng.speculator
    return eng.speculator.stats.n_draft_tokens, eng.speculator.stats.n_accepted_tokens


@pytest.mark.parametrize(("kind", "k", "late"), full_but(AT_ONCE, product(KINDS, LENGTHS, LATE)))
def test_equal(stories: Path, wanted: list[list[int]], texts: list[list[int]], kind: str, k: int, late: bool) -> None:
    eng = speculating(stories, kind, k, late=late, texts=texts, wrong_at=range(0, 99, 5))
    for _ in range(2):  # the second time, prefixes are cached
        sequences = []
        for i, prompt in enumerate(prompts(stories)):
            sequences.append(submit(eng, prompt, greedy(speculative=i != 2)))
            eng.step()
            if late:
                blank_free_pages(eng)
        assert run(eng, *sequences) == wanted
    assert not eng.busy and eng.scheduler.pools[0].n_used == 0
    n_proposed, n_accepted = counts(eng)
    assert n_proposed > (0 if kind == "ngram" else 10)
    assert (n_accepted > 0) == (kind != "wrong")


CHUNKS = [1, 64]
POOLED = ["ngram", "another", "trained", "script"]
TINY = [*product([64], POOLED, [True]), *product(CHUNKS, ["script"], [False])]


@pytest.mark.parametrize(("chunk", "kind", "late"), full_but(TINY, product(CHUNKS, POOLED, LATE)))
def test_equal_in_tiny_pools_with_chunked_prompts(
    stories: Path, wanted: list[list[int]], texts: list[list[int]], kind: str, chunk: int, late: bool
) -> None:
    longest = max(map(len, texts))
    n_bytes = page_bytes(stories) * -(-longest // 8) * 2 * (2 if kind in ("another", "trained") else 1)
    options = {"kv_bytes": n_bytes, "context_size": longest, "max_batch_size": 6, "prefill_chunk_size": chunk}
    eng = speculating(stories, kind, 5, late=late, texts=texts, wrong_at=range(0, 99, 7), **options)
    assert run(eng, *(submit(eng, prompt) for prompt in prompts(stories))) == wanted
    assert counts(eng)[0] > 0
    assert eng.snapshot().preemptions > 0 or chunk == 1  # then few have begun when the first is done
    assert eng.scheduler.pools[0].n_used == 0


SAMPLERS: list[dict[str, object]] = [
    {},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.05},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"dry_multiplier": 0.8, "dry_sequence_breakers": ((13,),)},
    {"xtc_probability": 0.5, "typical_p": 0.9},
    {"top_a": 0.1, "eta_cutoff": 0.01, "top_n_sigma": 2.0},
    {"mirostat": 2},
    {"min_tokens": 9, "ignore_eos": False, "logit_bias": {2: 3.0}},
    {"logprobs": 3},
    {"allowed_tokens": tuple(range(3, 512, 2))},
]


GUESSING = ["ngram", "itself", "another", "trained"]
SAMPLED = [*product(SAMPLERS, ["itself"], [True]), *product(SAMPLERS[:1], GUESSING, LATE)]


def sampler_name(value: object) -> str | None:
    return next(iter(value), "plain") if isinstance(value, dict) else None


@pytest.mark.parametrize(
    ("options", "kind", "late"), full_but(SAMPLED, product(SAMPLERS, GUESSING, LATE)), ids=sampler_name
)
def test_sampled_tokens_are_those_without_guesses(
    stories: Path, kind: str, options: dict[str, object], late: bool
) -> None:
    params = SamplingParams(**{"temperature": 0.8, "max_tokens": 24, "ignore_eos": True, "seed": 5, "n": 2, **options})  # type: ignore[arg-type]
    told = []
    for eng in (engine(stories), speculating(stories, kind, 4, late=late)):
        sequences = [submit(eng, prompt, params) for prompt in prompts(stories)[:3]]
        everyone = [each for first in sequences for each in (first, *first.queueing.forks)]
        run(eng, *everyone)
        told.append([(seq.tokens, seq.result.logprobs, seq.result.finish_reason) for seq in everyone])
    assert told[0] == told[1]
    assert (counts(eng)[0] > 0) == (options != {"mirostat": 2} and (kind != "ngram" or counts(eng)[0] > 0))


@pytest.mark.parametrize("k", LENGTHS)
def test_a_perfect_draft_saves_as_many_steps_as_it_can(stories: Path, k: int) -> None:
    eng = speculating(stories, "itself", k)
    prompt, n_new = prompts(stories)[0], 60
    seq = submit(eng, prompt, greedy(n_new))
    run(eng, seq)
    n_proposed, n_accepted = counts(eng)
    assert n_accepted == n_proposed
    assert eng.stats.steps <= n_new / (k + 1) + 1 + 1  # and the prefill


@pytest.mark.parametrize("late", [False, True])
def test_sequences_that_speculate_share_steps(stories: Path, late: bool) -> None:
    """Where steps overlap too: sequences that took turns would need twice as many."""
    eng, sequences = speculating(stories, "itself", 4, late=late), []
    for prompt in prompts(stories)[:4]:
        sequences.append(submit(eng, prompt, greedy(50)))
        eng.step()
    run(eng, *sequences)
    assert eng.stats.steps <= 50 / 5 + 1 + len(sequences)  # and the prefills


def test_what_it_takes_to_record_a_plan_is_not_learned(stories: Path) -> None:
    eng = speculating(stories, "ngram", 4, adapts=True)
    assert eng.speculator
    seq, measured = submit(eng, prompts(stories)[0], greedy(8)), []
    recorded = [0]
    while not seq.done:
        eng.step()
        recorded.append(eng.steps.sizes.n_first_runs)
        measured.append(eng.speculator.costs.seconds(1) > 0)
    first = next(i for i, known in enumerate(measured) if known)
    assert recorded[first + 1] == recorded[first], "what is known first was learned from a step that recorded nothing"
    assert recorded[-1] > 0


@pytest.mark.parametrize("kind", ["ngram", "script"])
def test_a_stop_string_amid_accepted_guesses_ends_the_text(stories: Path, texts: list[list[int]], kind: str) -> None:
    tokenizer = loaded(stories)[1]
    reply = texts[0][len(prompts(stories)[0]) :]
    stop = tokenizer.decode(reply)[20:23]
    found = []
    for eng in (engine(stories), speculating(stories, kind, 8, texts=texts)):
        seq = eng.submit(
            ResolvedRequest(prompts(stories)[0], greedy(stop=(stop,)), lambda: TextWriter(tokenizer, (stop,), True))
        )
        said = []
        while not seq.done:
            said += [delta for _, deltas, _ in eng.step() for delta in deltas]
        found.append(("".join(said), seq.tokens, seq.result.finish_reason, seq.result.stats.n_generated_tokens))
        run(eng)  # what is in flight
        assert not eng.busy
    assert found[0] == found[1] and found[0][2] == "stop"


def test_a_proposer_that_fails_turns_speculation_off_and_harms_nobody(
    stories: Path, wanted: list[list[int]], texts: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    eng = speculating(stories, "script", 4, texts=texts)
    assert eng.speculator
    eng.speculator.proposer = Broken(texts)
    assert run(eng, *(submit(eng, prompt) for prompt in prompts(stories))) == wanted
    assert eng.speculator.failed and caplog.text.count("speculation is off from now on") == 1


def test_a_draft_model_whose_file_was_cut_costs_its_guesses_alone(
    stories: Path, wanted: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    eng = speculating(stories, "another", 3)
    monkeypatch.setattr(eng.executor.executed[1], "files", Cut())
    assert run(eng, *(submit(eng, prompt) for prompt in prompts(stories))) == wanted
    assert eng.speculator and eng.speculator.failed


class Cut:
    """Files in place of which zeros were read while a step ran."""

    def check(self, stamp_of: object) -> None:
        pass

    def refuse_cut(self) -> None:
        raise WeightsChanged("The file is shorter than it was.")


class AsTold(Speculator):
    """Guesses as many tokens for each sequence as it is told to."""

    n_now = 0

    def _lengths(self, able: ListOf[Sequence], n_seqs: int) -> list[int]:
        assert all(self._state(seq) for seq in able)
        return [self.n_now] * len(able)


@pytest.mark.parametrize("kind", ["wrong", "itself"])
def test_guesses_that_wait_for_their_step_are_verified_even_if_no_more_are_made(
    stories: Path, wanted: list[list[int]], kind: str
) -> None:
    """A text to embed takes its turn when there are guesses; then the speculator has changed its mind."""
    eng = speculating(stories, kind, 3, late=True)
    assert eng.speculator
    told = eng.speculator = AsTold(eng.speculator.proposer, 3)
    sequences = [submit(eng, prompt) for prompt in prompts(stories)]
    while not all(seq.n_generated for seq in sequences):
        eng.step()
    eng.submit_rows([5, 6, 7], lambda rows: None, Output.HIDDEN)
    told.n_now = 3
    eng.step()
    assert any(seq.ahead.drafts for seq in sequences), "they wait"
    told.n_now = 0
    assert run(eng, *sequences) == wanted
    assert counts(eng)[0] > 0 and eng.scheduler.pools[0].n_used == 0


class Broken(Script):
    """Fails in the middle of its second round."""

    n_rounds = 0

    def propose(self, requests: ListOf[DraftRequest]) -> None:
        super().propose(requests)
        self.n_rounds += 1
        if self.n_rounds == 2:
            raise RuntimeError("the draft model is gone")


def chi_square(path: Path, kind: str, n_seeds: int = 600) -> tuple[float, float]:
    """How far the third token's frequencies with and without guesses are apart, and what one in a thousand exceeds."""
    prompt, counted = loaded(path)[1].encode("Once upon a time. Once upon a"), list[Counter[int]]()
    eng = speculating(path, kind, 3, max_batch_size=64)
    options = {"temperature": 1.2, "top_k": 8, "max_tokens": 4, "ignore_eos": True}
    for first in (0, 10_000):  # other seeds without guesses: only the distribution is the same
        params = [SamplingParams(**options, seed=first + i, speculative=first == 0) for i in range(n_seeds)]  # type: ignore[arg-type]
        counted.append(Counter(reply[2] for reply in run(eng, *(submit(eng, prompt, each) for each in params))))
    assert counts(eng)[0] > n_seeds / 4
    kinds = [token for token, n in (counted[0] + counted[1]).items() if n >= 20]
    apart = sum((counted[0][t] - counted[1][t]) ** 2 / (counted[0][t] + counted[1][t]) for t in kinds)
    n = len(kinds)  # of degrees of freedom; the quantile by Wilson and Hilferty
    return apart, n * (1 - 2 / (9 * n) + 3.09 * (2 / (9 * n)) ** 0.5) ** 3


@pytest.mark.parametrize("kind", full_but(["another", "trained"], GUESSING))
def test_sampled_replies_have_the_distribution_of_the_request(stories: Path, kind: str) -> None:
    """Takes seconds, because it needs 1,200 replies."""
    apart, bound = chi_square(stories, kind)
    assert apart < bound


def test_a_verification_that_takes_every_guess_shows_in_the_distribution(
    stories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_all(sampled: list[Sequence], tokens: list[Sample], drafts: Drafts) -> AcceptedTokens:
        at = 0
        while at < len(sampled):
            guesses = drafts.get(sampled[at].id, ())
            tokens[at : at + len(guesses)] = guesses
            at += 1 + len(guesses)
        return verify(sampled, tokens, drafts)

    monkeypatch.setattr("tahr.engine.engine.verify", take_all)
    apart, bound = chi_square(stories, "ngram")
    assert apart > bound
