"""A GPU beside vLLM and its own roof: Qwen3 shapes with random weights, whole requests through the engine.

usage: benchmarks/gpu_cells.py [0.6B] [8B] [30B-A3B] [8B:Q4_K_M] [8B:fp8] [8B:gptq] ... [--requests=1,32] [--kv=fp8]
                               [--chat] [--long] [--profile]

A shape is measured in bf16, or in the weight formats named after it: about one minute each (default: 0.6B and 8B).
fp8 and gptq (4 bits) are those of the layers; the table stays in bf16, and so does the head but with fp8, which has it
in 8-bit codes. --requests measures these numbers of requests alone, --chat with the sampling of chat models, --kv sets
the format of keys and values. --long measures long contexts instead, on an engine that has prepared all sizes of its
steps. --profile prints where the device's time goes in a few kinds of steps, with --long in those of long contexts;
TAHR_PROFILE=1 times ops instead of kernels, and prints them at the end.
"""

import gc
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from statistics import median

import numpy as np
import torch

from silent import Silent
from tahr.backends.api import Weight
from tahr.backends.cuda.backend import CudaBackend
from tahr.backends.cuda.kernels.packed import unpacked_matrix
from tahr.backends.cuda.layouts import kinds, packed
from tahr.backends.cuda.layouts.codes import FORMATS as PACKED_FORMATS
from tahr.backends.cuda.layouts.fp8 import fp8_matrix
from tahr.backends.cuda.profile import time_ops
from tahr.backends.cuda.steps import EagerPlan
from tahr.backends.cuda.weights import has_memory
from tahr.backends.host.profile import VARIABLE
from tahr.collector import rare_collections
from tahr.config import NEUTRAL_SAMPLING, EngineConfig, SamplingParams
from tahr.engine.engine import Engine
from tahr.engine.sequences.resolved import ResolvedRequest
from tahr.executor.output import Output
from tahr.loading.builder import build_engine
from tahr.models.decoder import Decoder
from tahr.models.loader.load import OpenedModel, load
from tahr.models.loader.requantise import gguf_name_of
from tahr.weights.formats import FORMATS, Format
from tahr.weights.quantise.recipes import Recipe, mix_named
from tahr.weights.tensor import HostTensor

N_IN, N_OUT, LONG = 256, 128, 3900
N_LONG = 5  # prompts whose median time counts: they vary by 2 %
REST_S = 0.5  # before each of them: a card that comes from large products is at its limit of power, and slower
N_WARM = 16  # tokens out: by then all requests of a burst have been read, and decode together
N_VOCAB, HEAD_DIM = 151_936, 128
LAYER_FORMATS = ("fp8", "gptq")
N_HIGH = {4: 0, 5: 1, 6: 2, 8: 0}  # words of high bits of a block, by the bits of its codes


@dataclass(frozen=True)
class Shape:
    """A model in numbers, and what vLLM 0.26 gave on an H200: tokens/s by requests at once, the rest in ms; None: not
    measured.
    """

    width: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    n_ffn: int
    tied: bool
    vllm_first_ms: float | None
    vllm_long_ms: float | None
    vllm: dict[int, int]
    vllm_mixed: int | None  # tokens/s of 256 requests of 100 to 1,024 tokens in and out
    n_experts: int = 0  # of `n_ffn` each; 0: one matrix for all tokens
    n_active: int = 1  # experts of a token


SHAPES = {
    "0.6B": Shape(1024, 28, 16, 8, 3072, True, 10.9, 22.0,
                  {1: 608, 4: 2057, 16: 7307, 32: 12858, 128: 30269, 256: 36398}, 21455),
    "8B": Shape(4096, 36, 32, 8, 12288, False, 9.8, 96.5,
                {1: 192, 4: 728, 16: 2618, 32: 4437, 128: 9142, 256: 10432}, 9110),
    "14B": Shape(5120, 40, 40, 8, 17408, False, None, None, {}, None),
    "30B-A3B": Shape(2048, 48, 32, 4, 768, False, 23.3, 91.7,
                     {1: 246, 4: 560, 16: 1212, 32: 1920, 128: 5697, 256: 8789}, None, n_experts=128, n_active=8),
}  # fmt: skip
SHAPES["8B:fp8"] = replace(SHAPES["8B"], vllm_first_ms=11.1, vllm_long_ms=63.0, vllm_mixed=None,
                           vllm={1: 262, 4: 1006, 16: 3663, 32: 5506, 128: 12142, 256: 14252})  # fmt: skip


# ---- a model of random numbers ----------------------------------------------------------------------------------


class RandomBackend(CudaBackend):
    """Makes every matrix on the device: the bytes of its host tensor are never looked at."""

    def __init__(self, recipe: Recipe | None = None, layers: str = ""):
        super().__init__()
        self._recipe = recipe  # None: floats
        self._layers = layers  # fp8, gptq, or bf16 like the rest

    def format_of(self, tensor: HostTensor) -> Format | None:
        """The block format of a matrix; None: floats."""
        if self._layers == "gptq" and ".layers." in tensor.name and len(tensor.shape) == 2:
            return FORMATS["Q4_0"]  # what 4 bits in groups are loaded as
        return self._recipe and self._recipe.format_for(gguf_name_of(tensor.name, {}), tensor.shape)

    def weight(self, tensor: HostTensor) -> Weight:
        form = self.format_of(tensor)
        if form:
            matrix = random_packed(PACKED_FORMATS[form.name][0], tensor.shape, self.device)
            if has_memory(self.device, matrix, self.free_share):
                matrix = replace(matrix, dense=unpacked_matrix(matrix, matrix.dtype))
            n_bytes = replace(matrix, dense=None).n_bytes  # what one row reads
            return Weight(tensor.name, form.name, "packed", *tensor.shape, n_bytes, matrix)
        values = torch.empty(tensor.shape, dtype=torch.bfloat16, device=self.device).normal_(0, 0.02)
        *stack, n_rows, n_cols = tensor.shape
        if self._layers == "fp8" and tensor.name == "lm_head.weight" and (codes := packed.rounded_matrix(values)):
            n_bytes, codes = codes.n_bytes, replace(codes, dense=unpacked_matrix(codes, codes.dtype))
            return Weight(tensor.name, "BF16", "packed", n_rows, n_cols, n_bytes, codes)
        if self._layers == "fp8" and ".layers." in tensor.name and not stack:
            rounded = fp8_matrix(values)
            return Weight(tensor.name, "BF16", "fp8 rows", n_rows, n_cols, rounded.n_bytes, rounded)
        return Weight(tensor.name, "BF16", "dense bf16", n_rows, n_cols, 2 * values.numel(), values, prod(stack))


def random_packed(kind: kinds.CodeKind, shape: tuple[int, ...], device: torch.device) -> packed.CodedMatrix:
    """Random codes, with scales of about the usual size."""
    n_rows, n_cols = shape
    n_blocks = n_cols // kinds.BLOCK
    codes, high = (
        torch.randint(-(2**31), 2**31, (n_rows, n_blocks * n_words), dtype=torch.int32, device=device)
        for n_words in (8 if kind.n_bits == 8 else 4, N_HIGH[kind.n_bits])
    )
    scale = kinds.UNIT * 0.07 / 2**kind.n_bits
    pair = [scale, scale * 2 ** (kind.n_bits - 1) if kind.has_offset else scale]
    scales = torch.tensor(pair, dtype=torch.float16, device=device).view(torch.int32).repeat(n_rows, n_blocks)
    return packed.CodedMatrix(kind, codes, high, scales, (n_rows, n_cols))


def matrix(name: str, *shape: int) -> HostTensor:
    """A tensor without memory: one byte seen everywhere."""
    data = np.broadcast_to(np.zeros(1, np.uint8), 2 * prod(shape))
    return HostTensor(name, FORMATS["BF16"], shape, data)


def ones(name: str, width: int) -> HostTensor:
    return HostTensor(name, FORMATS["F32"], (width,), np.ones(width, np.float32).view(np.uint8))


def tensors(shape: Shape) -> list[HostTensor]:
    q, kv = shape.n_heads * HEAD_DIM, shape.n_kv_heads * HEAD_DIM
    made = [matrix("model.embed_tokens.weight", N_VOCAB, shape.width), ones("model.norm.weight", shape.width)]
    made += [] if shape.tied else [matrix("lm_head.weight", N_VOCAB, shape.width)]
    sizes = {"self_attn.q_proj": (q, shape.width), "self_attn.k_proj": (kv, shape.width),
             "self_attn.v_proj": (kv, shape.width), "self_attn.o_proj": (shape.width, q),
             **ffn_sizes(shape)}  # fmt: skip
    norms = {"input_layernorm": shape.width, "post_attention_layernorm": shape.width,
             "self_attn.q_norm": HEAD_DIM, "self_attn.k_norm": HEAD_DIM}  # fmt: skip
    for i in range(shape.n_layers):
        made += [matrix(f"model.layers.{i}.{name}.weight", *size) for name, size in sizes.items()]
        made += [ones(f"model.layers.{i}.{name}.weight", width) for name, width in norms.items()]
    return made


def ffn_sizes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Feed-forward matrices by name: one of each, or stacks of experts and what scores them."""
    wide, narrow = (shape.n_ffn, shape.width), (shape.width, shape.n_ffn)
    if not shape.n_experts:
        return {"mlp.gate_proj": wide, "mlp.up_proj": wide, "mlp.down_proj": narrow}
    n = shape.n_experts
    stacks = {"gate_proj": (n, *wide), "up_proj": (n, *wide), "down_proj": (n, *narrow)}
    return {"mlp.gate": (n, shape.width), **{f"mlp.experts.{name}": size for name, size in stacks.items()}}


def make_source(shape: Shape) -> OpenedModel:
    """The model as files would give it."""
    config = {
        "model_type": "qwen3_moe" if shape.n_experts else "qwen3",
        "hidden_size": shape.width, "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads, "num_key_value_heads": shape.n_kv_heads, "head_dim": HEAD_DIM,
        "intermediate_size": shape.n_ffn, "vocab_size": N_VOCAB, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "max_position_embeddings": 1 << 18, "tie_word_embeddings": shape.tied, "hidden_act": "silu",
        "num_experts": shape.n_experts, "num_experts_per_tok": shape.n_active, "moe_intermediate_size": shape.n_ffn,
        "norm_topk_prob": True,
    }  # fmt: skip
    return OpenedModel("random", "safetensors", config, {t.name: t for t in tensors(shape)}, 0, {})


def make_decoder(shape: Shape, backend: RandomBackend, lora_rows: int = 0) -> tuple[Decoder, int]:
    """The model on the device, with room for adapters, and the bytes one decoded token reads of it."""
    loaded = load(make_source(shape), backend, lora_rows=lora_rows)
    unread = 0 if shape.tied else loaded.decoder.table.n_bytes  # of an untied table one row is read
    n_idle = max(0, shape.n_experts - shape.n_active)
    unread += n_idle * shape.n_layers * 3 * shape.n_ffn * shape.width * 2
    return loaded.decoder, loaded.n_weight_bytes - unread


# ---- measuring --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Times:
    """Of requests submitted at once: until the first token of the first, until the end, tokens written in all."""

    first_s: float
    all_s: float
    n_tokens: int

    @property
    def decode_rate(self) -> float:
        return (self.n_tokens - 1) / (self.all_s - self.first_s)


PLAIN = replace(NEUTRAL_SAMPLING, temperature=1.0, ignore_eos=True)
GREEDY = replace(PLAIN, temperature=0.0)
CHAT = replace(PLAIN, temperature=0.6, top_k=20, top_p=0.95)  # what chat models ask for
WARM = replace(PLAIN, temperature=0.6)


def serve(engine: Engine, lengths: list[tuple[int, int]], params: SamplingParams) -> Times:
    """Submit requests of (tokens in, tokens out) at once, step until nothing is left."""
    rng = np.random.default_rng(len(lengths))
    requests = [(rng.integers(0, N_VOCAB, n_in).tolist(), replace(params, max_tokens=n_out)) for n_in, n_out in lengths]
    begin, first_s, n_tokens = time.perf_counter(), 0.0, 0
    with rare_collections():  # as `LLM` does
        for tokens, requested in requests:
            engine.submit(ResolvedRequest(tokens, requested, Silent))
        while engine.busy:
            n_tokens += sum(len(tokens) for _, _, tokens in engine.step())
            first_s = first_s or (time.perf_counter() - begin if n_tokens else 0.0)
    if n_tokens != sum(n_out for _, n_out in lengths):
        raise SystemExit(f"Only {n_tokens} of {sum(n_out for _, n_out in lengths)} tokens came: requests failed.")
    return Times(first_s, time.perf_counter() - begin, n_tokens)


def seconds(run: Callable[[], object], n: int = 20) -> float:
    """Device seconds of one run, the mean of several behind each other."""
    run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(n):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / n


def roofs() -> tuple[float, float]:
    """Bytes/s of reading and FLOP/s of bf16 products, as this card gives them."""
    much = torch.ones(1 << 30, device="cuda")
    square = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    return 4 * much.numel() / seconds(much.sum), 2 * 8192**3 / seconds(lambda: square @ square)


def eager_and_graph(engine: Engine, backend: CudaBackend) -> tuple[float, float]:
    """Wall seconds of the same step of one sequence: launched op by op, and as a captured graph."""
    model = engine.executor.executed[0]
    step = model.inputs.within(model.buckets[0][0])

    def forward():  # type: ignore[no-untyped-def]
        return model.decoder.forward(backend, step, model.kv)

    eager = EagerPlan(backend.context, forward, step)
    return wall_seconds(eager.run), wall_seconds(model.plan(backend, (0, 0, 0, 0)).run)


def wall_seconds(run: Callable[[], object], n: int = 20) -> float:
    run()
    run()  # a plan is captured when it runs for the second time
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(n):
        run()
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / n


# ---- the table --------------------------------------------------------------------------------------------------


def row(cell: str, ours: float, unit: str, vllm: float | None, lower: bool = False, note: str = "") -> None:
    if vllm is None:
        print(f"  {cell:<28}{ours:>10,.1f} {unit:<6} {note}", flush=True)
        return
    ratio = vllm / ours if lower else ours / vllm
    print(f"  {cell:<28}{ours:>10,.1f} {unit:<6} vLLM {vllm:>9,.1f}   {ratio:5.2f}x   {note}", flush=True)


def option(name: str) -> str | None:
    """What follows --name= on the command line."""
    return next((arg.partition("=")[2] for arg in sys.argv if arg.startswith(f"--{name}=")), None)


def make_engine(decoder: Decoder, backend: RandomBackend, context: int = 4096, n_seqs: int = 256) -> Engine:
    """An engine for every cell of a kind."""
    config = EngineConfig(
        context_size=context, max_batch_size=n_seqs, max_prefill_batch=n_seqs, prefill_chunk_size=4096,
        max_prefill_tokens=8192,
        prefix_cache=False, kv_bytes=56 << 30, admit_below=1.0, kv_dtype=option("kv"),
    )  # fmt: skip
    return build_engine(backend, decoder, config)[0]


def measure_one(engine: Engine, backend: CudaBackend, shape: Shape, n_bytes: int, roof: tuple[float, float]) -> None:
    """The cells of one request."""
    for lengths in [[(N_IN, 4)], [(LONG, 2)]] * 2:  # compiles the kernels, captures the graphs
        serve(engine, lengths, GREEDY)
    one = serve(engine, [(N_IN, N_OUT)], GREEDY)
    long_s, row_s = (median(prompt_s(engine, rest_s) for _ in range(N_LONG)) for rest_s in (REST_S, 0.0))
    row("1 request, decode", one.decode_rate, "tok/s", shape.vllm[1],
        note=f"{one.decode_rate * n_bytes / roof[0]:.0%} of the memory roof")  # fmt: skip
    row("1 request, first token", one.first_s * 1e3, "ms", shape.vllm_first_ms, lower=True)
    share = layer_flop(shape) * LONG / long_s / roof[1]
    row(f"prefill of {LONG}", long_s * 1e3, "ms", shape.vllm_long_ms, lower=True,
        note=f"{share:.0%} of the matrix roof; one after the other {row_s * 1e3:.1f} ms")  # fmt: skip
    serve(engine, [(N_IN, 4)], GREEDY)  # leaves the inputs of a decode step
    eager_s, graph_s = eager_and_graph(engine, backend)
    print(f"  one step of one request: eager {eager_s * 1e3:.2f} ms, graph {graph_s * 1e3:.3f} ms", flush=True)


def layer_flop(shape: Shape) -> int:
    """Operations of one token in the products of all layers; the head multiplies one row of a prompt only."""
    heads = 2 * (shape.n_heads + shape.n_kv_heads) * HEAD_DIM
    return 2 * shape.n_layers * shape.width * (heads + 3 * shape.n_active * shape.n_ffn)


def prompt_s(engine: Engine, rest_s: float) -> float:
    """Until the first token of a long prompt that comes after a rest."""
    time.sleep(rest_s)
    return serve(engine, [(LONG, 1)], GREEDY).first_s


def make(name: str) -> tuple[Shape, RandomBackend, Decoder, int]:
    """The model of a name such as 8B or 8B:Q4_K_M, and the bytes one decoded token reads of it."""
    size, _, mix = name.partition(":")
    shape = SHAPES[name if name in SHAPES else size]
    heads_per_key = shape.n_heads // shape.n_kv_heads
    is_mix = mix not in ("", *LAYER_FORMATS)
    recipe = Recipe(mix_named(mix)[1], shape.n_layers, heads_per_key, shape.tied) if is_mix else None
    backend = RandomBackend(recipe, "" if is_mix else mix)
    if os.environ.get(VARIABLE) == "1":
        time_ops(backend)
    return shape, backend, *make_decoder(shape, backend)


def measure(name: str, roof: tuple[float, float]) -> None:
    """All cells of one model; vLLM's figures are those of bf16 where others were not measured."""
    began = time.perf_counter()
    shape, backend, decoder, n_bytes = make(name)
    engine = make_engine(decoder, backend)
    ready_s = time.perf_counter() - began
    print(f"Qwen3-{name} shape: {n_bytes / 1e9:.2f} GB read per token, ready in {ready_s:.1f} s", flush=True)
    requested = option("requests")
    sizes = [int(n) for n in requested.split(",")] if requested else list(shape.vllm)
    if 1 in sizes:
        measure_one(engine, backend, shape, n_bytes, roof)
    for n in sizes:
        if n > 1:
            measure_many(engine, n, shape.vllm.get(n))
    if not requested:
        measure_mixtures(engine, shape)


def warm_up(engine: Engine, lengths: list[tuple[int, int]], params: SamplingParams) -> None:
    """Serve a load twice: its steps compile their kernels in their first runs and are captured in their second."""
    serve(engine, lengths, params)
    serve(engine, lengths, params)


def measure_many(engine: Engine, n: int, vllm: int | None) -> None:
    """Equal requests at once."""
    params = CHAT if "--chat" in sys.argv else PLAIN
    warm_up(engine, [(N_IN, N_WARM)] * n, params)
    n_first_runs = engine.steps.sizes.n_first_runs
    times = serve(engine, [(N_IN, N_OUT)] * n, params)
    n_first_runs = engine.steps.sizes.n_first_runs - n_first_runs
    row(
        f"{n} requests",
        times.n_tokens / times.all_s,
        "tok/s",
        vllm,
        note=f"{n_first_runs} first runs of steps",
    )


def measure_mixtures(engine: Engine, shape: Shape) -> None:
    """Requests with the sampling of chat models, and of many lengths."""
    warm_up(engine, [(N_IN, N_WARM)] * 256, CHAT)
    times = serve(engine, [(N_IN, N_OUT)] * 256, CHAT)
    row("256, top-k 20 and top-p 0.95", times.n_tokens / times.all_s, "tok/s", shape.vllm[256])
    rng = np.random.default_rng(0)
    mixed = [(int(rng.integers(100, 1025)), int(rng.integers(100, 1025))) for _ in range(256)]
    warm_up(engine, [(n_in, n_out // 4) for n_in, n_out in mixed], WARM)  # the same sizes of steps
    times = serve(engine, mixed, WARM)
    row("256 of 100-1,024 in and out", times.n_tokens / times.all_s, "tok/s", shape.vllm_mixed)


# ---- long contexts ----------------------------------------------------------------------------------------------

LONG_CONTEXT, LONG_SEQS = 131_072 + 256, 64
DEPTHS = (20_011, 30_000, 60_000, 131_072)
CROWDS = [(16, 16_000, 128), (64, 2_000, 256)]  # requests at once, tokens in and out


def kv_bytes(shape: Shape, n_tokens: int) -> float:
    """Bytes of so many tokens' keys and values."""
    n_bytes = {"fp8": 1.0, "q8_0": 34 / 32}.get(option("kv") or "bf16", 2.0)
    return n_tokens * 2 * shape.n_layers * shape.n_kv_heads * HEAD_DIM * n_bytes


def prepare(engine: Engine) -> None:
    """Compile what samples, and make all first runs of steps, as a server does when it is idle."""
    serve(engine, [(N_IN, N_WARM)] * 8, CHAT)
    serve(engine, [(N_IN, N_WARM)] * 8, GREEDY)
    while engine.steps.sizes.cold(Output.LOGITS) and engine.steps.executor.wants_warming():
        engine.steps.warm_next()


def measure_long(name: str, roof: tuple[float, float]) -> None:
    """A prompt of each depth and decoding behind it, then crowds with the sampling of chat models."""
    shape, backend, decoder, n_bytes = make(name)
    engine = make_engine(decoder, backend, LONG_CONTEXT, LONG_SEQS)
    began = time.perf_counter()
    prepare(engine)
    print(
        f"Qwen3-{name} shape, long contexts: all steps are prepared in {time.perf_counter() - began:.1f} s", flush=True
    )
    for depth in [int(n) for n in (option("depths") or "").split(",") if n] or DEPTHS:
        times = [serve(engine, [(depth, n_out)], GREEDY) for n_out in (1, 1, N_OUT)]
        first_s = median(each.first_s for each in times)
        n_flop = layer_flop(shape) * depth + 2 * shape.n_layers * shape.n_heads * HEAD_DIM * depth**2
        note = f"{n_flop / first_s / 1e12:,.0f} TFLOP/s, {n_flop / first_s / roof[1]:.0%} of the matrix roof"
        row(f"prompt of {depth:,}", first_s * 1e3, "ms", None, note=note)
        rate = times[-1].decode_rate
        share = rate * (n_bytes + kv_bytes(shape, depth + N_OUT // 2)) / roof[0]
        note = f"{share:.0%} of the memory roof"
        row(f"decode behind {depth:,}", rate, "tok/s", None, note=note)
    for n, n_in, n_out in CROWDS:
        n_first_runs = engine.steps.sizes.n_first_runs
        times = serve(engine, [(n_in, n_out)] * n, CHAT)
        note = f"{engine.steps.sizes.n_first_runs - n_first_runs} first runs of steps"
        row(f"{n} requests, {n_in:,} in, {n_out} out", times.n_tokens / times.all_s, "tok/s", None, note=note)


def profile(name: str) -> None:
    """Device time by kernel of decode steps of 1, 32 and 256 sequences, and of a prompt; or behind long prompts."""
    _, backend, decoder, _ = make(name)
    loads = {"decode of 1": [(N_IN, 20)], "decode of 32": [(N_IN, 20)] * 32, "decode of 256": [(N_IN, 20)] * 256,
             "prefill of 256": [(N_IN, 1)], f"prefill of {LONG}": [(LONG, 1)]}  # fmt: skip
    if "--long" in sys.argv:
        loads = {"prefill of 30,000": [(30_000, 1)], "prefill of 30,000, decode of 64": [(30_000, 64)],
                 "prefill of 16,000 and decode of 16, 32 each": [(16_000, 32)] * 16}  # fmt: skip
    longest = max(sum(lengths) for load in loads.values() for lengths in load)
    engine = make_engine(decoder, backend, max(4096, longest + 32))
    for title, lengths in loads.items():
        serve(engine, lengths, CHAT)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            wall_s = serve(engine, lengths, CHAT).all_s
        n_steps = max(n_out for _, n_out in lengths)
        events = sorted(seen.key_averages(), key=lambda e: -e.device_time_total)
        total = sum(e.device_time_total for e in events)
        print(f"{name}, {title}: wall {wall_s * 1e3 / n_steps:.2f} ms, device {total / 1e3 / n_steps:.2f} ms per token")
        for e in events[:12]:
            print(
                f"    {e.device_time_total / 1e3 / n_steps:8.3f} ms  {e.count / n_steps:7.1f} x  {e.key[:80]}",
                flush=True,
            )


def main() -> None:
    """Measure the roofs, then every shape asked for."""
    roof = roofs()
    print(f"{torch.cuda.get_device_name()}: reads {roof[0] / 1e9:,.0f} GB/s, multiplies {roof[1] / 1e12:,.0f} TFLOP/s")
    names = [name for name in sys.argv[1:] if name.partition(":")[0] in SHAPES] or ["0.6B", "8B"]
    for name in names:
        if "--profile" in sys.argv:
            profile(name)
        elif "--long" in sys.argv:
            measure_long(name, roof)
        else:
            measure(name, roof)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
