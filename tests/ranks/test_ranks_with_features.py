"""Virtual ranks beside everything else a request may ask for: the texts of one rank."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends_here import NAMES, backend
from drafter_runs import taught
from late_backend import LateBackend
from lora_files import peft_tensors, write_peft
from tahr import LLM, SamplingParams
from tahr.config import EngineConfig
from tahr.errors import AdapterError, ConfigError
from tahr.grammar import Grammar
from tahr.library.inference.config import InferenceConfig
from tahr.library.inference.session import Session
from tahr.library.inference.snapshot import put_back, take, unpack
from tahr.loading.builder import build_engine, load_engine
from tahr.loading.ranks import refuse_beside_ranks
from tahr.models.loader.load import load, open_model
from tahr.text.tokens.tokenizer import Tokenizer

TEXT = "Once upon a time there was a little dog who had a red ball. " * 2
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=3)
CLOSE = 1e-3
SIZES: dict[str, Any] = {"backend": "cpu", "n_threads": 2, "context_size": 128, "page_size": 8, "kv_dtype": "f32"}


def opened(path: Path, n_ranks: int, **options: Any) -> LLM:
    return LLM(str(path), config=EngineConfig(virtual_ranks=n_ranks, **{**SIZES, **options}))


def all_alike(path: Path, ask: Callable[[LLM], Any], **options: Any) -> Any:
    """What one, two and four ranks say, which is the same."""
    with opened(path, 1, **options) as whole:
        wanted = ask(whole)
    for n_ranks in (2, 4):
        with opened(path, n_ranks, **options) as shared:
            assert ask(shared) == wanted, f"{n_ranks} ranks"
    return wanted


def told(llm: LLM, params: SamplingParams = PARAMS, texts: tuple[str, ...] = (TEXT,)) -> list[str]:
    return [found.text for found in llm.generate(list(texts), params)]


def test_numbers_beside_the_text(stories: Path) -> None:
    """Not the bits of one rank, whose sums have another order; the same whenever it is asked."""
    with opened(stories, 1) as whole, opened(stories, 2) as shared:
        one, two, again = (llm.generate([TEXT], PARAMS)[0] for llm in (whole, shared, shared))
    assert one.text == two.text == again.text
    assert two.logprobs == again.logprobs
    pairs = list(zip(one.logprobs or [], two.logprobs or [], strict=True))
    assert pairs
    assert all(abs(x.logprob - y.logprob) <= CLOSE for x, y in pairs if x.logprob is not None)


def test_adapters(stories: Path, tmp_path: Path) -> None:
    with opened(stories, 1) as whole:
        tensors = peft_tensors(whole.engine.executor.decoder.linears, 4, seed=1, strength=0.3)
    path = write_peft(tmp_path / "mine", tensors, r=4)

    def ask(llm: LLM) -> list[str]:
        llm.add_lora("mine", path)
        return told(llm, replace(PARAMS, lora="mine")) + told(llm)

    mine, plain = all_alike(stories, ask)
    assert mine != plain


def test_an_adapter_of_another_model_is_refused_as_on_one_rank(stories: Path, tmp_path: Path) -> None:
    with opened(stories, 2) as shared:
        linears = shared.engine.executor.decoder.targets
        name, shape = next(iter(linears.items()))
        path = write_peft(
            tmp_path / "half", peft_tensors({name: replace(shape, n_rows=shape.n_rows // 2)}, 4, seed=1), r=4
        )
        with pytest.raises(AdapterError, match=r"changes a 32 x 64 matrix .* but the model.s is 64 x 64"):
            shared.add_lora("half", path)


@pytest.mark.parametrize(
    "changes",
    [
        {"grammar": Grammar("regex", "[0-9]{3,6}")},
        {"n": 3, "temperature": 1.0, "seed": 5},
        {"cache_salt": "a key"},
    ],
    ids=["grammar", "choices", "salt"],
)
def test_parameters(stories: Path, changes: dict[str, Any]) -> None:
    params = replace(PARAMS, **changes)
    all_alike(stories, lambda llm: [told(llm, params) for _ in range(2)])


def test_drafts(stories: Path) -> None:
    params = replace(PARAMS, max_tokens=40)
    guessed = all_alike(stories, lambda llm: told(llm, params), spec_ngram=True)
    assert guessed == all_alike(stories, lambda llm: told(llm, params))


def test_a_draft_model_of_one_rank(stories: Path) -> None:
    """It lies beside the ranks, in the last layers of the same memory."""
    params = replace(PARAMS, max_tokens=30)
    plain = all_alike(stories, lambda llm: told(llm, params))
    assert all_alike(stories, lambda llm: told(llm, params), spec_draft=str(stories), spec_tokens=3) == plain


def test_chunks_of_prompts(stories: Path) -> None:
    whole = all_alike(stories, told)
    assert all_alike(stories, told, prefill_chunk_size=8) == whole


def test_hits_of_the_prefix_cache(stories: Path) -> None:
    def ask(llm: LLM) -> list[tuple[str, int]]:
        replies = [llm.generate([TEXT + end], PARAMS)[0] for end in ("", "", " Then")]
        return [(reply.text, reply.n_cached_tokens) for reply in replies]

    assert all_alike(stories, ask)[1][1] > 0


def test_preempted_requests(stories: Path) -> None:
    def ask(llm: LLM) -> list[str]:
        found = told(llm, replace(PARAMS, max_tokens=60), tuple(f"{TEXT}{i}" for i in range(4)))
        assert llm.stats().preemptions > 0
        return found

    all_alike(stories, ask, kv_bytes=1 << 18)


def test_pages_that_went_to_the_host(stories: Path) -> None:
    """All ranks' rows of a page leave and come back together."""

    def ask(llm: LLM) -> list[str]:
        first = told(llm)
        for i in range(6):
            told(llm, texts=(f"{i} sheep and {i} cows went over the hill. " * 3,))
        again = llm.generate([TEXT], PARAMS)[0]
        assert again.n_cached_tokens > 0
        return [*first, again.text]

    all_alike(stories, ask, kv_bytes=1 << 18, kv_host_size="8m")


def test_vectors(stories: Path) -> None:
    with opened(stories, 1) as whole, opened(stories, 2) as shared:
        np.testing.assert_allclose(whole.embed([TEXT, "a"], "mean"), shared.embed([TEXT, "a"], "mean"), atol=CLOSE)


def test_batches_are_each_alone(stories: Path) -> None:
    texts = (TEXT, "The sea", "A cat and")

    def ask(llm: LLM) -> list[str]:
        together = told(llm, texts=texts)
        assert together == [told(llm, texts=(text,))[0] for text in texts]
        return together

    all_alike(stories, ask, deterministic=True)


def test_two_models_in_turns(stories: Path) -> None:
    with opened(stories, 1) as resident:
        wanted = [told(resident), told(resident, texts=("The sea",))]
    with opened(stories, 2) as one, opened(stories, 4) as two:
        for _ in range(2):
            assert [told(one), told(two, texts=("The sea",))] == wanted


def test_sessions_and_snapshots(stories: Path) -> None:
    """In one piece, after going back, and from a snapshot."""
    source = open_model([stories])
    tokenizer = Tokenizer.from_gguf(source.config)
    text = tokenizer.encode(TEXT)
    rows = []
    for n_ranks in (1, 2):
        config = EngineConfig(virtual_ranks=n_ranks, prefix_cache=False, **SIZES)
        session, other = (
            Session(load_engine(source, tokenizer, config, whole_texts=2).engine, "tiny") for _ in range(2)
        )
        rows.append(session.feed(text))
        session.truncate(10)
        rows.append(session.feed(text[10:]))
        session.truncate(20)
        put_back(other, *unpack(take(session, InferenceConfig(), "tiny", "0")))
        rows.append(other.feed(text[20:]))
    for row in rows:
        np.testing.assert_allclose(row, rows[0], atol=CLOSE)


def test_steps_that_overlap(stories: Path) -> None:
    """A step is launched before the one before it is collected, as on a GPU."""
    from engines import greedy, run, submit

    prompts = [[1 + (7 * i + j) % 500 for j in range(5 + 3 * i)] for i in range(6)]
    found = []
    for n_ranks in (1, 2):
        late = LateBackend(backend("cpu"))
        decoder = load(open_model([stories]), late, n_ranks=n_ranks).decoder
        config = EngineConfig(context_size=128, page_size=8, kv_dtype="f32")
        eng = build_engine(late, decoder, config)[0]
        found.append(run(eng, *(submit(eng, prompt, greedy(20)) for prompt in prompts)))
    assert found[0] == found[1]


# ---- refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"quantize": "q8_0"}, {"ram_budget": "1g"}])
def test_what_knows_no_parts_of_matrices_is_refused(stories: Path, options: dict[str, str]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"{name} is set beside virtual_ranks"):
        opened(stories, 2, **options)


def test_a_drafter_that_was_trained_for_one_decoder_is_refused(stories: Path) -> None:
    with pytest.raises(ConfigError, match="a drafter that was trained for the model, which virtual_ranks do not have"):
        opened(stories, 2, spec_draft=str(taught(stories)))


def test_numbers_of_ranks_that_do_not_work_are_refused(stories: Path) -> None:
    with pytest.raises(ConfigError, match=r"3 ranks cannot share this llama model: .* work: 1, 2, 4, 8\."):
        opened(stories, 3)
    for n_ranks in (0, 65):
        with pytest.raises(ConfigError, match="virtual_ranks"):
            EngineConfig(virtual_ranks=n_ranks)


def test_other_backends_are_refused() -> None:
    other = backend("cpu" if "cpu" in NAMES else NAMES[0])

    class Elsewhere(type(other)):  # type: ignore[misc]
        name = "cuda"

    refuse_beside_ranks(EngineConfig(virtual_ranks=2), other)
    refuse_beside_ranks(EngineConfig(), Elsewhere())
    with pytest.raises(ConfigError, match="virtual_ranks is there to check results, and not on the cuda backend"):
        refuse_beside_ranks(EngineConfig(virtual_ranks=2), Elsewhere())
