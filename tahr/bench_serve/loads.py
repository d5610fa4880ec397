"""The requests of a bench. The same seed makes the same requests; no two runs of one bench share a random prompt."""

import json
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from tahr.bench_serve.measured import Load
from tahr.bench_serve.plan import BenchPlan
from tahr.errors import ConfigError
from tahr.regular_file import read_bytes

Encode = Callable[[str], Awaitable[list[int]]]  # a text as tokens, without special ones

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MAX_DATASET_BYTES = 4 << 30
N_INPUT = {"random": 256, "shared-prefix": 64}
# Where random tokens are taken from: common words, so that no tokenizer makes anything special of them.
WORDS = (
    "the of and to in is you that it he was for on are as with his they at be this have from or one had by word but "
    "not what all were we when your can said there use an each which she do how their if will up other about out many "
    "then them these so some her would make like him into time has look two more write go see number no way could "
    "people my than first water been call who oil its now find long down day did get come made may part over new sound "
    "take only little work know place year live me back give most very after thing our just name good sentence man "
    "think say great where help through much before line right too mean old any same tell boy follow came want show"
)
# Longer conversations than these measure the context limit, not the server.
MIN_TOKENS = 4
MAX_PROMPT = 1024
MAX_BOTH = 2048


async def make_maker(plan: BenchPlan, model: str, encode: Encode) -> "Maker":
    """Make the maker of each run's requests."""
    if plan.dataset == "sharegpt":
        assert plan.dataset_path is not None
        pairs = read_sharegpt(Path(plan.dataset_path))
        return ShareGptMaker(plan, model, await measured_pairs(pairs, encode, plan))
    pool = sorted(set(await encode(WORDS)))
    return RandomMaker(plan, model, pool)


class Maker:
    """Makes requests for one model."""

    def __init__(self, plan: BenchPlan, model: str):
        self._plan = plan
        self._model = model

    def make(self, run: str, n: int) -> list[Load]:
        """The requests of one run; its name decides what they say."""
        rng = random.Random(f"{self._plan.seed}/{run}")
        return [self.one(rng) for _ in range(n)]

    def one(self, rng: random.Random) -> Load:
        raise NotImplementedError

    def body(self, n_output: int, **more: Any) -> dict[str, Any]:
        common = {"model": self._model, "max_tokens": n_output, "stream": True}
        greedy = {} if self._plan.default_sampling else {"temperature": 0}
        ends = {} if self._plan.respect_eos else {"ignore_eos": True}
        return {**common, **greedy, **ends, "stream_options": {"include_usage": True}, **more}


class RandomMaker(Maker):
    """Prompts of exactly so many tokens, sent as tokens; with shared-prefix they all begin alike."""

    def __init__(self, plan: BenchPlan, model: str, pool: Sequence[int]):
        super().__init__(plan, model)
        self._pool = pool
        n_prefix = plan.n_prefix if plan.dataset == "shared-prefix" else 0
        self._prefix = random.Random(f"{plan.seed}/prefix").choices(pool, k=n_prefix)
        self._n_input = plan.n_input or N_INPUT[plan.dataset]

    def one(self, rng: random.Random) -> Load:
        tokens = [*self._prefix, *rng.choices(self._pool, k=self._n_input)]
        n_output = self._plan.n_output
        return Load(TEXT, self.body(n_output, prompt=tokens), n_output, len(tokens))


class ShareGptMaker(Maker):
    """First messages of recorded conversations, answered at the length of the recorded answer."""

    def __init__(self, plan: BenchPlan, model: str, pairs: Sequence[tuple[str, int]]):
        super().__init__(plan, model)
        self._pairs = pairs

    def one(self, rng: random.Random) -> Load:
        message, n_output = rng.choice(self._pairs)
        return Load(CHAT, self.body(n_output, messages=[{"role": "user", "content": message}]), n_output)


def read_sharegpt(path: Path) -> list[tuple[str, str]]:
    """First message and first answer of each conversation that a person begins."""
    try:
        conversations = json.loads(read_bytes(path, MAX_DATASET_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"The dataset {path} cannot be read: {error}.") from error
    if not isinstance(conversations, list):
        raise ConfigError(f"The dataset {path} is not a list of conversations.")
    pairs = [first_pair(each) for each in conversations]
    return [pair for pair in pairs if pair is not None]


def first_pair(entry: Any) -> tuple[str, str] | None:
    try:
        first, second = entry["conversations"][:2]
        message = first["value"]
        answer = second["value"]
        from_person = first["from"] in ("human", "user")
    except (TypeError, KeyError, ValueError):
        return None
    return (message, answer) if from_person and isinstance(message, str) and isinstance(answer, str) else None


async def measured_pairs(pairs: Sequence[tuple[str, str]], encode: Encode, plan: BenchPlan) -> list[tuple[str, int]]:
    """Messages with the number of tokens of their answers: as many as a run needs, in random order."""
    shuffled = random.Random(f"{plan.seed}/file").sample(pairs, len(pairs))
    kept: list[tuple[str, int]] = []
    for message, answer in shuffled:
        n_prompt = len(await encode(message))
        n_output = len(await encode(answer))
        if min(n_prompt, n_output) >= MIN_TOKENS and n_prompt <= MAX_PROMPT and n_prompt + n_output <= MAX_BOTH:
            kept.append((message, n_output))
        if len(kept) == plan.n_prompts:
            return kept
    if not kept:
        raise ConfigError(
            f"The dataset {plan.dataset_path} has no conversation of fitting length: a first message of "
            f"{MIN_TOKENS} to {MAX_PROMPT} tokens and an answer, together at most {MAX_BOTH} tokens."
        )
    return kept
