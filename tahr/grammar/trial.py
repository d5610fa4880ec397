"""The program of a process that tries grammars out, so that one that never ends or eats memory ends there.

Reads grammars from standard input, one JSON text per line, and writes one line for each: what is wrong, as JSON text.
It imports nothing of ours, so that it starts quickly.
"""

import contextlib
import json
import random
import signal
import sys
from typing import Any

N_WALKS, N_BYTES = 3, 48  # tries, and how much each of them writes
IDLE_S = 60  # then the process ends; the next grammar starts another


def limit_memory(n_bytes: int) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system can
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))


def wait_at_most(seconds: int) -> None:
    """Let the process end unless this is called again in time; 0 takes it back."""
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


def compute_at_most(seconds: float) -> None:
    """Let the process end when it has computed for so long; 0 takes it back."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def problem(llguidance: Any, tokenizer: Any, grammar: str, limits: Any) -> str:
    """What is wrong with a grammar; empty if nothing is."""
    is_error, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
    if is_error:
        return str(messages[0])
    if any("no tokenizer" in message for message in messages):  # special tokens: only the model's tokenizer knows them
        return ""
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    return next(filter(None, (walk(matcher.deep_copy(), seed) for seed in range(N_WALKS))), "")


def walk(matcher: Any, seed: int) -> str:
    """Write some bytes that the grammar allows; what goes wrong on the way."""
    choose = random.Random(seed).choice
    for _ in range(N_BYTES):
        mask = matcher.compute_bitmask()
        allowed = [at for at in range(256) if mask[at // 8] >> at % 8 & 1]
        if not allowed or matcher.is_stopped():
            break
        matcher.consume_token(choose(allowed))
    return str(matcher.get_error())


def main() -> None:
    options = json.loads(sys.argv[1])
    limit_memory(options.pop("memory_bytes"))
    cpu_s = options.pop("cpu_s")
    import llguidance

    limits, tokenizer = llguidance.LLParserLimits(**options), llguidance.LLTokenizer("byte")
    wait_at_most(IDLE_S)
    for line in sys.stdin:
        wait_at_most(0)
        compute_at_most(cpu_s)
        print(json.dumps(problem(llguidance, tokenizer, json.loads(line), limits)), flush=True)
        compute_at_most(0)
        wait_at_most(IDLE_S)


if __name__ == "__main__":
    main()
