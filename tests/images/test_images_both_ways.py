"""Images whose tokens see each other: chunks end at them, and never stand beside chunks of text."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backends_here import NAMES
from chat_vision_cases import BANNED, CASES, IMAGE, N_GREEDY, expected
from chat_vision_files import write_chat_vision
from chat_vision_runs import engine_of, loaded_on, prompt_of, submitted
from engines import greedy, run
from image_cases import png
from tahr import LLM, SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.scheduling.scheduler import Scheduler
from tahr.engine.scheduling.work import StepWork
from tahr.engine.sequences.prompt_rows import PromptRows
from tahr.errors import ConfigError, LoadError
from tahr.kv.row_slots import RowSpan
from tahr.models.loader import from_hf
from tahr.models.parts.attention import Attention

CASE = "gemma3"
BACKEND = "cpu" if "cpu" in NAMES else "reference"
PHOTO = png("RGB", 300, 500)
ROWS = PromptRows((RowSpan(4, 9, b""), RowSpan(13, 9, b"")))


@pytest.mark.parametrize(
    ("begin", "n", "chunk"),
    [
        *((0, 3, (3, False)), (0, 4, (4, False)), (0, 30, (4, False)), (4, 1, (9, True)), (4, 30, (9, True))),
        *((8, 30, (5, True)), (13, 30, (9, True)), (21, 1, (1, True)), (22, 30, (30, False))),
    ],
)
def test_where_chunks_end(begin: int, n: int, chunk: tuple[int, bool]) -> None:
    assert ROWS.chunk(begin, n) == chunk


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[StepWork]]:
    """All steps that are scheduled."""
    made: list[StepWork] = []
    schedule = Scheduler.schedule

    def kept(self: Scheduler) -> StepWork:
        work = schedule(self)
        if work:
            made.append(work)
        return work

    monkeypatch.setattr(Scheduler, "schedule", kept)
    yield made


def check(work: StepWork) -> bool:
    """Whether a step has images, each whole, and then no other chunks."""
    images = 0
    for item in work:
        spans = list(item.sequence.rows.within(item.begin, item.begin + item.n_tokens))
        if not spans:
            continue
        (span,) = spans
        assert item.begin >= span.begin and item.begin + item.n_tokens == span.end
        images += 1
    assert not images or images + work.n_tokens.count(1) >= len(work)
    return images > 0


@pytest.mark.parametrize("options", [{}, {"prefill_chunk_size": 4}, {"prefill_chunk_size": 12}, {"spec_ngram": True}])
def test_steps_of_images(options: dict[str, object], steps: list[StepWork]) -> None:
    """Those that decode go on in them, unless they have guesses; all come to their ends."""
    config = loaded_on(CASE, BACKEND).config
    engine = engine_of(CASE, BACKEND, **options)
    if engine.speculator:
        engine.speculator.adapts = False
    first = submitted(engine, CASE, "none", config, greedy(60))
    for _ in range(12):
        engine.step()
    asked = [submitted(engine, CASE, prompt, config, greedy(12)) for prompt in ("three", "between", "none", "last")]
    run(engine, first, *asked)
    with_images = [work for work in steps if check(work)]
    assert with_images
    if not options:
        assert any(1 in work.n_tokens for work in with_images)


@pytest.mark.parametrize("page_size", [1, 4])
def test_the_rest_of_an_image_does_not_decode(page_size: int, steps: list[StepWork]) -> None:
    """However few tokens are left behind a hit of the prefix cache, beside guesses of others."""
    config = loaded_on(CASE, BACKEND).config
    engine = engine_of(CASE, BACKEND, spec_ngram=True, spec_tokens=64, page_size=page_size)
    assert engine.speculator
    engine.speculator.adapts = False
    asked = ("three", "between", "last", "first")
    wanted = [run(engine, submitted(engine, CASE, prompt, config, greedy(12))) for prompt in asked]
    others = [submitted(engine, CASE, "none", config, greedy(60)) for _ in range(2)]
    for _ in range(12):
        engine.step()
    again = [submitted(engine, CASE, prompt, config, greedy(12)) for prompt in asked]
    found = run(engine, *others, *again)[2:]
    assert found == [text for (text,) in wanted]
    assert any(check(work) for work in steps)
    assert any(seq.result.stats.n_cached_tokens > 0 for seq in again)


def test_an_image_whose_client_leaves_holds_up_no_other() -> None:
    config = loaded_on(CASE, BACKEND).config
    engine = engine_of(CASE, BACKEND)
    scheduler = engine.scheduler
    image = submitted(engine, CASE, "three", config, greedy(12))
    while image not in scheduler.running:
        engine.step()
    scheduler._image_first = image  # as a step with guesses of others leaves it
    engine.abort(image)
    assert scheduler._image_first is None


def logits(engine: Engine, prompt: str) -> np.ndarray:
    tokens, rows = prompt_of(CASE, prompt, loaded_on(CASE, BACKEND).config)
    found: list[np.ndarray] = []
    engine.submit_rows(tokens, lambda made: found.append(made.copy()), first_row=0, rows=rows)
    while engine.busy:
        engine.step()
    return np.concatenate(found)


@pytest.mark.parametrize("prompt", ["first", "last", "between", "three"])
def test_tokens_that_see_back_alone_give_other_logits(prompt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attention, "spec_in", lambda self, step: self.spec)
    assert np.abs(logits(engine_of(CASE, BACKEND), prompt) - expected(CASE)[f"logits_{prompt}"]).max() > 0.1


def test_texts_beside_images_are_those_of_the_text_model() -> None:
    engine = engine_of(CASE, BACKEND)
    config = loaded_on(CASE, BACKEND).config
    params = greedy(N_GREEDY, banned_tokens=BANNED)
    asked = [submitted(engine, CASE, prompt, config, params) for prompt in ("none", "three")]
    run(engine, *asked)
    assert asked[0].tokens[-N_GREEDY:] == list(expected(CASE)["greedy_none"])


# ---- prompts and files ----------------------------------------------------------------------------------------------


def test_ends_of_lines_around_images_join_those_of_the_text(tmp_path: Path) -> None:
    """As in transformers, which puts them into the text before it becomes tokens."""
    llm = LLM(write_chat_vision(tmp_path, CASE), context_size=256, page_size=8)
    shown = {"role": "user", "content": [{"type": "text", "text": "cat"}, {"type": "image", "image": PHOTO}]}
    text = llm.encode_chat([shown])
    at = text.index(IMAGE)
    assert text[at : at + 9] == [IMAGE] * 9 and text.count(IMAGE) == 9
    around = llm.tokenizer.encode("cat\n\n<start_of_image><image_soft_token><end_of_image>\n\n", add_special=False)
    alone = around.index(IMAGE)
    assert text[at - alone : at] == around[:alone]
    assert text[at + 9 : at + 9 + len(around) - alone - 1] == around[alone + 1 :]


def test_probabilities_of_prompts_with_larger_images_are_refused() -> None:
    engine = engine_of(CASE, BACKEND)
    engine.scheduler.limits = replace(engine.scheduler.limits, n_row_tokens=8)
    with pytest.raises(ConfigError, match="leave prompt_logprobs out"):
        submitted(engine, CASE, "three", loaded_on(CASE, BACKEND).config, SamplingParams(prompt_logprobs=0))
    submitted(engine, CASE, "three", loaded_on(CASE, BACKEND).config, SamplingParams())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"mm_tokens_per_image": 8}, "mm_tokens_per_image"),
        ({"mm_tokens_per_image": 16}, "mm_tokens_per_image"),
        ({"mm_tokens_per_image": 0}, "mm_tokens_per_image"),
        ({"mm_tokens_per_image": 2**31}, "mm_tokens_per_image"),
        ({"mm_tokens_per_image": 36}, "window"),
        ({"image_token_index": 96}, "image_token_index"),
        ({"image_token_index": -1}, "image_token_index"),
        *(({"vision_config": {name: n}}, name) for n in (0, 2**31) for name in (
            "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "image_size", "patch_size"
        )),
        ({"vision_config": {"num_channels": 4}}, "three colours"),
    ],
)  # fmt: skip
def test_configurations_that_fit_no_tower(changes: dict[str, object], sentence: str) -> None:
    config = CASES[CASE] | changes
    config["vision_config"] = CASES[CASE]["vision_config"] | changes.get("vision_config", {})  # type: ignore[operator]
    with pytest.raises(LoadError, match=sentence) as raised:
        from_hf(config, name=CASE)
    assert len(str(raised.value)) < 500
