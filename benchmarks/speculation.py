"""Speculation against the same engine without it, taking turns in one run.

usage: benchmarks/speculation.py lookup [MODEL]             prompt lookup on texts that are edited and summarised
       benchmarks/speculation.py draft [--backend cuda] [--target 1.7B] [--draft 135M] [--agree 0.8] [--requests 1 16]
       benchmarks/speculation.py draft --draft eagle3      the same with an EAGLE-3 drafter in the shape of its target
       benchmarks/speculation.py table [...]                speed-up by acceptance and tokens per draft, one request

The draft model and its target have random weights in the shape of real ones (Q8_0 on a CPU, bf16 on a GPU). They run
as they would, but whether a draft token is right is drawn: with probability `--agree`, whatever the models say.

--cpu-time runs on one thread and counts its own seconds, which other programs on the machine disturb little. One thread
computes half as fast as two but reads weights almost as fast, so verification looks dearer than it is on two.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

import tahr.engine.engine as engine_module
import tahr.engine.speculation.draft_model as draft_module
import tahr.engine.step.sample_plan as plan_module
from silent import Silent
from tahr import LLM, SamplingParams
from tahr.backends import open_backend
from tahr.backends.api import Backend, Weight
from tahr.config import GREEDY, EngineConfig, precedence
from tahr.engine.engine import Engine
from tahr.engine.sampling.sampling_state import Sample
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.engine.sequences.sequence import Sequence
from tahr.engine.speculation.speculator import Speculator
from tahr.engine.step.drafts import AcceptedTokens, Drafts
from tahr.loading.builder import build_engine
from tahr.loading.speculation import Draft
from tahr.models.decoder import Decoder
from tahr.models.loader.drafters import load_drafter
from tahr.models.loader.load import OpenedModel, load
from tahr.weights.formats import FORMATS
from tahr.weights.tensor import HostTensor

N_IN, N_OUT, TURNS = 64, 96, 7
TRAINED, N_DRAFT_VOCAB = "eagle3", 32000


@dataclass(frozen=True)
class Shape:
    """A llama in numbers."""

    width: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_ffn: int
    n_vocab: int
    tied: bool = True


SHAPES = {
    "135M": Shape(576, 30, 9, 3, 64, 1536, 49152),
    "1.7B": Shape(2048, 24, 32, 32, 64, 8192, 49152),
    "0.6B": Shape(1024, 28, 16, 8, 128, 3072, 151936),
    "8B": Shape(4096, 36, 32, 8, 128, 12288, 151936, tied=False),
}


# ---- models of random numbers -----------------------------------------------------------------------------------


def matrix(name: str, form: str, n_rows: int, n_cols: int, rng: np.random.Generator) -> HostTensor:
    """Any codes with small scales; on a GPU only the shape counts."""
    if form == "BF16":
        return HostTensor(
            name, FORMATS[form], (n_rows, n_cols), np.broadcast_to(np.zeros(1, np.uint8), 2 * n_rows * n_cols)
        )
    block = FORMATS[form]
    blocks = np.frombuffer(rng.bytes(n_rows * n_cols // block.block * block.block_bytes), np.uint8).copy()
    blocks = blocks.reshape(-1, block.block_bytes)
    blocks[:, :2] = rng.uniform(1e-5, 1e-4, len(blocks)).astype(np.float16)[:, None].view(np.uint8)
    return HostTensor(name, block, (n_rows, n_cols), blocks.reshape(-1))


def tensors(shape: Shape, form: str) -> list[HostTensor]:
    rng, width = np.random.default_rng(0), shape.width
    q, kv = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    sizes = {"self_attn.q_proj": (q, width), "self_attn.k_proj": (kv, width), "self_attn.v_proj": (kv, width),
             "self_attn.o_proj": (width, q), "mlp.gate_proj": (shape.n_ffn, width),
             "mlp.up_proj": (shape.n_ffn, width), "mlp.down_proj": (width, shape.n_ffn)}  # fmt: skip
    tops = {"model.embed_tokens": (shape.n_vocab, width)} | ({} if shape.tied else {"lm_head": (shape.n_vocab, width)})
    layers = [f"model.layers.{i}" for i in range(shape.n_layers)]
    named = tops | {f"{layer}.{name}": size for layer in layers for name, size in sizes.items()}
    norms = [
        "model.norm",
        *(f"{layer}.{n}" for layer in layers for n in ("input_layernorm", "post_attention_layernorm")),
    ]
    ones = np.ones(width, np.float32).view(np.uint8)
    made = [matrix(f"{name}.weight", form, *size, rng) for name, size in named.items()]
    return made + [HostTensor(f"{name}.weight", FORMATS["F32"], (width,), ones) for name in norms]


def make_decoder(name: str, backend: Backend, form: str, share: float = 1.0) -> Decoder:
    """A model with this share of the shape's layers."""
    shape = replace(SHAPES[name], n_layers=max(1, round(share * SHAPES[name].n_layers)))
    config = llama_config(shape)
    opened = OpenedModel(name, "safetensors", config, {t.name: t for t in tensors(shape, form)}, 0, {})
    return load(opened, backend).decoder


def llama_config(shape: Shape) -> dict[str, object]:
    return {
        "model_type": "llama", "hidden_size": shape.width, "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads, "num_key_value_heads": shape.n_kv_heads, "head_dim": shape.head_dim,
        "intermediate_size": shape.n_ffn, "vocab_size": shape.n_vocab, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "max_position_embeddings": 8192, "tie_word_embeddings": shape.tied, "hidden_act": "silu",
    }  # fmt: skip


def make_draft(args: argparse.Namespace, backend: Backend, form: str, target: Decoder) -> Draft:
    """A smaller model, or a drafter of one layer that may guess as many tokens as published ones."""
    if args.draft != TRAINED:
        return Draft(args.draft, make_decoder(args.draft, backend, form, args.layers))
    shape = replace(SHAPES[args.target], n_layers=1)
    layers = llama_config(shape)
    n_draft = min(N_DRAFT_VOCAB, shape.n_vocab)
    taps = [1, target.config.n_layers // 2, target.config.n_layers - 2]
    config = {"speculators_model_type": "eagle3", "transformer_layer_config": layers, "draft_vocab_size": n_draft,
              "eagle_aux_hidden_state_layer_ids": taps}  # fmt: skip
    found = load_drafter(OpenedModel(TRAINED, "safetensors", config, drafter_tensors(shape, form, n_draft), 0, {}),
                         backend, target)  # fmt: skip
    return Draft(TRAINED, found.drafter, found.n_weight_bytes, found.tokens)


def drafter_tensors(shape: Shape, form: str, n_draft: int) -> dict[str, HostTensor]:
    """One layer that reads two rows side by side, and what is before and behind it."""
    rng, width = np.random.default_rng(1), shape.width
    made = {t.name.removeprefix("model."): t for t in tensors(replace(shape, n_layers=1, tied=True), form)}
    del made["embed_tokens.weight"]  # that of the target
    q, kv = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    sizes = {"layers.0.self_attn.q_proj": (q, 2 * width), "layers.0.self_attn.k_proj": (kv, 2 * width),
             "layers.0.self_attn.v_proj": (kv, 2 * width), "fc": (width, 3 * width),
             "lm_head": (n_draft, width)}  # fmt: skip
    made |= {f"{name}.weight": matrix(f"{name}.weight", form, *size, rng) for name, size in sizes.items()}
    made["layers.0.hidden_norm.weight"] = replace(made["norm.weight"], name="layers.0.hidden_norm.weight")
    spread = np.arange(n_draft) * (shape.n_vocab // n_draft) - np.arange(n_draft)
    made["d2t"] = HostTensor("d2t", FORMATS["I64"], (n_draft,), spread.astype("<i8").view(np.uint8))
    return made


def open_device(name: str, n_threads: int | None) -> tuple[Backend, str]:
    """The backend, and the format of its matrices; a GPU makes them itself."""
    if name != "cuda":
        return open_backend(name, n_threads, False), "Q8_0"
    import torch

    from tahr.backends.cuda.backend import CudaBackend

    class RandomBackend(CudaBackend):
        def weight(self, tensor: HostTensor) -> Weight:
            values = torch.empty(tensor.shape, dtype=torch.bfloat16, device=self.device).normal_(0, 0.02)
            n_rows, n_cols = tensor.shape
            return Weight(tensor.name, "BF16", "dense bf16", n_rows, n_cols, 2 * values.numel(), values)

    return RandomBackend("cuda"), "BF16"


# ---- scripted agreement -----------------------------------------------------------------------------------------


@contextmanager
def agreeing(share: float) -> Iterator[None]:
    """Draft tokens are right with this probability, whatever the models say."""
    rng, true_verify = random.Random(0), engine_module.verify

    def verify(sampled: list[Sequence], tokens: list[Sample], drafts: Drafts) -> AcceptedTokens:
        told, at = list(tokens), 0
        while at < len(sampled):
            for place, draft in enumerate(drafts.get(sampled[at].id, ())):
                right = rng.random() < share
                told[at + place] = draft if right else draft ^ 1
            at += 1 + len(drafts.get(sampled[at].id, ()))
        return true_verify(sampled, told, drafts)

    engine_module.verify = verify
    try:
        yield
    finally:
        engine_module.verify = true_verify


# ---- measuring --------------------------------------------------------------------------------------------------


clock = time.perf_counter


def use_cpu_time() -> None:
    """Everything is timed by what this process computes, the draft lengths included."""
    global clock
    clock = time.process_time
    for module in (engine_module, plan_module, draft_module):
        module.perf_counter = time.process_time  # type: ignore[attr-defined]


def decode_rate(engine: Engine, n_requests: int, n_out: int) -> float:
    """Tokens per second of requests that begin together, their prompts not counted."""
    params, rng = replace(precedence(GREEDY), ignore_eos=True, max_tokens=n_out), np.random.default_rng(n_requests)
    n_vocab = engine.facts.n_vocab
    sequences = [
        engine.submit(ResolvedRequest(rng.integers(0, n_vocab, N_IN).tolist(), params, Silent))
        for _ in range(n_requests)
    ]
    while not all(seq.n_generated or seq.done for seq in sequences):
        engine.step()
    begin, n_before = clock(), sum(seq.n_generated for seq in sequences)
    while engine.busy:
        engine.step()
    if error := next((seq.result.error for seq in sequences if seq.result.error), None):
        raise error
    return (n_requests * n_out - n_before) / (clock() - begin)


def in_turn(turns: int, *runs: Callable[[], float]) -> list[list[float]]:
    """The results of each run, one turn after the other, each turn the other way round."""
    found: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()  # warm: plans are recorded, lengths learned
    for turn in range(turns):
        for i in range(len(runs))[:: 1 if turn % 2 else -1]:
            found[i].append(runs[i]())
    return found


def report(label: str, plain: list[float], ours: list[float], speculator: Speculator | None, note: str = "") -> None:
    ratios = sorted(b / a for a, b in zip(plain, ours, strict=True))
    line = f"{label:<28}{median(plain):8.1f} -> {median(ours):8.1f} tokens/s, {median(ratios):.2f}x "
    line += f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
    if speculator:
        stats = speculator.stats
        accepted = stats.n_accepted_tokens / max(1, stats.n_draft_tokens)
        line += f"; {stats.n_draft_tokens / max(1, stats.n_drafts):.1f} drafted, {accepted:.0%} accepted"
    print(line + note, flush=True)


def engines(args: argparse.Namespace) -> tuple[Engine, Engine]:
    """One without speculation and one with, around the same models."""
    backend, form = open_device(args.backend, args.threads)
    target = make_decoder(args.target, backend, form, args.layers)
    config = EngineConfig(context_size=1024, max_batch_size=16, prefix_cache=False)
    plain, _ = build_engine(backend, target, config)
    requested = replace(config, spec_draft=args.draft, spec_tokens=args.tokens)
    ours, _ = build_engine(backend, target, requested, draft=make_draft(args, backend, form, target))
    return plain, ours


def run_draft(args: argparse.Namespace) -> None:
    plain, ours = engines(args)
    print(f"target {args.target}, draft {args.draft}, {plain.executor.backend.summary}; {args.agree:.0%} agree")
    for n in args.requests:
        if ours.speculator:
            ours.speculator = Speculator(ours.speculator.proposer, args.tokens)
        with agreeing(args.agree):
            rates = in_turn(
                args.turns, lambda n=n: decode_rate(plain, n, args.out), lambda n=n: decode_rate(ours, n, args.out)
            )
        report(f"{n} request{'s' * (n > 1)}", *rates, ours.speculator)


def run_table(args: argparse.Namespace) -> None:
    plain, ours = engines(args)
    assert ours.speculator
    print(f"target {args.target}, draft {args.draft}, one request, {plain.executor.backend.summary}")
    print("| agree | " + " | ".join(f"k = {k}" for k in range(1, args.tokens + 1)) + " | adaptive |")
    print("|---" * (args.tokens + 2) + "|")
    proposer = ours.speculator.proposer
    for agree in (0.3, 0.5, 0.7, 0.8, 0.9, 1.0):
        cells = []
        for k in [*range(1, args.tokens + 1), None]:
            ours.speculator = Speculator(proposer, k or args.tokens, adapts=k is None)
            with agreeing(agree):
                first, second = in_turn(
                    args.turns, lambda: decode_rate(plain, 1, args.out), lambda: decode_rate(ours, 1, args.out)
                )
            cells.append(f"{median(b / a for a, b in zip(first, second, strict=True)):.2f}")
        print(f"| {agree:.0%} | " + " | ".join(cells) + " |", flush=True)


# ---- prompt lookup ----------------------------------------------------------------------------------------------

TEXT = """The lighthouse at Brannock Point was built in 1871 by a mason named Elias Trevane, who carried every stone up
the cliff path with two mules and a borrowed cart. For forty years its lamp burned whale oil, then paraffin, and since
1954 an electric bulb no larger than a fist. The keeper's cottage below it has been empty since 1986, when the light was
made automatic, but the county still paints its door green every spring, as Mrs Trevane wished in her will.
Visitors may climb the 114 steps between April and September; the view reaches from the Harrow Rocks to the mouth of the
river Fenn, and on clear evenings to the island of Saint Brannock itself."""
TASKS = {
    "edit": f"Correct the spelling of the following text and repeat it in full, changing nothing else.\n\n{TEXT}",
    "summarise": f"Summarise the following text in a few sentences, quoting its words where you can.\n\n{TEXT}",
}


def run_lookup(args: argparse.Namespace) -> None:
    plain = LLM(args.model, context_size=2048, n_threads=args.threads)
    ours = LLM(args.model, context_size=2048, n_threads=args.threads, spec_ngram=True)
    params = SamplingParams(temperature=0.0, max_tokens=192)
    print(f"{plain.name}, prompt lookup, one request, {plain.backend_summary}")

    def rate(llm: LLM, task: str) -> float:
        stats = llm.chat(task, params, progress=False).stats
        return stats.tokens_per_s

    for name, task in TASKS.items():
        same = plain.chat(task, params, progress=False).token_ids == ours.chat(task, params, progress=False).token_ids
        rates = in_turn(args.turns, lambda task=task: rate(plain, task), lambda task=task: rate(ours, task))
        report(name, *rates, ours.engine.speculator, "; same tokens" if same else "; OTHER TOKENS")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["lookup", "draft", "table"])
    parser.add_argument("model", nargs="?", default="smollm2:135m")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--target", default="1.7B", choices=SHAPES)
    parser.add_argument("--draft", default="135M", choices=[*SHAPES, TRAINED])
    parser.add_argument("--agree", type=float, default=0.8)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--layers", type=float, default=1.0, help="share of the layers that both models have")
    parser.add_argument("--out", type=int, default=N_OUT, help="tokens of a reply")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--threads", type=int, help="default: one for each core")
    parser.add_argument("--cpu-time", action="store_true")
    args = parser.parse_args()
    args.threads = 1 if args.cpu_time else args.threads
    if args.cpu_time:
        use_cpu_time()
    {"lookup": run_lookup, "draft": run_draft, "table": run_table}[args.what](args)


if __name__ == "__main__":
    sys.exit(main())
