"""What grammars cost, and whether they hold: masks, throughput beside free requests, random schemas.

usage: benchmarks/grammar.py masks VOCAB.gguf [N]        mask cost per token over N random schemas (default 200)
       benchmarks/grammar.py threads VOCAB.gguf [N]      a step of N sequences (default 64): its masks by threads
       benchmarks/grammar.py throughput [MODEL] [N]      N requests at once (default 8), constrained and free in turn
       benchmarks/grammar.py schemas [MODEL] [N]         N random schemas (default 200) at temperature 1, in batches
                                                         of 8 with free requests; all texts are validated
       benchmarks/grammar.py characters VOCAB.gguf       mask cost of a JSON grammar in GBNF, character by character
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import told_texts
from tahr import LLM, EngineConfig, SamplingParams
from tahr.grammar import Grammar
from tahr.grammar.compiler import GrammarCompiler
from tahr.grammar.masks import MaskFiller
from tahr.text.tokens.tokenizer import Tokenizer
from tahr.tools.environment import environment, line
from tahr.weights.gguf import open_gguf

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))
import random_schemas

N_TOGETHER = 8
N_WALKS = 3  # of each text: the least time of each token counts, so that other work on the machine does not
RECORDS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "kind": {"enum": ["animal", "plant", "stone"]},
            "size": {"type": "number", "minimum": 0, "maximum": 1000},
            "note": {"type": "string"},
        },
        "required": ["name", "kind", "size", "note"],
        "additionalProperties": False,
    },
    "minItems": 50,
}
JSON_GBNF = r"""
root ::= object
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,15})? ws
ws ::= (" " | "\n" [ \t]{0,20})?
"""


# ---- masks ------------------------------------------------------------------------------------------------------


def walk(compiler: GrammarCompiler, tokenizer: Tokenizer, grammar: Grammar, text: str) -> Iterator[tuple[float, float]]:
    """The seconds of CPU time that a mask takes at every token of a text, and those of taking the token."""
    state = compiler.state(grammar)
    for token in tokenizer.encode(text, add_special=False, parse_special=False):
        began = time.thread_time()
        state.matcher.mask()
        masked = time.thread_time()
        state.advance(token)
        state.forced_tokens()
        yield masked - began, time.thread_time() - masked


def describe(name: str, seconds: list[float]) -> None:
    us = np.array(seconds) * 1e6
    at = "  ".join(f"p{q} {np.percentile(us, q):.0f}" for q in (50, 90, 99, 99.9))
    print(f"{name}: mean {us.mean():.1f} us  {at}  max {us.max():.0f}  ({len(us)} tokens)")


def tokenizer_of(path: str) -> Tokenizer:
    return Tokenizer.from_gguf(open_gguf(Path(path)).metadata)


def masks(path: str, n: str = "200") -> None:
    tokenizer = tokenizer_of(path)
    compiler = GrammarCompiler(tokenizer)
    began = time.perf_counter()
    compiler.vocabulary.index  # noqa: B018
    print(f"{tokenizer.n_vocab} tokens; index {time.perf_counter() - began:.2f} s")
    taken: list[tuple[float, float]] = []
    compiling: list[float] = []
    for seed in range(int(n)):
        rng = random.Random(seed)
        schema = random_schemas.schema(rng)
        began = time.perf_counter()
        grammar = Grammar("json_schema", schema)
        compiler.compile(grammar)
        compiling.append(time.perf_counter() - began)
        text = json.dumps(random_schemas.value(rng, schema), ensure_ascii=False, indent=rng.choice([None, 2]))
        walks = [list(walk(compiler, tokenizer, grammar, text)) for _ in range(N_WALKS)]
        taken += [tuple(map(min, zip(*each, strict=True))) for each in zip(*walks, strict=True)]
    describe("mask", [each[0] for each in taken])
    describe("token taken, forced ones looked up", [each[1] for each in taken])
    print(f"compiled in {statistics.median(compiling) * 1e3:.1f} ms (median), {max(compiling) * 1e3:.0f} ms at most")
    compiler.close()


def characters(path: str) -> None:
    tokenizer = tokenizer_of(path)
    compiler = GrammarCompiler(tokenizer)
    text = json.dumps(random_schemas.value(random.Random(1), random_schemas.schema(random.Random(1))))
    describe("mask of GBNF", [each[0] for each in walk(compiler, tokenizer, Grammar("gbnf", JSON_GBNF), text)])
    compiler.close()


def threads(path: str, n: str = "64") -> None:
    """Medians of what the grammars of a step cost by threads: tokens taken and forced ones looked up, then masks."""
    from tahr import _native as native

    tokenizer = tokenizer_of(path)
    compiler, grammar = GrammarCompiler(tokenizer), Grammar("json_schema", RECORDS)
    paths = [told_texts.path_of(compiler, tokenizer, grammar, told_texts.records(i), 200) for i in range(int(n))]
    for n_threads in (1, 2, 4, 8, 12, 15):
        filler, us = MaskFiller(), dict[str, list[float]]()
        filler.__dict__["_threads"] = native.GrammarThreads(n_threads)

        def timed(name: str, call: Callable[[], Any], us: dict[str, list[float]] = us) -> Any:
            began = time.perf_counter()
            found = call()
            us.setdefault(name, []).append(1e6 * (time.perf_counter() - began))
            return found

        states = [compiler.state(grammar) for _ in paths]
        masks = np.zeros((len(states), states[0].vocabulary.n_words), np.uint32)
        for _ in range(120):
            each = zip(states, paths, strict=True)
            tokens = [(state, path[state.matcher.n_consumed], True) for state, path in each]
            job = timed("tokens taken", partial(filler.begin, list(enumerate(states)), masks, tokens))
            timed("masks waited for at once", job.wait)
            for state, forced in zip(states, job.forced, strict=True):
                for token in forced:
                    state.advance(token)
        found = ", ".join(f"{name} {statistics.median(each):.0f}" for name, each in us.items())
        print(f"{n_threads} threads beside the caller's, {len(states)} sequences (us): {found}")
    compiler.close()


# ---- throughput -------------------------------------------------------------------------------------------------


def throughput(model: str | None = None, n: str = "8") -> None:
    """Tokens per second of as many requests at once, free and constrained, in turn."""
    n_requests, n_tokens = int(n), 96
    with LLM(model, config=EngineConfig(max_batch_size=n_requests)) as llm:
        free = SamplingParams(temperature=1, max_tokens=n_tokens, ignore_eos=True, seed=1)
        bound = SamplingParams(temperature=1, max_tokens=n_tokens, grammar=Grammar("json_schema", RECORDS), seed=1)
        rates: dict[str, list[float]] = {"free": [], "constrained": []}
        for _ in range(4):
            for name, params in (("free", free), ("constrained", bound)):
                rates[name].append(rate(llm, params, n_requests))
        best = {name: max(each[1:]) for name, each in rates.items()}  # the first rounds warm up
        print({name: [round(each, 1) for each in found] for name, found in rates.items()})
        print(f"{n_requests} requests: free {best['free']:.1f} tokens/s, constrained {best['constrained']:.1f}, "
              f"{100 * best['constrained'] / best['free']:.1f} %")  # fmt: skip


def rate(llm: LLM, params: SamplingParams, n_requests: int) -> float:
    prompts = [f"Describe {i} things you can find in a garden, as JSON records." for i in range(n_requests)]
    began = time.perf_counter()
    done = llm.chat(prompts, params, progress=False)
    return sum(len(each.token_ids) for each in done) / (time.perf_counter() - began)


# ---- random schemas ---------------------------------------------------------------------------------------------


def schemas(model: str | None = None, n: str = "200") -> None:
    """Every completed text validates, and free requests say what they say alone."""
    with LLM(model, config=EngineConfig(max_batch_size=N_TOGETHER)) as llm:
        n_bad = n_done = n_changed = 0
        reasons: dict[str, int] = {}
        for begin in range(0, int(n), N_TOGETHER - 2):
            made = [random_schemas.schema(random.Random(seed)) for seed in range(begin, begin + N_TOGETHER - 2)]
            free = [SamplingParams(temperature=1, seed=begin + i, max_tokens=60) for i in range(2)]
            prompts = ["Tell me something new.", "What do you like about rain?"]
            alone = [each.token_ids for each in llm.chat(prompts, free, progress=False)]
            requested = [f"Answer with JSON that follows this schema: {json.dumps(each)[:400]}" for each in made]
            bound = [
                SamplingParams(temperature=1, seed=i, max_tokens=500, grammar=Grammar("json_schema", each))
                for i, each in enumerate(made)
            ]
            done = llm.chat([*requested, *prompts], [*bound, *free], progress=False)
            n_changed += [each.token_ids for each in done[len(made) :]] != alone
            for schema, each in zip(made, done, strict=False):
                reasons[each.finish_reason] = reasons.get(each.finish_reason, 0) + 1
                if each.finish_reason == "stop":
                    n_done += 1
                    n_bad += not is_valid(each.text, schema)
            print(f"{sum(reasons.values())} schemas: {reasons}; {n_done} complete, {n_bad} of them wrong; "
                  f"batches in which free requests changed: {n_changed}", flush=True)  # fmt: skip


def is_valid(text: str, schema: Any) -> bool:
    import jsonschema  # one of the tests' packages

    validator = jsonschema.Draft202012Validator
    try:
        validator(schema, format_checker=validator.FORMAT_CHECKER).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        print(f"WRONG: {text!r} for {json.dumps(schema)}: {error}")
        return False
    return True


MODES = {"masks": masks, "threads": threads, "throughput": throughput, "schemas": schemas, "characters": characters}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in MODES:
        sys.exit(__doc__)
    print(line(environment()))
    MODES[sys.argv[1]](*sys.argv[2:])  # type: ignore[operator]
