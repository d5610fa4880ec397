"""Steps on a CUDA device: the sizes they are padded to, and plans that replay them."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from math import inf
from weakref import WeakSet

import torch
from triton.runtime._async_compile import FutureKernel

from tahr.backends.api import StepInputs, StepLimits, Tensor
from tahr.backends.cuda.compiling import Compiler
from tahr.backends.cuda.host_experts import HostExchange, HostExperts, expect
from tahr.backends.cuda.ops.step_inputs import RecordingContext
from tahr.collector import no_collections

log = logging.getLogger("tahr.backends")

POWERS = [1 << i for i in range(31)]
# Tokens of a step. Small ones: half as many again between powers of two, because launches cost more than padding. Where
# products take the time, padding costs a sixteenth at most; they are cut into tiles of 128 rows anyway.
# the power of two from which sizes lie close together
FINE = 10
ROW_TILE = 128
TOKENS = [
    *(16, 32, 64),
    *(n for i in range(7, FINE) for n in (1 << i, 3 << (i - 1))),
    *(n for i in range(FINE, 30) for n in range(1 << i, 2 << i, max(ROW_TILE, 1 << (i - 4)))),
]
# Sequences of a step of any kind. Large steps lose little by 64 in place of 8: programs of sequences that are not there
# end at once, and the keys of those that are there are shared out no less.
SEQ_COUNTS = [1, 8, 64]
FEW_SEQ_COUNTS = [1, 64]
LONGEST = 4096  # tokens of a step that one sequence may have for itself: longer prompts are cut into such steps
LEAST_FREE_BYTES = 2 << 30  # free memory that a capture needs
# Steps of new sizes in a row without a new kernel, before kernels are compiled when they are launched: where someone
# waits for the step, and where nobody does. Then small steps, which have the most kinds, are looked at in any case.
MAX_MISSES = 4
MAX_MISSES_IDLE = 32
MOST_MULTIPLIED = 512  # tokens of a step whose products run while its kernels are compiled: that opens the library


def buckets(limits: StepLimits, n_decode_tokens: int) -> list[StepLimits]:
    """Sizes of plans, smallest first: steps in which all sequences decode, then steps of any kind by their tokens.

    A step is padded to its bucket, so sizes lie close together; sequences and rows cost little and come in few sizes.
    Sequences that decode have one token each, or up to `n_decode_tokens` with drafts. Rows beyond those to sample from
    are seldom wanted: steps with more come last, in coarse sizes.
    """
    most = limits.n_seqs
    decoding = [
        replace(limits, n_tokens=n * k, n_seqs=n, n_rows=n * k, n_tokens_per_seq=k)
        for k in sorted({1, n_decode_tokens})
        for n in up_to(most, POWERS)
    ]
    mixed = [
        replace(limits, n_tokens=n, n_seqs=n_seqs, n_rows=min(n_seqs * n_decode_tokens, n, limits.n_rows))
        for n in up_to(limits.n_tokens, TOKENS)
        for n_seqs in seq_counts(n, most)
    ]
    n_sampled = min(most * n_decode_tokens, limits.n_rows)
    scored = [
        replace(limits, n_tokens=n, n_rows=min(n, limits.n_rows))
        for n in up_to(limits.n_tokens, POWERS)
        if n > n_sampled < limits.n_rows
    ]
    return decoding + mixed + scored


def seq_counts(n_tokens: int, most: int) -> list[int]:
    """Sequences of steps of so many tokens: never more than tokens."""
    counts = SEQ_COUNTS if n_tokens < 1 << FINE else FEW_SEQ_COUNTS if n_tokens <= LONGEST else FEW_SEQ_COUNTS[1:]
    return up_to(min(most, n_tokens), counts)


def up_to(most: int, sizes: Iterable[int]) -> list[int]:
    """The sizes below `most`, and `most`."""
    return [*takewhile(lambda size: size < most, sizes), most]


class EagerPlan:
    """Calls the function again at each run, padded as a captured graph would be: where kernels are interpreted."""

    def __init__(self, context: RecordingContext, step: Callable[[], Tensor], inputs: StepInputs):
        self._context = context
        self._step = step
        self._inputs = inputs
        self._result: Tensor | None = None

    @property
    def result(self) -> Tensor:
        assert self._result is not None, "the plan has not run yet"
        return self._result

    def run(self) -> None:
        self._inputs.device.upload(self._inputs)
        self._result = computed_from(self._inputs, self._context.run(self._step))


class GraphMemory:
    """Resources that captured graphs share: the memory of their results and temporaries, and the stream of captures."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        self.compiler = Compiler()
        self._n_misses = 0  # walks in a row that found nothing to compile

    def begin_compiling(self, run: Callable[[], Tensor], n_tokens: int, max_misses: float) -> list[FutureKernel]:
        """Begin to compile the kernels that `run` launches; not any more when nothing new is met for a while.

        What fails here fails again when the step runs, where it counts.
        """
        if self._n_misses >= max_misses:
            return []
        self._n_misses += 1
        with self.compiler.walking(n_tokens <= MOST_MULTIPLIED) as walk, suppress(Exception):
            run()
        self._n_misses = 0 if walk.kernels else self._n_misses
        return walk.kernels

    def free_memory(self) -> bool:
        """Whether there is memory for a capture, which cannot take back by itself what torch keeps for later."""
        if torch.cuda.mem_get_info()[0] < LEAST_FREE_BYTES:
            torch.cuda.empty_cache()
        return bool(torch.cuda.mem_get_info()[0] >= LEAST_FREE_BYTES)

    def capture(self, run: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """A graph of what `run` launches, and its result; the device goes on with what it has to do meanwhile."""
        self.free_memory()
        if not self._graphs:
            self.pool = torch.cuda.graph_pool_handle()  # torch takes a pool back with the last graph that used it
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        # Other threads may use the device meanwhile (another engine loads): only this thread must behave.
        # A graph that the collector found to be garbage would be freed, which ends a capture.
        with no_collections(), torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                result = run()
            except BaseException:  # an interrupt too: a capture that goes on would fail all steps after it
                self._give_up(graph)
                raise
            graph.capture_end()
        self._graphs.add(graph)
        return graph, result

    def _give_up(self, graph: torch.cuda.CUDAGraph) -> None:
        with suppress(RuntimeError):
            graph.capture_end()
        self.pool = torch.cuda.graph_pool_handle()  # a capture that failed never lets go of its pool


class GraphPlan:
    """A step that runs op by op the first time, and from the second on as a captured graph: one copy and one launch.

    The first run makes workspaces, which a capture must not do, and before it kernels are compiled. A bucket that is
    met once is never captured.
    """

    def __init__(
        self,
        context: RecordingContext,
        step: Callable[[], Tensor],
        inputs: StepInputs,
        memory: GraphMemory,
        may_capture: bool = True,
        host_experts: HostExperts | None = None,
    ):
        self._context = context
        self._run_ops = partial(context.run, step)
        self._inputs = inputs
        self._memory = memory
        self._graph: torch.cuda.CUDAGraph | None = None
        self._may_capture = may_capture
        self._host_experts = host_experts
        self._requests: Counter[HostExchange] = Counter()  # requests of the graph for experts on the host
        self._kernels: list[FutureKernel] | None = None  # kernels that are being compiled; None: they are not known yet
        self._result: Tensor | None = None

    @property
    def result(self) -> Tensor:
        assert self._result is not None, "the plan has not run yet"
        return self._result

    def prepare(self) -> bool:
        """Begin to compile what the first run launches, unless enough is being compiled; whether the plan can run."""
        compiler = self._memory.compiler
        if self._result is None and self._kernels is None:
            if compiler.is_full:
                return False
            self._begin_compiling(inf if self._inputs.limits.n_tokens <= MOST_MULTIPLIED else MAX_MISSES_IDLE)
        return compiler.settle(self._kernels or ())

    def _begin_compiling(self, max_misses: float) -> list[FutureKernel]:
        n_tokens = self._inputs.limits.n_tokens
        self._kernels = self._memory.begin_compiling(self._run_ops, n_tokens, max_misses)
        return self._kernels

    def run(self) -> None:
        self._inputs.device.upload(self._inputs)
        if self._result is None:
            known = self._kernels
            self._memory.compiler.wait(self._begin_compiling(MAX_MISSES) if known is None else known)
        elif self._graph is None and self._may_capture:
            self._capture()
        if self._graph is None:
            result = self._run_ops()
        else:
            expect(self._requests)
            self._graph.replay()
            self._context.forget()
            result = self.result
        self._result = computed_from(self._inputs, result)

    def _capture(self) -> None:
        """Capture the graph. Without memory for it the step goes on running op by op, slower but right."""
        try:
            self._graph, self._result = self._memory.capture(self._run_ops)
        except torch.OutOfMemoryError:
            self._may_capture = False
            log.warning(
                "Steps of %d tokens stay slow: the GPU has no memory left to capture them. A smaller "
                "--gpu-memory-utilization leaves some.",
                self._inputs.limits.n_tokens,
            )
        finally:
            if self._host_experts:
                self._requests = self._host_experts.take_captured()


def computed_from(inputs: StepInputs, result: Tensor) -> Tensor:
    """The result of a plan on what its inputs hold now."""
    return replace(result, data=replace(result.data, n_live=int(inputs.counts[result.rows.value])))
