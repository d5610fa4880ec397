"""What happens to rows while requests come and go: caches, forks, drafts, waiting, failing, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drafter_runs import taught_draft
from engines import Tally, greedy, page_bytes
from pseudo_tower import (
    SHORT,
    Part,
    alone,
    prompt_of,
    replies,
    row_engine,
    submit_parts,
)
from tahr.config import SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.sequences.prompt_rows import PromptRows, RowSource
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.sequences.sequence import Sequence
from tahr.errors import ConfigError, GenerateError
from tahr.executor.output import Output
from tahr.executor.protocol import TOWER, StepRequest
from tahr.kv.row_slots import RowSpan

TEXT = list(range(40, 59))
IMAGE: list[Part] = [TEXT[:9], (1, 11), TEXT[9:14]]  # pages of 8: the image begins in the second and ends in the third
OTHER: list[Part] = [TEXT[:9], (2, 11), TEXT[9:14]]  # of the same size, behind the same placeholders


def tower_steps(eng: Engine) -> list[StepRequest]:
    """Steps of the tower from now on."""
    launch = eng.executor.launch
    seen: list[StepRequest] = []

    def noted(step: StepRequest) -> object:
        if step.model == TOWER:
            seen.append(step)
        return launch(step)

    eng.executor.launch = noted  # type: ignore[method-assign]
    return seen


# ---- the prefix cache -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_equal_images_share_pages_and_others_do_not(stories: Path, late: bool) -> None:
    """A hit before, inside and behind an image; rows are computed again only where tokens of theirs are."""
    eng = row_engine(stories, late=late)
    runs = tower_steps(eng)
    asked: list[tuple[list[Part], int, int]] = [
        (IMAGE, 0, 2),  # both parts of the tower
        (OTHER, 8, 2),  # before the image
        ([*IMAGE, TEXT], 24, 0),  # behind it
        ([TEXT[:9], (1, 11), TEXT[3:6]], 16, 0),  # inside: its rows are still there
        ([TEXT[:8], (1, 11), TEXT[9:14]], 8, 0),  # the same image begins elsewhere in its page
    ]
    for parts, n_cached, n_runs in asked:
        before = len(runs)
        seq = submit_parts(eng, parts, SHORT)
        assert replies(eng, seq) == alone(stories, parts)
        assert (seq.result.stats.n_cached_tokens, len(runs) - before) == (n_cached, n_runs)


def test_rows_that_were_dropped_are_computed_again(stories: Path) -> None:
    eng = row_engine(stories, n_slots=12)
    runs = tower_steps(eng)
    for parts in (IMAGE, OTHER, [TEXT[:9], (1, 11), TEXT[3:6]]):  # the last one begins inside the first
        assert replies(eng, submit_parts(eng, parts, SHORT)) == alone(stories, parts)
    rows = eng.scheduler.rows
    assert rows and rows.slots.n_dropped == 2 and len(runs) == 6


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_a_queued_prompt_whose_pages_are_evicted_waits_for_its_rows(stories: Path, late: bool) -> None:
    """When it came it needed no rows, because its image was in the prefix cache."""
    sizes = {"max_batch_size": 1, "kv_bytes": page_bytes(stories) * 9, "context_size": 64}
    eng = row_engine(stories, late=late, **sizes)
    first = submit_parts(eng, IMAGE, SHORT)
    assert replies(eng, first) == alone(stories, IMAGE)
    filler = submit_parts(eng, [TEXT, TEXT[::-1], TEXT[:8]], greedy(16, logprobs=2))
    eng.step()
    later = submit_parts(eng, [*IMAGE, TEXT[:2]], SHORT)
    eng.step()
    assert later in eng.scheduler.queues[Output.LOGITS]
    rows = eng.scheduler.rows
    assert rows
    (span,) = later.rows.spans
    if rows.slots.hold({bytes(16): 64}):  # drops what is cached; its slots may have to wait for a step in flight
        rows.slots.release(bytes(16))
    assert not rows.slots.is_ready(span.digest)
    replies(eng, filler)
    assert replies(eng, later) == alone(stories, [*IMAGE, TEXT[:2]])


# ---- many sequences -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_preempted_sequences_take_their_rows_again(stories: Path, late: bool) -> None:
    """Memory for three texts and a half, rows for one image and a half."""
    sizes = {"kv_bytes": page_bytes(stories) * 14, "context_size": 64, "n_slots": 17}
    longer = greedy(24, logprobs=2)
    prompts = [IMAGE, OTHER, [(3, 8), TEXT[:9]], [TEXT], [TEXT[:4], (1, 11)]]
    eng = row_engine(stories, late=late, prefill_chunk_size=7, **sizes)
    found = replies(eng, *(submit_parts(eng, parts, longer) for parts in prompts))
    assert found == [reply for parts in prompts for reply in alone(stories, parts, longer)]
    assert eng.snapshot().preemptions


@pytest.mark.parametrize("size", [2, 6], ids=["in-turns", "at-once"])
@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_choices_of_a_prompt_with_rows(stories: Path, late: bool, size: int) -> None:
    """Those that find no place compute the end of the prompt themselves, with its rows."""
    params = SamplingParams(temperature=1.0, max_tokens=10, ignore_eos=True, seed=7, n=4, logprobs=1)
    parts: list[Part] = [TEXT[:9], (1, 11)]  # the rows are in the last page, which is not shared
    eng = row_engine(stories, late=late, max_batch_size=size, axes=True)
    found = replies(eng, submit_parts(eng, parts, params, True), submit_parts(eng, OTHER, SHORT, True))
    assert found == [*alone(stories, parts, params, axes=True), *alone(stories, OTHER, axes=True)]


@pytest.mark.parametrize("axes", [False, True], ids=["", "axes"])
@pytest.mark.parametrize("draft", ["ngram", "model", "trained"])
@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_drafts_change_no_text(stories: Path, late: bool, draft: str, axes: bool) -> None:
    """A draft model knows placeholders alone: its guesses are worse, and are verified as all are. A trained one reads
    what the model's layers make of rows."""
    parts: list[Part] = [TEXT[:9], (1, 11), TEXT[:9], TEXT[:5]]
    guesses: dict[str, Any] = {"ngram": {"spec_ngram": True}, "model": {"draft": True}}.get(draft, {})
    guesses = guesses or {"draft": taught_draft(stories)}
    eng = row_engine(stories, late=late, axes=axes, **guesses)
    assert eng.speculator
    eng.speculator.adapts = False
    longer = greedy(80, logprobs=2)  # until a text repeats itself
    found = replies(eng, *(submit_parts(eng, each, longer, axes) for each in (parts, OTHER, [TEXT])))
    wanted = [alone(stories, each, longer, axes=axes)[0] for each in (parts, OTHER, [TEXT])]
    assert found == wanted and eng.snapshot().spec_accepted_tokens


def test_rows_of_the_host_need_no_tower(stories: Path) -> None:
    eng = row_engine(stories, tower=False, prefill_chunk_size=7)
    found = replies(eng, *(submit_parts(eng, parts, SHORT) for parts in (IMAGE, OTHER, [TEXT])))
    assert found == [alone(stories, parts, tower=False)[0] for parts in (IMAGE, OTHER, [TEXT])]
    assert found[0] != alone(stories, IMAGE)[0]


def test_hidden_rows_of_a_prompt_with_rows(stories: Path) -> None:
    """Embeddings, beside replies: alike in a batch and alone."""

    def hidden(eng: Engine, every: list[list[Part]]) -> list[bytes]:
        found: dict[int, list[np.ndarray]] = {i: [] for i in range(len(every))}
        made: list[Sequence] = []
        for i, parts in enumerate(every):
            tokens, rows = prompt_of(parts)
            made.append(eng.submit_rows(tokens, lambda x, i=i: found[i].append(x.copy()), Output.HIDDEN, 0, rows=rows))
        reply = submit_parts(eng, OTHER, SHORT)
        assert replies(eng, *made, reply)[-1] == alone(stories, OTHER)[0]
        return [np.concatenate(each).tobytes() for each in found.values()]

    prompts = [IMAGE, OTHER, [TEXT]]
    together = hidden(row_engine(stories, prefill_chunk_size=7), prompts)
    assert together == [hidden(row_engine(stories), [parts])[0] for parts in prompts]
    assert together[0] != together[1]


# ---- waiting --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
def test_a_long_image_does_not_stop_streams(stories: Path, late: bool) -> None:
    """A text that came before goes on with every step, and one that comes later does not wait either."""
    eng = row_engine(stories, late=late, tower_tokens=64, n_slots=128)
    stream = submit_parts(eng, [TEXT], greedy(40))
    for _ in range(3):
        eng.step()
    images = [submit_parts(eng, [TEXT[:3], (seed, 32)], SHORT) for seed in range(3)]  # each fills the tower's step
    later = submit_parts(eng, [TEXT[:5]], greedy(3))
    before = stream.n_generated
    n_steps = 0
    while not images[-1].n_generated:
        eng.step()
        n_steps += 1
        assert stream.n_generated >= before + n_steps - 1
    assert n_steps >= 6 and later.done  # two parts for each image, one after the other


def test_who_waits_for_rows_counts_as_waiting_and_may_be_cancelled(stories: Path) -> None:
    eng = row_engine(stories, tower_tokens=22)
    gone, kept = (submit_parts(eng, parts, SHORT) for parts in (IMAGE, OTHER))
    eng.step()
    assert eng.snapshot().requests_waiting == 2
    eng.abort(gone)  # while the tower is at work on its image
    assert replies(eng, kept) == alone(stories, OTHER)
    again = submit_parts(eng, IMAGE, SHORT)
    assert replies(eng, again) == alone(stories, IMAGE)
    assert not eng.busy


def test_a_tower_that_fails_takes_only_those_with_it_that_wait_for_it(stories: Path) -> None:
    eng = row_engine(stories)
    launch = eng.executor.launch

    def broken(step: StepRequest) -> object:
        if step.model == TOWER:
            raise RuntimeError("no kernel")
        return launch(step)

    eng.executor.launch = broken  # type: ignore[method-assign]
    lost, text = submit_parts(eng, IMAGE, SHORT), submit_parts(eng, [TEXT], SHORT)
    assert replies(eng, text) == alone(stories, [TEXT])
    assert isinstance(lost.result.error, GenerateError) and "no kernel" in str(lost.result.error)
    eng.executor.launch = launch  # type: ignore[method-assign]
    assert replies(eng, submit_parts(eng, IMAGE, SHORT)) == alone(stories, IMAGE)


def test_rows_are_shared_under_one_salt_only(stories: Path) -> None:
    """Nobody can tell by the time of a reply which images others have sent."""
    eng = row_engine(stories)
    runs = tower_steps(eng)
    for salt, n_runs, n_cached in (("a", 2, 0), ("b", 4, 0), ("a", 4, 24)):
        seq = submit_parts(eng, [*IMAGE, TEXT[:2]], replace(SHORT, cache_salt=salt))
        replies(eng, seq)
        assert (len(runs), seq.result.stats.n_cached_tokens) == (n_runs, n_cached)


# ---- what is refused ------------------------------------------------------------------------------------------


def changed(rows: PromptRows, **values: object) -> PromptRows:
    return replace(rows, **values)  # type: ignore[arg-type]


def refused(eng: Engine, tokens: list[int], rows: PromptRows, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        eng.submit(ResolvedRequest(tokens, SHORT, Tally, rows=rows))
    assert not eng.busy


def test_rows_that_no_step_could_read_are_refused(stories: Path) -> None:
    eng = row_engine(stories, n_slots=16, tower_tokens=24)
    tokens, rows = prompt_of(IMAGE)
    (span,) = rows.spans
    (made,) = rows.sources.values()
    beyond = span._replace(begin=len(tokens) - 10)
    refused(eng, tokens, changed(rows, spans=(beyond,)), "must lie among the 25 tokens")
    refused(eng, tokens, changed(rows, spans=(span, span)), "in order and may not overlap")
    refused(eng, tokens, changed(rows, spans=(RowSpan(9, 11, b"short"),)), "has 16 bytes")
    behind = span._replace(first=1, total=span.rows)
    refused(eng, tokens, changed(rows, spans=(behind,)), "rows that their content does not have")
    refused(eng, tokens, changed(rows, sources={}), "needs the source of its digest")
    refused(eng, tokens, changed(rows, rope_positions=np.zeros((3, 25), np.int32)), "knows one position of a token")

    def with_source(**values: object) -> PromptRows:
        return changed(rows, sources={span.digest: replace(made, **values)})  # type: ignore[arg-type]

    refused(eng, tokens, with_source(values=made.values[:, :5].copy()), "rows have 5 numbers; .* have 12")
    refused(eng, tokens, with_source(values=made.values.astype(np.float64)), "finite numbers in f32")
    refused(eng, tokens, with_source(values=made.values * np.float32(np.nan)), "finite numbers in f32")
    refused(eng, tokens, with_source(outputs=np.arange(3)), "of 22 rows must give 11 rows")
    refused(eng, tokens, with_source(outputs=np.arange(11) + 12), "of 22 rows must give 11 rows")
    refused(eng, tokens, with_source(rope_positions=np.zeros((2, 22), np.int32)), "have the shape")
    refused(eng, *prompt_of([(1, 13), TEXT]), "has 26 rows, but at most 24 are computed")
    refused(eng, *prompt_of([(1, 9), (2, 9)]), "reads 18 rows, but there is memory for 16")
    turning = row_engine(stories, axes=True)
    refused(turning, tokens, changed(rows, rope_positions=np.zeros((3, 9), np.int32)), r"have the shape \(3, 25\)")
    host = row_engine(stories, tower=False)
    refused(host, tokens, rows, "the model reads 11 rows of")


def test_models_and_texts_without_rows_refuse_them(stories: Path) -> None:
    from engines import engine

    tokens, rows = prompt_of(IMAGE)
    refused(engine(stories), tokens, rows, "reads tokens alone")
    with pytest.raises(ConfigError, match="A session's text reads no rows"):
        row_engine(stories).submit_rows(tokens, lambda _: None, stays=True, rows=rows)
    with pytest.raises(ConfigError, match="hold no row of"):
        row_engine(stories, n_slots=0)


def test_the_content_of_a_prompts_rows(stories: Path) -> None:
    _, rows = prompt_of([(1, 4), TEXT[:3], (1, 4), (2, 2)])
    assert sorted(rows.contents(0).values()) == [2, 4]
    assert list(rows.contents(11).values()) == [2]
    assert [span.begin for span in rows.within(3, 8)] == [0, 7]
    assert not PromptRows() and rows
    assert isinstance(rows.sources[rows.spans[0].digest], RowSource)
