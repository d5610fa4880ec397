"""`SpeculativeEngine`: replies of the target alone, and snapshots that hold both models."""

import hashlib
from pathlib import Path

import pytest

from tahr import InferenceConfig, InferenceEngine, SamplingParams, SpeculativeEngine
from tahr.errors import ConfigError, ModelFingerprintMismatch, ModelNotFound, SnapshotIncompatible
from tahr.grammar import Grammar
from tahr.library.speculative.speculative_snapshot import DIGEST_BYTES, MAGIC, START, VERSION, SpeculativeText, join

PROMPT = "Once upon a time there was a little girl named Lily. She loved to"


def config(path: Path, **sampler: object) -> InferenceConfig:
    settings = {"temperature": 0.0, "ignore_eos": True, **sampler}
    return InferenceConfig(
        model_path=str(path),
        context_size=256,
        num_threads=1,
        sampler=SamplingParams(**settings),  # type: ignore[arg-type]
    )


def engine(path: Path, k: int = 3, seed: int | None = None, **sampler: object) -> SpeculativeEngine:
    made = SpeculativeEngine(config(path, **sampler), str(path), k, seed)
    made._pair.speculator.adapts = False
    return made


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_replies_are_those_of_the_target_alone(stories: Path, temperature: float) -> None:
    alone = InferenceEngine(config(stories, temperature=temperature, seed=4))
    alone.load_model()
    ours, heard = engine(stories, seed=4, temperature=temperature), list[str]()
    for _ in range(2):
        reply = ours.generate(PROMPT, 40, heard.append)
        assert reply == alone.generate(PROMPT, 40)
    assert "".join(heard) == 2 * reply
    assert ours.stats.n_accepted_tokens == ours.stats.n_draft_tokens > 40  # the draft is the target itself


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_reply_goes_on_where_it_stopped(stories: Path, temperature: float) -> None:
    options: dict[str, object] = {"temperature": temperature, "presence_penalty": 0.5}
    whole = engine(stories, seed=9, **options).generate(PROMPT, 48)
    ours = engine(stories, seed=9, **options)
    first = ours.generate(PROMPT, 20)
    data = ours.snapshot()
    assert first + ours.continue_text(28) == whole
    resumed = SpeculativeEngine.resume(data)
    resumed._pair.speculator.adapts = False
    assert resumed.num_speculative == 3
    assert first + resumed.continue_text(28) == whole
    pair = resumed._pair
    assert pair.engine.snapshot().prefix_tokens_reused >= 32  # nothing of them was computed again, in either model
    assert resumed.stats.n_draft_tokens > 0 and pair.proposer._hashes


@pytest.mark.parametrize("options", [{"mirostat": 2, "mirostat_tau": 2}, {"min_tokens": 30, "ignore_eos": False}])
def test_what_follows_the_whole_reply_goes_on_too(stories: Path, options: dict[str, object]) -> None:
    """Mirostat remembers all samples, and the least number of tokens counts from the prompt on."""
    requested: dict[str, object] = {"temperature": 1.2, **options}
    whole = engine(stories, seed=4, **requested).generate(PROMPT, 40)
    ours = engine(stories, seed=4, **requested)
    first = ours.generate(PROMPT, 25)
    data = ours.snapshot()
    assert first + ours.continue_text(15) == whole
    assert first + SpeculativeEngine.resume(data).continue_text(15) == whole
    assert first == ours.generate(PROMPT, 25), "a new reply begins anew"


def test_each_choice_has_a_writer_of_its_own(stories: Path) -> None:
    ours = engine(stories)
    ours.generate(PROMPT, 1)
    first = ours._submit(SamplingParams(n=3, temperature=1.0, max_tokens=4))
    assert len({id(choice.reply.writer) for choice in (first, *first.queueing.forks)}) == 3


def test_a_reply_whose_listener_failed_is_not_mixed_into_the_next(stories: Path) -> None:
    ours = engine(stories)
    wanted = ours.generate(PROMPT, 20)

    def fail(text: str) -> None:
        raise ValueError(text)

    with pytest.raises(ValueError):
        ours.generate(PROMPT + " run", 20, fail)
    assert ours.generate(PROMPT, 20) == wanted


def test_an_empty_text(stories: Path) -> None:
    ours = engine(stories)
    assert ours.generate("", 5) == "" and ours.generate(PROMPT, 0) == ""
    fresh = SpeculativeEngine.resume(engine(stories).snapshot())
    assert fresh.tokens == [] and fresh.continue_text(3) == ""


def test_bad_snapshots(stories: Path, tmp_path: Path) -> None:
    ours = engine(stories)
    ours.generate(PROMPT, 4)
    data = ours.snapshot()
    damaged = data[:100] + bytes([data[100] ^ 1]) + data[101:]
    for bad in (b"", b"TAHRSNAP" + data[8:], data[:50], data[:-1], damaged, data + b"x", "text"):
        with pytest.raises(SnapshotIncompatible):
            SpeculativeEngine.resume(bad)  # type: ignore[arg-type]
    newer = data[:8] + b"\x09\0\0\0" + data[12:-DIGEST_BYTES]
    with pytest.raises(SnapshotIncompatible, match="version 9"):
        SpeculativeEngine.resume(newer + hashlib.sha256(newer).digest())
    for number in (b"1e999", b"NaN", b"9" * 400):
        odd = join(SpeculativeText(3, 1, "", "", 0.5), b"").replace(b": 0.5", b": " + number)[16:-DIGEST_BYTES]
        odd = START.pack(MAGIC, VERSION, len(odd)) + odd
        with pytest.raises(SnapshotIncompatible, match="mu is no number"):
            SpeculativeEngine.resume(odd + hashlib.sha256(odd).digest())
    other = tmp_path / "other.gguf"
    other.write_bytes(stories.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(ModelFingerprintMismatch):
        SpeculativeEngine.resume(data, draft_path=str(other))


def test_what_is_refused(stories: Path) -> None:
    with pytest.raises(ConfigError, match="spec_tokens"):
        engine(stories, k=0)
    with pytest.raises(ModelNotFound):
        SpeculativeEngine(config(stories), "/nope.gguf")
    with pytest.raises(ConfigError, match="max_tokens"):
        engine(stories).generate(PROMPT, -1)
    for refused in ({"n": 2}, {"grammar": Grammar("regex", "a+")}):
        with pytest.raises(ConfigError, match="LLM with spec_draft"):
            engine(stories, **refused)
