"""Encoders through the library: batches, prompts, heads, pairs, lengths, and what is refused."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backends_here
from encoder_cases import make_weights
from encoder_files import MODULES, modules, write_dense, write_encoder, write_json, write_sentence_model
from gguf_maker import safetensors
from model_files import stored_hf
from model_runs import states
from tahr import LLM, AsyncLLM
from tahr.backends.api import StepLimits
from tahr.backends.reference.backend import ReferenceBackend
from tahr.errors import ConfigError, CorruptFile, GenerateError, TahrError, UnsupportedModel
from tahr.executor.plans import hidden_buckets
from tahr.library.embeddings import MAX_QUEUED, EmbeddingOptions
from tahr.models.loader import load, open_model

TEXTS = ["cat", "dog cat dog", "a b c d e f g", "zebra", "cat " * 40]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_sentence_model(tmp_path_factory.mktemp("bert")))


@pytest.fixture(scope="module")
def llm(folder: str) -> LLM:
    return LLM(folder, n_threads=2)


@pytest.fixture(scope="module")
def ranker_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_encoder(tmp_path_factory.mktemp("ranker"), "bert_ranker"))


@pytest.fixture(scope="module")
def ranker(ranker_folder: str) -> LLM:
    return LLM(ranker_folder, n_threads=2)


def test_a_batch_is_each_alone(llm: LLM) -> None:
    alone = np.array([llm.embed(text) for text in TEXTS])
    np.testing.assert_array_equal(llm.embed(TEXTS), alone)
    np.testing.assert_array_equal(llm.embed(TEXTS[::-1] * 3), np.concatenate([alone[::-1]] * 3))
    np.testing.assert_allclose(np.linalg.norm(alone, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("name", backends_here.NAMES)
def test_every_backend_embeds_and_reranks_alike(name: str, folder: str, ranker_folder: str) -> None:
    """A GPU computes in bf16: directions stay, scores nearly."""
    tolerance = 5e-3 if name == "cuda" else 1e-5
    ours, oracle = (LLM(folder, backend=each).embed(TEXTS) for each in (name, "reference"))
    assert (ours * oracle).sum(axis=1).min() > 1 - tolerance
    rankings = [LLM(ranker_folder, backend=each).rerank("cat", TEXTS) for each in (name, "reference")]
    scores = [[each.score for each in sorted(found, key=lambda document: document.index)] for found in rankings]
    assert np.abs(np.subtract(*scores)).max() < tolerance


def test_more_texts_than_are_queued_at_once(llm: LLM) -> None:
    texts = [f"{'cat ' * (i % 7)}dog {i}" for i in range(MAX_QUEUED + 300)]
    vectors = llm.embed(texts)
    np.testing.assert_array_equal(vectors[[0, 511, 700]], llm.embed([texts[i] for i in (0, 511, 700)]))
    assert llm.stats().pages_used == 0


def test_a_text_is_computed_whole(llm: LLM) -> None:
    """The state of the first token depends on the last one, however many texts share the step."""
    long = "cat " * 45
    changed = llm.embed([long + "dog", *TEXTS], "cls")[0]
    assert np.abs(changed - llm.embed(long + "cat", "cls")).max() > 1e-4


def test_prompts_dimensions_and_lengths(llm: LLM) -> None:
    np.testing.assert_array_equal(llm.embed("cat", prompt_name="query"), llm.embed("find cat"))
    cut = llm.embed("cat", dimensions=5)
    np.testing.assert_allclose(cut, llm.embed("cat")[:5] / np.linalg.norm(llm.embed("cat")[:5]), atol=1e-6)
    raw = llm.embed("cat", normalize=False)
    np.testing.assert_allclose(raw / np.linalg.norm(raw), llm.embed("cat"), atol=1e-6)
    assert llm.context_size == 48
    for wrong in ({"prompt_name": "poem"}, {"dimensions": 0}, {"dimensions": 49}, {"pooling": "median"}):
        with pytest.raises(ConfigError):
            llm.embed("cat", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="context holds 48"):
        llm.embed("cat " * 47)
    kept = llm.embed("cat " * 1000, truncate=-1)
    np.testing.assert_array_equal(kept, llm.embed("cat " * 46))
    np.testing.assert_array_equal(llm.embed("cat " * 1000, truncate=10), llm.embed("cat " * 8))
    for wrong_length in (0, 2, 49, -2):
        with pytest.raises(ConfigError, match="truncated"):
            llm.embed("cat", truncate=wrong_length)
    assert len(llm.embed("")) == 48  # its opening and closing tokens are a text


def test_an_encoder_does_not_generate(llm: LLM, ranker: LLM, folder: str) -> None:
    for refused in (lambda: llm.generate("cat"), lambda: llm.chat("cat"), lambda: llm.score("cat", "dog")):
        with pytest.raises(ConfigError, match="embeds texts"):
            refused()
    with pytest.raises(ConfigError, match="scores pairs"):
        ranker.generate("cat")
    with pytest.raises(ConfigError, match="nothing to guess"):
        LLM(folder, spec_ngram=True)


def test_pairs(ranker: LLM, llm: LLM) -> None:
    documents = ["dog", "a cat", "dog", "zebra cat"]
    found = ranker.rerank("cat", documents)
    scores = ranker.score_pairs("cat", documents)
    assert [each.score for each in found] == sorted(scores, reverse=True) and scores[0] == scores[2]
    assert all(0 < score < 1 for score in scores)
    assert ranker.rerank("cat", documents, top_n=2) == found[:2]
    assert ranker.score_pairs(["cat", "dog"], ["dog", "cat"])[0] == ranker.score_pairs("cat", "dog")[0]
    assert ranker.score_pairs("cat", "dog") != ranker.score_pairs("dog", "cat")  # the types of tokens differ
    cosines = llm.score_pairs("cat", documents)
    assert cosines[0] == pytest.approx(float(llm.embed("find cat") @ llm.embed("read dog")), abs=1e-6)
    for query, several, options in (("cat", ["dog"], {"top_n": 0}), ("cat", ["dog " * 99], {})):
        with pytest.raises(ConfigError):
            ranker.rerank(query, several, **options)
    assert len(ranker.rerank("cat", ["dog " * 99], truncate=-1)) == 1
    with pytest.raises(ConfigError, match="query alone"):
        ranker.rerank("cat " * 99, ["dog"], truncate=-1)
    with pytest.raises(ConfigError, match="2 first and 3 second"):
        ranker.score_pairs(["a", "b"], ["a", "b", "c"])


def test_a_score_is_the_classifiers(ranker: LLM) -> None:
    logit = math.log(1 / (1 / ranker.score_pairs("cat", "dog")[0] - 1))
    tokens = ranker.inputs.encode_pair(ranker.inputs.encode_first("cat"), "dog")
    n_vocab = ranker.model_config.n_vocab // 2
    cat, dog = (ranker.tokenizer.encode(word, add_special=False)[0] for word in ("cat", "dog"))
    assert tokens == [2, cat, 3, dog + n_vocab, 3 + n_vocab]
    assert ranker._vectors([tokens], EmbeddingOptions(), ())[0, 0] == pytest.approx(logit, abs=1e-4)


def test_dense_layers_follow_pooling(tmp_path: Path) -> None:
    rows = [*MODULES[:2], ("2_Dense", "Dense"), ("3_Dense", "Dense"), ("4_Normalize", "Normalize")]
    folder = write_sentence_model(tmp_path, rows)
    first, second = write_dense(folder / "2_Dense", 48, 32, "Tanh"), write_dense(folder / "3_Dense", 32, 20)
    found = LLM(str(folder), n_threads=1).embed(["cat", "dog cat"], normalize=False)
    write_json(folder / "modules.json", modules(MODULES))
    pooled = LLM(str(folder), n_threads=1).embed(["cat", "dog cat"], normalize=False)
    np.testing.assert_allclose(found, np.tanh(pooled @ first.T) @ second.T, atol=1e-5)


def test_beside_others(llm: LLM, folder: str) -> None:
    """A task that is cancelled frees everything; a small job is not behind all of a large one."""

    async def both() -> tuple[bool, np.ndarray]:
        shared = AsyncLLM(folder, n_threads=2)
        try:
            large = asyncio.create_task(shared.embed(["cat " * 40] * 3000))
            await asyncio.sleep(0.05)
            small = await shared.embed(["dog"])
            was_running = not large.done()
            large.cancel()
            with pytest.raises(asyncio.CancelledError):
                await large
            assert {each.index for each in await shared.rerank("cat", ["dog", "cat"])} == {0, 1}
            assert shared.stats().pages_used == 0
            return was_running, small
        finally:
            await shared.close()

    was_running, small = asyncio.run(both())
    assert was_running
    np.testing.assert_array_equal(small[0], llm.embed("dog"))


@pytest.mark.parametrize("case", ["bert", "bert_ranker"])
def test_a_server_warms_encoders_up_without_generating(case: str, tmp_path: Path) -> None:
    pytest.importorskip("msgspec")
    from tahr.server.models.llm_engine import LlmEngine
    from tahr.server.models.pool import warm_up

    async def warm() -> int:
        llm = AsyncLLM(str(write_encoder(tmp_path, case)), n_threads=1)
        try:
            await warm_up(LlmEngine(llm))
            return llm.stats().steps
        finally:
            await llm.close()

    assert asyncio.run(warm()) == 1


def test_short_texts_have_small_plans() -> None:
    """Where steps are padded to the size of a plan."""
    most = StepLimits(3000, 256, 3000, 8)
    buckets = hidden_buckets(most)
    assert [each.n_tokens for each in buckets] == [93, 187, 375, 750, 1500, 3000] and buckets[-1] == most
    assert all(each.n_rows == each.n_tokens and each.n_seqs == 256 for each in buckets)
    assert hidden_buckets(StepLimits(8, 4, 8, 1)) == [StepLimits(8, 4, 8, 1)]


# ---- hostile files ----------------------------------------------------------------------------------------------


def test_weights_that_are_no_numbers(tmp_path: Path) -> None:
    folder = write_sentence_model(tmp_path)
    arrays = make_weights("bert")
    arrays["encoder.layer.1.output.dense.bias"] = np.full(48, np.nan, np.float32)
    (folder / "model.safetensors").write_bytes(safetensors(stored_hf(arrays)))
    with pytest.raises(GenerateError, match="not finite"):
        LLM(str(folder), n_threads=1).embed("cat")


ODD: list[Any] = [None, True, -1, 0, 10**9, 2**70, 0.5, float("nan"), "x", [], {}, [[]]]


@pytest.mark.parametrize("name", ["max_position_embeddings", "type_vocab_size", "id2label", "num_labels", "hidden_act"])
def test_odd_fields_of_configs(name: str, tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, "bert_ranker")
    plain = json.loads((folder / "config.json").read_text())
    for odd in ODD:
        write_json(folder / "config.json", plain | {name: odd})
        try:
            LLM(str(folder), backend="reference").rerank("cat", ["dog"])
        except TahrError as error:
            assert str(error).endswith(".")


@pytest.mark.parametrize(
    ("file", "content", "error"),
    [
        ("modules.json", modules([("../../etc", "Pooling")]), CorruptFile),
        ("modules.json", modules([("/etc", "Pooling")]), CorruptFile),
        ("modules.json", modules([("1_Pooling", "CNN")]), UnsupportedModel),
        ("modules.json", modules([("", "Transformer")] * 100), UnsupportedModel),
        ("modules.json", modules([("9_Pooling", "Pooling")]), CorruptFile),
        ("modules.json", [1, None, "x"], CorruptFile),
        ("modules.json", {}, CorruptFile),
        ("1_Pooling/config.json", {}, UnsupportedModel),
        ("1_Pooling/config.json", {"pooling_mode_weightedmean_tokens": True}, UnsupportedModel),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, UnsupportedModel),
        ("1_Pooling/config.json", {"pooling_mode": ["mean"]}, UnsupportedModel),
        ("1_Pooling/config.json", {"pooling_mode": "mean", "include_prompt": False}, UnsupportedModel),
        ("sentence_bert_config.json", {"max_seq_length": -3}, CorruptFile),
        ("sentence_bert_config.json", {"max_seq_length": "many"}, CorruptFile),
        ("config_sentence_transformers.json", {"prompts": {"a": 1}}, CorruptFile),
        ("config_sentence_transformers.json", {"prompts": {"a": "x" * 10**6}}, CorruptFile),
        ("config_sentence_transformers.json", {"default_prompt_name": "poem"}, CorruptFile),
    ],
)
def test_odd_sentence_files(file: str, content: Any, error: type[Exception], tmp_path: Path) -> None:
    folder = write_sentence_model(tmp_path)
    write_json(folder / file, content)
    with pytest.raises(error):
        LLM(str(folder), backend="reference")


def test_a_dense_layer_that_does_not_fit(tmp_path: Path) -> None:
    folder = write_sentence_model(tmp_path, [*MODULES[:2], ("2_Dense", "Dense")])
    with pytest.raises(CorruptFile, match="2_Dense"):
        LLM(str(folder), backend="reference")
    write_dense(folder / "2_Dense", 32, 20)
    with pytest.raises(CorruptFile, match="do not fit"):
        LLM(str(folder), backend="reference")


def test_several_labels_are_refused(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, "bert_ranker")
    plain = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", plain | {"id2label": {"0": "no", "1": "yes"}})
    with pytest.raises(UnsupportedModel, match="2 classes"):
        LLM(str(folder), backend="reference")


# ---- decoders that embed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "pooling"), [("qwen3_embedding", "lasttoken"), ("embedding_gemma", "mean_tokens")])
def test_decoders_saved_as_embedding_models(case: str, pooling: str, tmp_path: Path) -> None:
    folder = write_sentence_model(tmp_path, case=case)
    write_json(folder / "1_Pooling" / "config.json", {f"pooling_mode_{pooling}": True})
    llm = LLM(str(folder), n_threads=1)
    tokens = llm.tokenizer.encode("a dog")
    loaded = load(open_model([], folder), ReferenceBackend())
    found = states(loaded, ReferenceBackend(), [tokens])
    wanted = found[-1] if pooling == "lasttoken" else found.mean(axis=0)
    np.testing.assert_allclose(llm.embed("a dog"), wanted / np.linalg.norm(wanted), atol=1e-3)
    with pytest.raises(ConfigError, match="embeds texts"):
        llm.generate("a dog")


@pytest.mark.parametrize("kind", [tuple, iter, lambda texts: (text for text in texts)])
def test_documents_may_come_in_any_order_of_things(llm: LLM, ranker: LLM, kind: Any) -> None:
    for model in (llm, ranker):
        assert model.rerank("cat", kind(TEXTS)) == model.rerank("cat", TEXTS)
        assert len(model.rerank("cat", TEXTS[0])) == 1


def test_one_document_is_one_in_async_code_too(ranker_folder: str, ranker: LLM) -> None:
    async def ask() -> Any:
        async with AsyncLLM(ranker_folder, n_threads=2) as one:
            return await one.rerank("cat", TEXTS[0])

    assert asyncio.run(ask()) == ranker.rerank("cat", TEXTS[0])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m.rerank("cat", None), "text is None"),
        (lambda m: m.rerank(3, ["cat"]), "text is 3"),
        (lambda m: m.rerank("cat", [[1, 2]]), "must be texts"),
        (lambda m: m.embed([["a", "b"]]), "must be a list of token ids"),
        (lambda m: m.embed([[1.5]]), "must be a list of token ids"),
        (lambda m: m.embed("a", pooling=["mean"]), "no pooling"),
    ],
)
def test_what_is_no_text_is_refused_with_a_sentence(llm: LLM, call: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call(llm)
