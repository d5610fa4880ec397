"""The program of a grammar worker: a process in which the grammars of clients are computed, because it can be ended.

Its first line of input are the special tokens of the model by their names and how many ids it has, each line after that
is a grammar. For each it writes one line: the grammar as llguidance reads it, tried out, or what is wrong with it. All
lines are JSON texts.
"""

import contextlib
import json
import random
import signal
import sys
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from tahr.errors import GrammarError
from tahr.grammar.source import WITH_SCHEMAS, llguidance_text
from tahr.text.tokens.special_names import SpecialNames

N_WALKS = 3  # tries of a grammar
N_STEPS = 48  # tokens that each of them writes
IDLE_S = 60  # time until the process ends; the next grammar starts another
MAX_TEXT_BYTES = 2 << 20  # limit on a grammar in llguidance's form
N_BYTES = 256


def limit_memory(n_bytes: int) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system can
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # strangers can end this process, and must not fill a disk


def wait_at_most(seconds: int) -> None:
    """Let the process end unless this is called again in time; 0 takes it back."""
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


def compute_at_most(seconds: float) -> None:
    """Let the process end when it has computed for so long; 0 takes it back."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


class Vocabulary:
    """The model's special tokens and, after all of its ids, single bytes: a tokenizer as llguidance wants it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, special_ids: dict[str, int], n_vocab: int):
        self.special_token_ids = sorted(special_ids.values())
        self.eos_token_id = self.special_token_ids[0]
        self.tokens = [b""] * n_vocab + [bytes([i]) for i in range(N_BYTES)]
        self.bytes = range(n_vocab, n_vocab + N_BYTES)
        for name, token in special_ids.items():
            self.tokens[token] = name.encode()

    def __call__(self, text: str) -> list[int]:
        return [self.bytes[byte] for byte in text.encode()]


class Trials:
    """Tries grammars out."""

    def __init__(self, special_ids: dict[str, int], n_vocab: int, limits: dict[str, Any]):
        import llguidance

        self._matcher: Any = llguidance.LLMatcher
        self._make_index: Any = llguidance.LLTokenizer
        self._limits = llguidance.LLParserLimits(**limits)
        self._special_ids = special_ids
        self._n_vocab = n_vocab
        self._bytes = self._make_index("byte")

    def problem(self, text: str) -> str:
        """The fault of a grammar; empty without one."""
        is_error, messages = self._matcher.validate_grammar_with_warnings(text, limits=self._limits)
        if is_error:
            return str(messages[0])
        if not any("no tokenizer" in message for message in messages):
            return self._walked(text, self._bytes, range(N_BYTES), ())
        vocabulary, index = self._special
        return self._walked(text, index, vocabulary.bytes, vocabulary.special_token_ids)

    def _walked(self, text: str, index: Any, tokens: Sequence[int], special: Sequence[int]) -> str:
        matcher = self._matcher(index, text, log_level=0, limits=self._limits)
        walks = (walk(matcher.deep_copy(), tokens, special, seed) for seed in range(N_WALKS))
        return next(filter(None, walks), "")

    @cached_property
    def _special(self) -> tuple[Vocabulary, Any]:
        """The vocabulary with its special tokens: slow to make, and few grammars name one."""
        made = Vocabulary(self._special_ids or {"</s>": 0}, self._n_vocab)
        return made, self._make_index(made)


def walk(matcher: Any, tokens: Sequence[int], special: Sequence[int], seed: int) -> str:
    """Write some tokens that the grammar allows, special ones where no other is; what goes wrong on the way."""
    choose = random.Random(seed).choice
    for _ in range(N_STEPS):
        mask = matcher.compute_bitmask()
        allowed = [at for at in tokens if mask[at // 8] >> at % 8 & 1]
        allowed = allowed or [at for at in special if mask[at // 8] >> at % 8 & 1]
        if not allowed or matcher.is_stopped():
            break
        matcher.consume_token(choose(allowed))
    return str(matcher.get_error())


def reply_to(task: dict[str, str], names: SpecialNames, trials: Trials) -> dict[str, str]:
    """The text of a grammar, or an error (a whole sentence), a problem (llguidance's own words) or a fault of ours."""
    try:
        text = llguidance_text(task["kind"], task["source"], names)
        problem = trials.problem(text) if len(text) <= MAX_TEXT_BYTES else ""
        if problem and task["kind"] in WITH_SCHEMAS:
            text = llguidance_text(task["kind"], task["source"], names, trials.problem)
            problem = trials.problem(text)
    except GrammarError as error:
        return {"error": str(error)}
    except RecursionError:
        return {"error": f"The {task['kind']} is nested too deep: make it flatter."}
    except MemoryError:
        raise  # a process in this state is of no use
    except Exception as error:
        return {"fault": repr(error)[:500]}
    if len(text) > MAX_TEXT_BYTES:
        advice = "offer fewer tools, or simpler ones" if task["kind"] == "tool_calls" else "simplify it"
        return {"error": f"The grammar has {len(text)} characters when it is written out, too many: {advice}."}
    return {"problem": problem} if problem else {"text": text}


def main() -> None:
    options = json.loads(sys.argv[1])
    limit_memory(options.pop("memory_bytes"))
    cpu_s = options.pop("cpu_s")
    special_ids, n_vocab = json.loads(sys.stdin.readline())
    names = SpecialNames(special_ids)
    trials = Trials(special_ids, n_vocab, options)
    wait_at_most(IDLE_S)
    for line in sys.stdin:
        wait_at_most(0)
        compute_at_most(cpu_s)
        print(json.dumps(reply_to(json.loads(line), names, trials)), flush=True)
        compute_at_most(0)
        wait_at_most(IDLE_S)


if __name__ == "__main__":
    main()
