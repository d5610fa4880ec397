"""The 64 requests of `same_bits`, in groups that share an engine."""

from dataclasses import dataclass, field
from typing import Any

from tahr import SamplingParams
from tahr.grammar import Grammar

TINY = {"context_size": 256, "page_size": 8, "n_threads": 2, "backend": "cpu"}
PROMPTS = (
    "Once upon a time, there was a small goat",
    "One day, a little goat met a big dog at the bridge. The dog said, ",
    "Lily and Tom",
    "The sun was late. The birds waited on the wire and did not know when to begin. At last the oldest bird",
    "He",
    'A painter opened the door. "I had no more red," he said. The goat thought about it for a while. Then she',
)
LONG = " ".join(PROMPTS)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
LIST = 'root ::= item ("," item){2}\nitem ::= "\\"" [a-z]+ "\\"" | [0-9]{1,3}'


@dataclass(frozen=True, slots=True)
class Request:
    prompt: str
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Group:
    """Requests to one engine, in one batch or one after the other."""

    name: str
    requests: tuple[Request, ...]
    model: str = "story"
    settings: dict[str, Any] = field(default_factory=dict)  # of `EngineConfig`, over `TINY`; {folder} is the models'
    together: bool = True
    counter: str = ""  # of the engine's stats, which must have moved: otherwise the group is not what its name says


def greedy(prompt: str, length: int = 20, **more: Any) -> Request:
    return Request(prompt, SamplingParams(temperature=0.0, max_tokens=length, **more))


def drawn(prompt: str, seed: int, length: int = 20, **more: Any) -> Request:
    """A sampled one, with a temperature unless told otherwise."""
    return Request(prompt, SamplingParams(**{"temperature": 0.9, "max_tokens": length, "seed": seed, **more}))


def family(name: str) -> Group:
    """A long prompt in chunks beside a short one."""
    requests = (greedy(LONG, 16, logprobs=2, prompt_logprobs=1), drawn(PROMPTS[2], 7, 16, logprobs=1))
    return Group(f"family {name}", requests, name, {"prefill_chunk_size": 48})


GRAMMARS = (
    Grammar("json_schema", PERSON),
    Grammar("json_object"),
    Grammar("regex", "[A-Z][a-z]{2,9}( [a-z]{1,9}){3}\\."),
    Grammar("choice", ["a goat", "a goat and a dog", "nobody"]),
    Grammar("gbnf", LIST),
    Grammar("lark", 'start: WORD (" " WORD){3}\nWORD: /[a-z]{2,7}/'),
)
SAMPLERS: tuple[dict[str, Any], ...] = (
    {"temperature": 1.7},
    {"temperature": 3.0, "top_k": 12},
    {"temperature": 2.0, "top_p": 0.8, "typical_p": 0.9},
    {"temperature": 2.0, "min_p": 0.05, "top_n_sigma": 2.0},
    {"temperature": 1.6, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    {"temperature": 1.5, "logit_bias": {262: 4.0, 300: -100.0}, "banned_tokens": (269, 270), "top_p": 0.95},
    {
        "temperature": 1.6,
        "dry_multiplier": 0.8,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.05,
        "eta_cutoff": 0.002,
        "top_a": 0.05,
    },
    {"mirostat": 2, "mirostat_tau": 3.0, "temperature": 1.6},
)
REPEATED = "The goat had a red ball. The dog had a red ball. The goat had a red ball. The dog had"

GROUPS = (
    Group("together", tuple(greedy(prompt, 24, logprobs=3) for prompt in PROMPTS)),
    Group("alone", tuple(greedy(prompt, 24) for prompt in PROMPTS[:4]), together=False),
    Group(
        "chunked prefill",
        (
            greedy(LONG, 16, prompt_logprobs=2, logprobs=1),
            greedy(LONG[40:], 16, prompt_logprobs=0),
            greedy(PROMPTS[3], 16, logprobs=0),
            drawn(LONG[80:], 3, 16, logprobs=1),
        ),
        settings={"prefill_chunk_size": 7, "max_prefill_tokens": 19, "prefix_cache": False},
    ),
    Group(
        "preempted",
        tuple(greedy(prompt, 40, logprobs=1, ignore_eos=True) for prompt in PROMPTS[:4])
        + tuple(drawn(prompt, 11, 40, ignore_eos=True, temperature=1.5) for prompt in PROMPTS[:2]),
        settings={"kv_bytes": 140_000, "context_size": 96, "max_batch_size": 6},
        counter="preemptions",
    ),
    Group(
        "forked",
        (
            drawn(PROMPTS[0], 5, n=3, logprobs=1, temperature=2.0),
            drawn(PROMPTS[1], 6, n=2, top_k=20),
            drawn(PROMPTS[2], 8, 12, n=4, grammar=GRAMMARS[2]),
        ),
    ),
    Group(
        "drafted from the text",
        (
            greedy(REPEATED, 32, logprobs=1),
            drawn(REPEATED, 9, 32, temperature=0.5, logprobs=1),
            greedy(REPEATED, 24, grammar=GRAMMARS[0]),
            greedy(LONG, 32, ignore_eos=True, repetition_penalty=1.1),
        ),
        settings={"spec_ngram": True, "spec_tokens": 4},
        counter="spec_accepted_tokens",
    ),
    Group(
        "drafted by a model",
        (
            greedy(PROMPTS[0], 32, logprobs=1),
            drawn(PROMPTS[1], 10, 32, temperature=1.5, logprobs=1),
            greedy(PROMPTS[2], 24, grammar=GRAMMARS[2]),
            drawn(PROMPTS[3], 12, 24, n=2, top_p=0.9, temperature=1.8),
        ),
        settings={"spec_draft": "{folder}/draft.gguf", "spec_tokens": 3},
        counter="spec_accepted_tokens",
    ),
    Group("grammars", tuple(drawn(PROMPTS[2], 20 + i, 48, grammar=g, logprobs=1) for i, g in enumerate(GRAMMARS))),
    Group(
        "adapters",
        (
            greedy(PROMPTS[0], lora="sad", logprobs=1),
            greedy(PROMPTS[0], lora="loud", logprobs=1),
            greedy(PROMPTS[0], lora=(("sad", 0.5), ("loud", 0.25)), logprobs=1),
            greedy(PROMPTS[0], logprobs=1),
        ),
        settings={"loras": ("sad={folder}/sad", "loud={folder}/loud")},
    ),
    Group(  # long ones: a slightly other distribution shows only once it draws another token
        "samplers",
        tuple(drawn(REPEATED, 40 + i, 150, logprobs=0, ignore_eos=True, **each) for i, each in enumerate(SAMPLERS)),
    ),
    Group(
        "stops",
        (
            greedy(PROMPTS[0], 60, stop=("goat", ". One"), logprobs=0),
            greedy(PROMPTS[1], 60, stop_token_ids=(13, 431), min_tokens=5),
        ),
    ),
    Group("kv q8", (greedy(LONG, logprobs=1), drawn(PROMPTS[1], 50, logprobs=1)), "dense", {"kv_dtype": "q8"}),
    Group("prefix", (greedy(LONG, 8), greedy(f"{LONG} saw", logprobs=1)), together=False, counter="prefix_hits"),
    Group("int8 weights", (greedy(LONG, logprobs=1),), settings={"quantize": "int8"}),
    *map(family, ("moe", "windows", "state_space", "delta_net")),
)
N_REQUESTS = sum(len(group.requests) for group in GROUPS)
