"""Each sampling stage against a hand-worked case, the tokens against their distribution, alone and in a batch."""

import math
from collections.abc import Iterator
from collections.abc import Sequence as ListOf
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from backends_here import NAMES, backend
from tahr.backends.sampling import numpy_sampler
from tahr.backends.sampling.logit_rows import LogitRows
from tahr.backends.sampling.sample_rows import SampleRows
from tahr.backends.sampling.stages import FACTS, STAGES, chain_of, facts_of
from tahr.config import SamplingParams
from tahr.engine.sampling.dry import breaker_finder
from tahr.engine.sampling.edit_table import EditTable
from tahr.engine.sampling.sample_batch import SampleBatch
from tahr.engine.sampling.sampler import Sampler
from tahr.engine.sampling.sampling_state import SampledToken, SampleRequest, SamplingState
from tahr.errors import ConfigError, GenerateError, TahrError
from tahr.executor.sampling import LocalSampling
from tiers import examples

P = np.array([0.1, 0.4, 0.2, 0.3])
LOGITS = np.log(P).astype(np.float32)
Logits = NDArray[np.float32]

current = "reference"


@pytest.fixture(autouse=True, params=NAMES)
def each_backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever is said here of sampling holds for every backend."""
    global current
    current = request.param
    yield
    current = "reference"


def sample(requests: ListOf[SampleRequest], logits: Logits) -> list[SampledToken | TahrError]:
    return Sampler(LocalSampling(backend(current)), logits.shape[1]).sample(requests, backend(current).tensor(logits))


def logprobs_of(row: Logits, token: int, n_top: int) -> SampledToken | TahrError:
    (found,) = Sampler(LocalSampling(backend(current)), len(row)).logprobs_of(row[None], [0], [token], n_top)
    return found


def rows_of(requested: SampleRequest, n_vocab: int) -> SampleRows:
    return SampleBatch([requested], [0], n_vocab).next_rows(None)


def request(tokens: ListOf[int] = (), n_prompt: int = 0, **options: Any) -> SampleRequest:
    return SampleRequest(SamplingState(SamplingParams(**options)), list(tokens), n_prompt)


def picked(answer: SampledToken | TahrError) -> int:
    assert isinstance(answer, SampledToken), answer
    return answer.token


def sample_one(requested: SampleRequest, logits: Logits = LOGITS) -> int:
    return picked(sample([requested], logits[None])[0])


def tokens_of(n: int, logits: Logits = LOGITS, **options: Any) -> list[int]:
    """What one request picks in n steps that all see the same logits."""
    requested = request(**options)
    for _ in range(n):
        requested.tokens.append(sample_one(requested, logits))  # type: ignore[attr-defined]
    return list(requested.tokens)


def left(logits: Logits = LOGITS, tokens: ListOf[int] = (), n_prompt: int = 0, **options: Any) -> dict[int, float]:
    """The tokens that survive the chain, best first, with their probabilities."""
    requested = request(tokens, n_prompt, **options)
    rows = rows_of(requested, len(logits))
    chain = chain_of(rows.params[0])
    (part,) = numpy_sampler.parts(logits[None], rows)
    s = numpy_sampler.joined([numpy_sampler.candidates_of(*part, facts_of(chain), 256)], rows)
    for stage in chain:
        stage.apply(s)
    p = s.weights[0] / s.weights[0].sum()
    return {int(t): round(float(w), 4) for t, w in zip(s.ids[0], p, strict=True) if w > 0}


# ---- stages, by hand --------------------------------------------------------------------------------------------


def test_neutral_keeps_everything() -> None:
    assert left() == {1: 0.4, 3: 0.3, 2: 0.2, 0: 0.1}


def test_top_k() -> None:
    assert left(top_k=2) == {1: 0.5714, 3: 0.4286}


def test_top_p_keeps_the_token_that_crosses_the_line() -> None:
    assert list(left(top_p=0.45)) == [1, 3]
    assert list(left(top_p=0.39)) == [1]


def test_top_p_works_on_what_top_k_left() -> None:
    assert list(left(top_k=3, top_p=0.7)) == [1, 3]  # 4/9 + 3/9 >= 0.7


def test_min_p_is_relative_to_the_best() -> None:
    assert list(left(min_p=0.6)) == [1, 3]


def test_temperature_sharpens() -> None:
    assert left(temperature=0.5) == {1: 0.5333, 3: 0.3, 2: 0.1333, 0: 0.0333}


def test_top_n_sigma_counts_standard_deviations_from_the_best() -> None:
    logits = np.array([3, 2, 0, -1], np.float32)  # mean 1, variance 2.5
    assert list(left(logits, top_n_sigma=0.6)) == [0]
    assert list(left(logits, top_n_sigma=1)) == [0, 1]
    assert list(left(logits, top_n_sigma=2)) == [0, 1, 2]


def test_top_n_sigma_leaves_banned_tokens_out() -> None:
    logits = np.array([3, 2, 0, -1, 50, -9], np.float32)
    assert list(left(logits, top_n_sigma=1, banned_tokens=(4, 5))) == [0, 1]


def test_xtc_leaves_the_least_likely_of_the_likely() -> None:
    assert left(xtc_probability=1.0, xtc_threshold=0.25) == {3: 0.5, 2: 0.3333, 0: 0.1667}
    assert left(xtc_probability=1.0, xtc_threshold=0.15) == {2: 0.6667, 0: 0.3333}


def test_xtc_needs_two_likely_tokens() -> None:
    assert left(xtc_probability=1.0, xtc_threshold=0.35) == left()


def test_xtc_fires_now_and_then() -> None:
    n_best = tokens_of(2000, seed=1, xtc_probability=0.5, xtc_threshold=0.25).count(1)
    assert abs(n_best - 400) < 4 * math.sqrt(2000 * 0.2 * 0.8)  # 0.4 when it does not fire, never when it does


def test_typical_keeps_the_expected_surprise() -> None:
    # Entropy 1.28; surprises 0.92, 1.20, 1.61, 2.30 of the tokens 1, 3, 2, 0: nearest are 3, then 2, then 1.
    assert left(typical_p=0.29) == {3: 1.0}
    assert left(typical_p=0.45) == {3: 0.6, 2: 0.4}
    assert list(left(typical_p=0.55)) == [1, 3, 2]


def test_top_a_is_relative_to_the_square_of_the_best() -> None:
    assert list(left(top_a=1.0)) == [1, 3, 2]  # 0.16
    assert list(left(top_a=0.5)) == [1, 3, 2, 0]  # 0.08


def test_eta_lets_more_in_where_entropy_is_high() -> None:
    assert list(left(eta_cutoff=0.25)) == [1, 3, 2]  # 0.5 * exp(-1.28) = 0.139
    assert list(left(eta_cutoff=0.1)) == [1, 3, 2, 0]  # 0.316 * exp(-1.28) = 0.088


def test_mirostat_cuts_by_surprise_and_learns() -> None:
    assert list(left(mirostat=2, mirostat_tau=1.0, top_k=1)) == [1, 3]  # mu 2 bits: 0.25; top_k is out of play
    requested = request(mirostat=2, mirostat_tau=1.0, seed=0)
    probability = {1: 4 / 7, 3: 3 / 7}[sample_one(requested)]
    assert requested.sampling.mu == pytest.approx(2 - 0.1 * (-math.log2(probability) - 1))


def test_mirostat_always_keeps_the_best() -> None:
    requested = request(mirostat=2)
    requested.sampling.mu = -5000.0
    assert sample_one(requested) == 1


def test_stages_run_in_their_order() -> None:
    names = [stage.parameter for stage in STAGES]
    order = "top_n_sigma xtc_probability typical_p top_a eta_cutoff temperature top_k min_p top_p"
    assert names == order.split()
    # XTC before temperature: at temperature 9 nothing would be above a quarter.
    assert list(left(xtc_probability=1.0, xtc_threshold=0.25, temperature=9.0)) == [3, 2, 0]
    # min-p after temperature: flattened, all are near the best.
    assert list(left(min_p=0.6, temperature=9.0)) == [1, 3, 2, 0]


def test_ties_go_to_the_lower_index() -> None:
    assert list(left(np.zeros(9, np.float32), top_k=3)) == [0, 1, 2]
    assert list(left(np.array([-0.0, 0.0, -0.0, -1], np.float32), top_k=2)) == [0, 1]


# ---- logit processors, by hand -----------------------------------------------------------------------------------


def edited(logits: ListOf[float], tokens: ListOf[int] = (), n_prompt: int = 0, **options: Any) -> list[float]:
    requested = request(tokens, n_prompt, **options)
    ((_, held),) = numpy_sampler.parts(np.array([logits], np.float32), rows_of(requested, len(logits)))
    return [round(float(x), 4) for x in held.logits[0]]


def test_repetition_penalty_counts_a_token_once() -> None:
    logits = [4.0, -4.0, 1.0, 1.0]
    options = {"repetition_penalty": 2.0}
    assert edited(logits, [3, 0, 0, 1], repeat_last_n=3, **options) == [2.0, -8.0, 1.0, 1.0]
    assert edited(logits, [3, 0, 0, 1], repeat_last_n=-1, **options) == [2.0, -8.0, 1.0, 0.5]
    assert edited(logits, [3, 0, 0, 1], repeat_last_n=0, **options) == logits


def test_presence_and_frequency_look_at_generated_tokens() -> None:
    penalties = {"presence_penalty": 0.5, "frequency_penalty": 0.25}
    assert edited([4.0, 1.0, 1.0], [2, 2, 0, 0, 0, 1], 2, **penalties) == [2.75, 0.25, 1.0]


def test_bias_adds_and_bans_hold_against_it() -> None:
    assert edited([1.0, 2.0, 3.0], logit_bias={0: 100, 2: -0.5}) == [101.0, 2.0, 2.5]
    assert edited([1.0, 2.0, 3.0], logit_bias={0: 100}, banned_tokens=[0]) == [-math.inf, 2.0, 3.0]
    assert edited([1.0, 2.0, 3.0], allowed_tokens=[1]) == [-math.inf, 2.0, -math.inf]


def test_no_end_before_min_tokens() -> None:
    logits = np.array([[1, 2, 3, 4]], np.float32)
    sampling = SamplingState(SamplingParams(temperature=0, min_tokens=2, stop_token_ids=(2,)), eos_tokens=[3])
    made = [picked(sample([SampleRequest(sampling, [0] * (5 + n), 5)], logits)[0]) for n in range(4)]
    assert made == [1, 1, 3, 3]


def test_dry_grows_with_the_length_of_the_repeat() -> None:
    options = {"dry_multiplier": 1.5, "dry_base": 2.0, "dry_sequence_breakers": ()}
    zeros = [0.0] * 5
    assert edited(zeros, [2, 3, 1, 2], **options) == zeros, "one token is no repeat yet"
    assert edited(zeros, [1, 2, 3, 1, 2], **options) == [0, 0, 0, -1.5, 0]
    assert edited(zeros, [0, 1, 2, 3, 0, 1, 2], **options) == [0, 0, 0, -3.0, 0]
    assert edited(zeros, [0, 1, 2, 3, 1, 2, 4, 0, 1, 2], **options) == [0, 0, 0, -3.0, -1.5]
    assert edited(zeros, [0, 1, 2, 3, 0, 1, 2], dry_penalty_last_n=6, **options) == [0, 0, 0, -1.5, 0]


def test_dry_penalties_have_a_ceiling() -> None:
    options = {"dry_multiplier": 100.0, "dry_base": 100.0, "dry_sequence_breakers": ()}
    assert edited([0.0, 0.0], [0] * 3000, **options) == [-1e4, 0]


def test_dry_stops_at_breakers() -> None:
    tokens = [0, 1, 2, 3, 0, 1, 2]
    options = {"dry_multiplier": 1.0, "dry_base": 2.0}

    def penalty(*breakers: tuple[int, ...]) -> float:
        return -edited([0.0] * 5, tokens, dry_sequence_breakers=breakers, **options)[3]

    assert [penalty(), penalty((0,)), penalty((1,)), penalty((2,))] == [2, 1, 0, 0]
    assert [penalty((3, 0)), penalty((0, 1)), penalty((4, 0))] == [1, 0, 2]
    assert penalty((3,)) == 0, "a breaker itself is free to come again"


def test_dry_breakers_are_found_in_the_vocabulary() -> None:
    find = breaker_finder([(0, b"a"), (1, b".\n"), (2, b"\n\n"), (3, b":")], lambda text: [0, 3])
    assert find("\n") == [(1,), (2,)]
    assert find("Anna:") == [(0, 3)], "what no token contains is taken as its encoding"
    params = SamplingParams(dry_multiplier=1.0, dry_sequence_breakers=("\n",))
    with pytest.raises(ConfigError, match="dry_sequence_breakers"):
        SamplingState(params)
    repeat = SampleRequest(SamplingState(params.over(SamplingParams(temperature=0)), resolve=find), [0, 3, 2, 0, 3], 5)
    assert picked(sample([repeat], np.array([[0, 1, 9, 2]], np.float32))[0]) == 2, "the next token is a breaker"


def test_edits_follow_a_text_that_grows_and_goes_back() -> None:
    """What is kept up to date token by token is what a fresh start gives."""
    random = np.random.default_rng(2)
    options: dict[str, Any] = {
        "repetition_penalty": 1.3, "repeat_last_n": 7, "presence_penalty": 0.5, "frequency_penalty": 0.25,
        "dry_multiplier": 0.8, "dry_sequence_breakers": (), "min_tokens": 12, "stop_token_ids": (3,),
        "logit_bias": {1: 2.0, 3: 1.5}, "banned_tokens": (2,),
    }  # fmt: skip
    for more in ({}, {"repeat_last_n": -1}, {"allowed_tokens": (0, 1, 3, 4)}):
        requested = request([1, 2, 3, 4], 4, **{**options, **more})
        tokens: list[int] = requested.tokens  # type: ignore[assignment]
        for _ in range(60):
            if random.random() < 0.1:
                del tokens[max(4, len(tokens) - 3) :]
            tokens.extend(random.integers(0, 6, int(random.integers(0, 3))).tolist())
            fresh = request(tokens, 4, **{**options, **more})
            np.testing.assert_array_equal(as_dense(requested.edits()), as_dense(fresh.edits()))


def as_dense(table: EditTable) -> NDArray[np.float32]:
    """before, penalty and after of the first tokens."""
    dense = np.tile(np.array([[0], [1], [0]], np.float32), 8)
    ids, *columns = table.columns
    dense[:, ids] = columns
    return dense


# ---- exactness -----------------------------------------------------------------------------------------------------

OFF: dict[str, Any] = {
    "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "top_n_sigma": 0.0, "top_a": 0.0, "eta_cutoff": 0.0,
    "xtc_probability": 0.0, "dry_multiplier": 0.0, "mirostat": 0, "repetition_penalty": 1.0, "repeat_last_n": 64,
    "presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": {}, "banned_tokens": (), "allowed_tokens": (),
    "min_tokens": 0,
}  # fmt: skip


@pytest.mark.parametrize("parameter", OFF)
def test_off_is_the_same_as_without(parameter: str) -> None:
    logits = np.random.default_rng(3).standard_normal(200).astype(np.float32)
    requested, plain = request(seed=4, **{parameter: OFF[parameter]}), request(seed=4)
    assert requested.sampling.row == plain.sampling.row and not requested.sampling.processors
    assert tokens_of(40, logits, seed=4, **{parameter: OFF[parameter]}) == tokens_of(40, logits, seed=4)


def random_options(random: np.random.Generator) -> dict[str, Any]:
    """Parameters as a wild user would set them: each parameter on one time in three."""
    settings: dict[str, Any] = {
        "temperature": random.choice([0.0, 0.3, 0.8, 1.0, 1.7]), "top_k": int(random.integers(1, 90)),
        "top_p": random.uniform(0.1, 1), "min_p": random.uniform(0, 0.5), "typical_p": random.uniform(0.2, 1),
        "top_n_sigma": random.uniform(0.1, 4), "top_a": random.uniform(0, 1), "eta_cutoff": random.uniform(0, 0.01),
        "xtc_probability": 0.7, "xtc_threshold": random.uniform(0.001, 0.2), "mirostat": 2, "mirostat_tau": 3.0,
        "repetition_penalty": 1.3, "repeat_last_n": 20, "presence_penalty": 0.3, "frequency_penalty": 0.4,
        "dry_multiplier": 0.9, "logit_bias": {3: 2.5}, "banned_tokens": (1, 2), "allowed_tokens": tuple(range(150)),
    }  # fmt: skip
    chosen = {name: value for name, value in settings.items() if random.random() < 0.33}
    return {**chosen, "seed": int(random.integers(2**60)), "dry_sequence_breakers": ((5,),)}


def model_like(random: np.random.Generator, n: int, n_vocab: int) -> Logits:
    logits: Logits = random.standard_normal((n, n_vocab)).astype(np.float32) * 2
    logits[:, :40] += random.uniform(0, 12, (n, 40)).astype(np.float32)
    return logits


@pytest.mark.parametrize("n_vocab", [50, 3000])
def test_short_lists_change_nothing(n_vocab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(n_vocab)
    for logits in model_like(random, examples(150), n_vocab):
        options = random_options(random) | {"allowed_tokens": ()}
        tokens = random.integers(0, min(n_vocab, 60), 50).tolist()
        made = []
        for widths in [(), (4, 20), (64,)]:
            monkeypatch.setattr(numpy_sampler, "WIDTHS", widths)
            made.append(sample_one(request(tokens, 20, **options), logits))
        assert made[0] == made[1] == made[2], options


@pytest.mark.parametrize("n_vocab", [200, 2500])
def test_neighbours_change_nothing(n_vocab: int) -> None:
    """Random mixes, several steps, state and all: each request gets in a batch what it gets alone."""
    random = np.random.default_rng(n_vocab)
    options = [random_options(random) for _ in range(60)]
    prompts = [random.integers(0, 60, 30).tolist() for _ in options]
    crowd, alone = ([request(p, 30, **o) for p, o in zip(prompts, options, strict=True)] for _ in range(2))
    for _ in range(4):
        logits = model_like(random, len(options), n_vocab)
        before = logits.copy()
        together = [picked(answer) for answer in sample(crowd, logits)]
        assert together == [sample_one(requested, row) for requested, row in zip(alone, logits, strict=True)]
        np.testing.assert_array_equal(logits, before, "the engine's logits must stay as they are")
        for requested, token in zip([*crowd, *alone], together * 2, strict=True):
            requested.tokens.append(token)  # type: ignore[attr-defined]
    assert [requested.sampling.mu for requested in crowd] == [requested.sampling.mu for requested in alone]


def test_whole_row_facts_do_not_depend_on_neighbours() -> None:
    logits = model_like(np.random.default_rng(8), 5, 40000)
    temperature = np.array([0.3, 1.0, 0.7, 1.0, 2.0])
    for name, measure in FACTS.items():
        many = LogitRows(5, 40000)
        many.load(logits)
        many.settle()
        together = measure(many, temperature)
        for i in range(5):
            one = LogitRows(1, 40000)
            one.load(logits[i : i + 1])
            one.settle()
            assert measure(one, temperature[i : i + 1])[0] == together[i], name


def test_extreme_temperatures() -> None:
    assert set(tokens_of(30, seed=0, temperature=1e-300)) == {1}
    assert set(tokens_of(30, seed=0, temperature=1e-300, top_p=0.9)) == {1}
    assert set(tokens_of(300, seed=0, temperature=100)) == {0, 1, 2, 3}


# ---- distributions -------------------------------------------------------------------------------------------------

WIDE = np.random.default_rng(6).permutation(np.arange(50.0, 200.0))  # more tokens than one lane holds
DISTRIBUTIONS: list[tuple[Any, dict[str, Any], Any]] = [
    (P, {}, P),
    (P, {"temperature": 0.5}, P**2),
    (P, {"top_k": 3}, P * [0, 1, 1, 1]),
    (P, {"top_p": 0.65}, P * [0, 1, 0, 1]),
    (P, {"typical_p": 0.45}, P * [0, 0, 1, 1]),
    (P, {"xtc_probability": 1.0, "xtc_threshold": 0.25}, P * [1, 0, 1, 1]),
    (P, {"mirostat": 2, "mirostat_tau": 10.0, "mirostat_eta": 1e-9}, P),
    (WIDE, {}, WIDE),
    (WIDE, {"temperature": 2.0}, np.sqrt(WIDE)),
    (WIDE, {"min_p": 0.5}, WIDE * (WIDE >= 99.5)),
]


def assert_follows(made: list[int], weights: NDArray[np.float64]) -> None:
    """Chi-square: off by more than randomness explains one time in ten thousand."""
    counts, expected = np.bincount(made, minlength=len(weights)), weights / weights.sum() * len(made)
    assert counts[weights == 0].sum() == 0
    counts, expected = counts[weights > 0], expected[weights > 0]
    freedom = len(counts) - 1
    chi_square = ((counts - expected) ** 2 / expected).sum()
    # Wilson and Hilferty: the cube root of chi-square over its mean is nearly normal.
    z = ((chi_square / freedom) ** (1 / 3) - 1 + 2 / (9 * freedom)) / math.sqrt(2 / (9 * freedom))
    assert z < 3.72


@pytest.mark.parametrize(("p", "options", "expected"), DISTRIBUTIONS)
def test_tokens_follow_the_distribution(p: Any, options: dict[str, Any], expected: Any) -> None:
    logits = np.log(p / p.sum()).astype(np.float32)
    assert_follows(tokens_of(examples(600), logits, seed=5, **options), expected)
    many = [request(seed=seed, **options) for seed in range(examples(3000))]
    assert_follows([picked(answer) for answer in sample(many, np.tile(logits, (len(many), 1)))], expected)


# ---- greedy, seeds, logprobs ---------------------------------------------------------------------------------------


def test_greedy_takes_the_first_of_equals() -> None:
    logits = np.array([1, 3, 3], np.float32)
    assert tokens_of(20, logits, temperature=0) == [1] * 20
    assert tokens_of(20, logits, temperature=0, logit_bias={0: 2}) == [0] * 20


def test_same_seed_same_tokens() -> None:
    runs = [tokens_of(50, seed=seed) for seed in (11, 11, 12)]
    assert runs[0] == runs[1] != runs[2]
    assert tokens_of(50) != tokens_of(50), "without a seed, each request has its own"


def test_a_state_made_anew_goes_on_the_same() -> None:
    made = tokens_of(20, seed=9)
    assert sample_one(request(made[:13], seed=9)) == made[13]


def test_forks_differ_and_repeat() -> None:
    first = SamplingState(SamplingParams(seed=1))
    rows = np.tile(LOGITS, (40, 1))

    def answers(sampling: SamplingState) -> list[int]:
        return [picked(a) for a in sample([SampleRequest(sampling, [0] * n, 0) for n in range(40)], rows)]

    assert answers(first.fork(0)) == answers(first)
    assert answers(first.fork(1)) == answers(SamplingState(SamplingParams(seed=1), index=1)) != answers(first)


def test_logprobs_are_the_models_own() -> None:
    options = {"temperature": 0.1, "banned_tokens": (1,), "seed": 0}
    (answer,) = sample([request(logprobs=2, **options)], LOGITS[None])
    assert isinstance(answer, SampledToken)
    assert answer.logprob == pytest.approx(math.log(P[answer.token]), abs=1e-6)
    assert [token for token, _ in answer.top_logprobs] == [1, 3], "bans do not change what the model held likely"
    assert [value for _, value in answer.top_logprobs] == pytest.approx(np.log([0.4, 0.3]), abs=1e-6)
    assert sample([request(**options)], LOGITS[None]) == [SampledToken(answer.token)]


def test_logprobs_of_a_given_token() -> None:
    assert logprobs_of(LOGITS, 2, 0) == SampledToken(2, pytest.approx(math.log(0.2), abs=1e-6))
    found = logprobs_of(LOGITS, 2, 20)
    assert isinstance(found, SampledToken) and len(found.top_logprobs) == 4
    broken = logprobs_of(np.full(4, np.nan, np.float32), 2, 0)
    assert isinstance(broken, GenerateError) and "not numbers" in str(broken)


# ---- what goes wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0, "logit_bias": {0: 1}}, {}, {"top_p": 0.9}])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_broken_row_fails_alone(options: dict[str, Any], value: float) -> None:
    logits = np.tile(LOGITS, (3, 1))
    logits[1, 2] = value
    first, broken, last = sample([request(seed=seed, **options) for seed in (4, 5, 6)], logits)
    assert isinstance(broken, GenerateError)
    assert "not numbers" in str(broken)
    assert [picked(first), picked(last)] == [sample_one(request(seed=seed, **options)) for seed in (4, 6)]


def test_too_many_bans_fail_alone() -> None:
    banned, fine = sample([request(banned_tokens=range(4)), request(temperature=0)], np.tile(LOGITS, (2, 1)))
    assert isinstance(banned, GenerateError)
    assert "banned" in str(banned)
    assert picked(fine) == 1


@pytest.mark.parametrize("name", ["banned_tokens", "allowed_tokens", "stop_token_ids", "logit_bias"])
def test_tokens_the_model_does_not_have(name: str) -> None:
    bad = request(**{name: {4: 1.0} if name == "logit_bias" else [4]})
    with pytest.raises(ConfigError, match=name):
        bad.sampling.check(4)
    bad.sampling.check(5)
