"""What adapters cost: requests without and with one, on an engine with adapters, beside an engine without any.

usage: benchmarks/lora.py [--model MODEL] [--backend cpu|cuda] [--adapters 8] [--rank 16] [--requests 32] [--tokens 64]
                          [--rounds 5] [--lora-rows 128] [--threads N] [--cpu-time] [--check] [--hot]

On the CPU the model is a real one (smollm2:135m); on CUDA it is Qwen3's 8B shape with random bf16 weights, as in
gpu_cells.py, with room for --lora-rows ranks of adapters (0: none). Adapters are random, in bf16, of all linears but
the head. Both engines share the weights and take turns; shares are medians over the rounds, with their quartiles. A
rate is that of decode alone: tokens per second once all requests have their first. --cpu-time counts the seconds this
process ran instead of those that passed: with one thread that is fair on a machine that others use too. --check exits
with 1 if base requests have less than 98 % of the engine without adapters, or those with one less than 85 % of these.

--hot measures pauses instead: while requests decode, adapters come one by one, and each is used by a request that joins
the others and then removed. It exits with 1 if a step takes longer than one that a request with a known adapter joins
and loading an adapter together.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from silent import Silent
from tahr import hub
from tahr.backends import open_backend
from tahr.backends.api import Backend, LinearShape, LoraFactors
from tahr.config import NEUTRAL_SAMPLING, EngineConfig, SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.loading.builder import build_engine
from tahr.models.decoder import Decoder
from tahr.models.loader.load import load, open_model
from tahr.models.lora import Adapter
from tahr.tools.environment import environment, line
from tahr.weights.formats import FORMATS
from tahr.weights.tensor import HostTensor

N_PROMPT = 32
N_JOINED = 8  # tokens of a request that joins others
LEAST = {"base requests": 0.98, "with adapters": 0.85}


def bf16(name: str, n_rows: int, n_cols: int, rng: np.random.Generator) -> HostTensor:
    bits = (0.02 * rng.standard_normal((n_rows, n_cols), np.float32)).view(np.uint32) >> 16
    return HostTensor(name, FORMATS["BF16"], (n_rows, n_cols), bits.astype(np.uint16).reshape(-1).view(np.uint8))


def random_adapter(linears: dict[str, LinearShape], rank: int) -> Adapter:
    """All linears but the head. Equal shapes share their numbers: only the memory they take counts."""
    rng, made, factors = np.random.default_rng(1), {}, {}
    for name, shape in linears.items():
        size = shape.n_rows, shape.n_cols
        if name == "lm_head":
            continue
        if size not in made:
            made[size] = LoraFactors(bf16("a", rank, size[1], rng), bf16("b", size[0], rank, rng), 1.0)
        factors[name] = made[size]
    return Adapter(factors, "random")


def real_model(args: argparse.Namespace) -> tuple[Backend, Decoder]:
    files = hub.resolve(args.model or hub.DEFAULT_MODEL)
    backend = open_backend("cpu", args.threads)
    return backend, load(open_model(files.weights, files.directory), backend).decoder


def random_model(args: argparse.Namespace) -> tuple[Backend, Decoder]:
    from gpu_cells import SHAPES, RandomBackend, make_decoder  # needs torch

    backend = RandomBackend()
    return backend, make_decoder(SHAPES[args.model or "8B"], backend, args.lora_rows)[0]


MODELS: dict[str, Callable[[argparse.Namespace], tuple[Backend, Decoder]]] = {"cpu": real_model, "cuda": random_model}


def decode_rate(engine: Engine, loras: list[str], args: argparse.Namespace) -> float:
    """Tokens per second of as many requests as there are names, once all have their first token; "" is the base."""
    rng = np.random.default_rng(7)
    requests = []
    for name in loras:
        prompt = rng.integers(5, 4000, N_PROMPT).tolist()
        requests.append(engine.submit(ResolvedRequest(prompt, requested(name, args.tokens), Silent)))
    while any(seq.n_generated == 0 for seq in requests):
        engine.step()
    clock = time.process_time if args.cpu_time else time.perf_counter
    n_before, began = sum(seq.n_generated for seq in requests), clock()
    while engine.busy:
        engine.step()
    return (sum(seq.n_generated for seq in requests) - n_before) / (clock() - began)


def requested(lora: str, n_tokens: int) -> SamplingParams:
    return replace(NEUTRAL_SAMPLING, temperature=0.0, ignore_eos=True, max_tokens=n_tokens, lora=lora or ())


def longest_s(engine: Engine, lora: str, change: Callable[[], object], rng: np.random.Generator) -> float:
    """The longest time between two steps' ends when `change` is made and a request joins the others."""
    times = [time.perf_counter()]
    change()
    engine.submit(ResolvedRequest(rng.integers(5, 4000, N_PROMPT).tolist(), requested(lora, N_JOINED), Silent))
    for _ in range(N_JOINED + 4):
        engine.step()
        times.append(time.perf_counter())
    return float(np.diff(times).max())


def hot(engine: Engine, adapter: Adapter, args: argparse.Namespace) -> int:
    """Add, use and remove adapters under load; 1 if a pause is longer than a step of that size and loading."""
    rng, loads, pauses = np.random.default_rng(7), [], []
    n_tokens = 2 * (N_JOINED + 4) * (args.adapters + 6)
    for _ in range(args.requests - 1):  # one place is kept for the request with the adapter
        engine.submit(ResolvedRequest(rng.integers(5, 4000, N_PROMPT).tolist(), requested("", n_tokens), Silent))
    base = statistics.median(longest_s(engine, "", lambda: None, rng) for _ in range(4))
    for i in range(args.adapters):
        began = time.perf_counter()
        prepared = engine.executor.adapters.bring(adapter)
        loads.append(time.perf_counter() - began)
        added = longest_s(engine, f"a{i}", partial(engine.adapters.add, f"a{i}", prepared), rng)
        removed = longest_s(engine, "", partial(engine.adapters.remove, f"a{i}"), rng)
        pauses.append(max(added, removed))
    longest_s(engine, "known", partial(engine.adapters.add, "known", prepared), rng)
    usual = statistics.median(longest_s(engine, "known", lambda: None, rng) for _ in range(4))
    print(line(environment()))
    print(
        f"{args.requests - 1} requests: the longest step when another joins {1e3 * base:.1f} ms, with an adapter that "
        f"was used before {1e3 * usual:.1f} ms; adapters of {adapter.n_bytes / 1e6:.1f} MB"
    )
    for load_s, pause in zip(loads, pauses, strict=True):
        print(f"loaded in {1e3 * load_s:.1f} ms, longest step until it was removed {1e3 * pause:.1f} ms")
    return int(any(pause > usual + load_s for load_s, pause in zip(loads, pauses, strict=True)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--backend", choices=list(MODELS), default="cpu")
    for name, default in (("adapters", 8), ("rank", 16), ("requests", 32), ("tokens", 64), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lora-rows", type=int, default=128)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--hot", action="store_true")
    args = parser.parse_args()
    backend, decoder = MODELS[args.backend](args)
    config = EngineConfig(max_batch_size=args.requests, context_size=512, prefix_cache=False, kv_bytes=2 << 30)
    bare, engine = (build_engine(backend, decoder, config)[0] for _ in range(2))
    adapter = random_adapter(decoder.linears, args.rank)
    if args.hot:
        return hot(engine, adapter, args)
    for i in range(args.adapters):
        data = engine.executor.adapters.bring(adapter)
        engine.adapters.add(f"a{i}", data)
    names = [f"a{i % args.adapters}" for i in range(args.requests)]
    cases = {
        "no adapters": (bare, [""] * args.requests),
        "base requests": (engine, [""] * args.requests),
        "with adapters": (engine, names),
        "half and half": (engine, [name if i % 2 else "" for i, name in enumerate(names)]),
    }
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(args.rounds + 1):
        for name, (each, loras) in cases.items():
            rate = decode_rate(each, loras, args)
            if turn:  # the first is for plans and caches
                rates[name].append(rate)
    print(engine.executor.adapters.bank.note)
    return report(rates, adapter, args)


def report(rates: dict[str, list[float]], adapter: Adapter, args: argparse.Namespace) -> int:
    print(line(environment()))
    print(
        f"{args.requests} requests, {args.adapters} adapters of rank {args.rank}, {adapter.n_bytes / 1e6:.1f} MB each"
    )
    bare, base = rates["no adapters"], rates["base requests"]
    for name, values in rates.items():
        rate, (low, share, high) = statistics.median(values), quartiles(values, bare)
        print(f"{name:<14} {rate:9.1f} tokens/s  {100 * share:6.1f} %  ({100 * low:.1f} to {100 * high:.1f})")
    low, share, high = quartiles(rates["with adapters"], base)
    print(f"with adapters, of base requests {100 * share:.1f} %  ({100 * low:.1f} to {100 * high:.1f})")
    fine = quartiles(base, bare)[1] >= LEAST["base requests"] and share >= LEAST["with adapters"]
    return 0 if fine or not args.check else 1


def quartiles(rates: list[float], others: list[float]) -> list[float]:
    """Of the ratios of rates that were measured one after the other: a machine that slows down does so for both."""
    ratios = [rate / other for rate, other in zip(rates, others, strict=True)]
    return statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3


if __name__ == "__main__":
    sys.exit(main())
