"""Kernels, threads and tapes of the CPU backend; threads that follow grammars.

Arguments without a type of their own are addresses of memory.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

KV_SPAN: int
MAX_CONV_KERNEL: int
MAX_EXPERTS: int
MAX_HEAD_DIM: int
LORA_PANEL: int
LORA_ROUNDS: int
MAX_LINEAR_JOBS: int
MAX_LORA_TARGETS: int
MAX_QUERY_TILE: int
MAX_STATE_DIM: int
NOTHING_LEFT: int
NOT_NUMBERS: int
RUN_TAPE: int  # a C function of a tape's address and a pool's: runs the tape, without the interpreter
READ_PAST_END: int
ARENA_TOO_SMALL: int
SAMPLE_ROW_BYTES: int
SPLIT_TOKENS: int

class MappedFile:
    was_cut: bool
    def __init__(self, address: int, n_bytes: int) -> None: ...
    def unmapped(self) -> None: ...

Job = tuple[Matrix, int, int]  # matrix, out, bias (0: none)

def isas() -> list[str]: ...
def cpu_features() -> list[str]: ...
def address_of(array: object) -> int: ...
def crc32c(address: int, n_bytes: int, before: int = 0, by_table: bool = False) -> int: ...
def file_stamp(descriptor: int) -> tuple[int, int]: ...
def has_format(format: str) -> bool: ...
def panel_bytes(format: str, isa: str, cols: int) -> int: ...
def packed_bytes(format: str, isa: str, n_stack: int, rows: int, cols: int) -> int: ...
def pack(
    format: str, isa: str, n_stack: int, rows: int, cols: int, source: int, n_bytes: int, pool: Pool
) -> Matrix: ...
def quantised_row_bytes(cols: int) -> int: ...
def sample(
    isa: str,
    pool: Pool,
    *,
    logits: int,
    stride: int,
    n_rows: int,
    n_vocab: int,
    n_samples: int,
    source: int,
    params: int,
    edits: Sequence[int],
    masks: Sequence[int],
    tokens: int,
    probabilities: int,
) -> None: ...
def logprobs(
    isa: str,
    pool: Pool,
    *,
    logits: int,
    stride: int,
    n_rows: int,
    n_vocab: int,
    n_samples: int,
    source: int,
    tokens: int,
    n_top: int,
    width: int,
    logprobs: int,
    top_ids: int,
    top_values: int,
) -> None: ...

WORD_BYTES: int
MEETING_PLACES: int
WAITED_LATE: int
WAITED_ABANDONED: int

def end_with(parent: int, pipe: int) -> bool: ...

class SharedWords:
    def __init__(self, address: int, n_words: int) -> None: ...
    def get(self, word: int) -> int: ...
    def set(self, word: int, value: int) -> None: ...
    def wait(self, word: int, wanted: int, limit_s: float) -> int: ...
    def abandon(self) -> None: ...
    @property
    def is_abandoned(self) -> bool: ...

class Meeting:
    def __init__(
        self,
        *,
        words: SharedWords,
        first_word: int,
        memory: int,
        place_bytes: int,
        n_ranks: int,
        rank: int,
        limit_s: float,
    ) -> None: ...
    @property
    def how(self) -> int: ...
    def all_reduce(self, x: int, n: int, out: int) -> int: ...
    def all_gather(self, x: int, widths: Sequence[int], out: int) -> int: ...
    def broadcast(self, x: int, n: int, source: int) -> int: ...

class Pager:
    arena_bytes: int
    staging_bytes: int
    def __init__(
        self, *, by_usage: bool, slot_bytes: int, n_slots: int, n_readers: int, n_ahead: int, stall_s: float = 10.0
    ) -> None: ...
    def add_file(self, descriptor: int, label: str) -> int: ...
    def add(
        self, format: str, isa: str, n_stack: int, rows: int, cols: int, places: Sequence[tuple[int, int, int]]
    ) -> tuple[Matrix, int]: ...
    def forget(self) -> None: ...
    def take_failure(self) -> tuple[int, str]: ...
    def is_direct(self, file: int) -> bool: ...
    def counts(self) -> tuple[int, int, int, int, float]: ...

class ExpertWorker:
    def __init__(
        self,
        *,
        posted: int,
        served: int,
        facts: int,
        rows: int,
        experts: int,
        shares: int,
        result: int,
        most_rows: int,
        width: int,
        n_active: int,
        n_out: int,
        stall_s: float = 10.0,
    ) -> None: ...
    def add(
        self,
        *,
        run: int,
        tape: int,
        pool: int,
        n_rows: int,
        rows: int,
        experts: int,
        shares: int,
        result: int,
        n_experts: int,
    ) -> int: ...
    @property
    def n_expected(self) -> int: ...
    def expect(self, n: int) -> None: ...
    def wait(self, number: int, most_s: float) -> bool: ...
    def take_failure(self, first: int, last: int) -> str: ...
    def close(self) -> bool: ...

class Pool:
    def __init__(self, n_threads: int) -> None: ...
    @property
    def n_threads(self) -> int: ...
    @property
    def address(self) -> int: ...

class Matrix:
    def __init__(self, format: str, isa: str, n_stack: int, rows: int, cols: int) -> None: ...
    @property
    def n_panels(self) -> int: ...
    @property
    def n_bytes(self) -> int: ...
    @property
    def format(self) -> str: ...
    @property
    def shape(self) -> tuple[int, int, int]: ...
    @property
    def dense(self) -> bool: ...
    def rows_before(self, panel: int) -> int: ...
    def fill(self, begin: int, end: int, source: int, n_bytes: int, pool: Pool) -> None: ...

class KvLayer:
    def __init__(
        self,
        *,
        keys: int,
        values: int,
        key_type: str,
        value_type: str,
        n_heads: int,
        head_dim: int,
        page_size: int,
        latent: int,
    ) -> None: ...

class StateSequences:
    def __init__(
        self, *, counts: int, positions: int, starts: int, slots: int, state: int, state_width: int
    ) -> None: ...

class Tape:
    def __init__(self, isa: str) -> None: ...
    def __len__(self) -> int: ...
    @property
    def address(self) -> int: ...
    def clear(self) -> None: ...
    def run(self, pool: Pool) -> None: ...
    def run_timed(self, pool: Pool) -> list[int]: ...
    def norm(
        self,
        *,
        n_rows: int,
        width: int,
        x: int,
        y: int,
        gain: int,
        sum: int,
        out: int,
        eps: float,
        scale: float,
        quantised_out: int,
    ) -> None: ...
    def head_norm(self, *, n_rows: int, n_heads: int, dim: int, x: int, gain: int, out: int, eps: float) -> None: ...
    def columns(self, *, n_rows: int, width: int, x_width: int, begin: int, x: int, out: int) -> None: ...
    def join_heads(self, *, n_rows: int, n_heads: int, x_dim: int, y_dim: int, x: int, y: int, out: int) -> None: ...
    def layer_norm(
        self,
        *,
        n_rows: int,
        n_heads: int,
        width: int,
        x: int,
        y: int,
        gain: int,
        bias: int,
        sum: int,
        out: int,
        eps: float,
        scale: float,
        quantised_out: int,
    ) -> None: ...
    def add(self, *, n_rows: int, width: int, x: int, y: int, out: int, scale: float) -> None: ...
    def activate(
        self, *, n_rows: int, width: int, gate: int, up: int, out: int, act: str, quantised_out: int
    ) -> None: ...
    def softcap(self, *, n_rows: int, width: int, x: int, out: int, cap: float) -> None: ...
    def clip(self, *, n_rows: int, width: int, x: int, out: int, limit: float) -> None: ...
    def temper(
        self, *, n_rows: int, width: int, positions: int, x: int, out: int, beta: float, period: int, offset: int
    ) -> None: ...
    def gather_rows(self, *, n_rows: int, width: int, rows: int, x: int, out: int) -> None: ...
    def with_rows(
        self,
        *,
        n_rows: int,
        width: int,
        buffer_width: int,
        begin: int,
        row_of: int,
        buffer: int,
        x: int,
        out: int,
        add: bool,
    ) -> None: ...
    def store_rows(
        self, *, n_rows: int, width: int, buffer_width: int, begin: int, row_target: int, x: int, buffer: int
    ) -> None: ...
    def choose(
        self,
        *,
        n_rows: int,
        logits: int,
        stride: int,
        n_vocab: int,
        params: int,
        edits: Sequence[int],
        tokens: int,
        ids: int,
    ) -> None: ...
    def cos_sin(
        self,
        *,
        n_rows: int,
        n_freqs: int,
        positions: int,
        inv_freq: int,
        axis_begins: int,
        out: int,
        scale: float,
    ) -> None: ...
    def rope_and_cache(
        self,
        *,
        n_rows: int,
        n_q_heads: int,
        q: int,
        k: int,
        v: int,
        cos_sin: int,
        n_freqs: int,
        style: str,
        q_gain: int,
        k_gain: int,
        eps: float,
        key_mean: int,
        slots: int,
        kv: KvLayer,
        out: int,
    ) -> None: ...
    def attention(
        self,
        *,
        counts: int,
        positions: int,
        starts: int,
        lengths: int,
        page_table: int,
        n_pages_per_seq: int,
        n_q_heads: int,
        group: int,
        q: int,
        out: int,
        kv: KvLayer,
        scale: float,
        softcap: float,
        window: int,
        chunked: bool,
        partials: int,
        n_spans: int,
        sinks: int,
        slopes: int,
        causal: bool,
        quantised_out: int,
        plain: bool,
    ) -> None: ...
    def causal_conv(
        self, *, seqs: StateSequences, channels: int, kernel: int, x: int, conv: int, bias: int, out: int
    ) -> None: ...
    def delta_rule(
        self,
        *,
        seqs: StateSequences,
        n_k_heads: int,
        n_v_heads: int,
        k_dim: int,
        v_dim: int,
        tiled: bool,
        matrices: int,
        mixed: int,
        z: int,
        beta: int,
        alpha: int,
        decay: int,
        dt_bias: int,
        gain: int,
        eps: float,
        out: int,
    ) -> None: ...
    def state_space(
        self,
        *,
        seqs: StateSequences,
        n_heads: int,
        head_dim: int,
        n_groups: int,
        state_dim: int,
        matrices: int,
        mixed: int,
        dt: int,
        decay: int,
        dt_bias: int,
        skip: int,
        out: int,
    ) -> None: ...
    def gated_norm(self, *, n_rows: int, width: int, n_groups: int, z: int, gain: int, eps: float, x: int) -> None: ...
    def route(
        self,
        *,
        n_rows: int,
        scores: int,
        n_experts: int,
        n_active: int,
        renormalise: bool,
        sigmoid: bool,
        bias: int,
        n_groups: int,
        n_best_groups: int,
        group_top: int,
        scale: float,
        jitter: float,
        factors: int,
        experts: int,
        shares: int,
    ) -> None: ...
    def lora(
        self,
        *,
        n_tiles: int,
        tiles: int,
        rows: int,
        scales: int,
        most: int,
        n_cols: int,
        x: int,
        low: int,
        most_rank: int,
        targets: Sequence[tuple[int, int, int]],
    ) -> None: ...
    def mix(self, *, n_rows: int, width: int, n_active: int, shares: int, x: int, out: int) -> None: ...
    def quantise(self, *, n_rows: int, cols: int, x: int, out: int) -> None: ...
    def linear(self, *, n_rows: int, x: int, quantised: int, jobs: list[Job]) -> None: ...
    def await_pieces(
        self, pager: Pager, pieces: Sequence[tuple[int, int, int]], soon: Sequence[tuple[int, int, int]] = ()
    ) -> None: ...
    def release_pieces(self, pager: Pager, pieces: Sequence[tuple[int, int, int]]) -> None: ...
    def sum_over_ranks(
        self, *, meeting: Meeting, n_rows: int, most_rows: int, width: int, x: int, out: int
    ) -> None: ...
    def join_over_ranks(
        self, *, meeting: Meeting, n_rows: int, most_rows: int, widths: Sequence[int], x: int, out: int
    ) -> None: ...
    def group(self, *, n_rows: int, experts: int, starts: int, order: int, n_experts: int, n_active: int) -> None: ...
    def experts(
        self,
        *,
        x: int,
        quantised: int,
        jobs: list[Job],
        starts: int,
        order: int,
        n_experts: int,
        pairs_per_row: int,
    ) -> None: ...
    def embed(
        self,
        *,
        n_rows: int,
        format: str,
        table: int,
        table_rows: int,
        cols: int,
        ids: int,
        out: int,
        scale: float,
    ) -> None: ...
    def roof(self, *, kind: str, data: int, n_bytes: int, n_repeats: int) -> None: ...
    def roof_work(self, kind: str) -> int: ...

class GrammarIndex:
    def __init__(
        self,
        library: str,
        tokens: Iterable[bytes],
        eos: Sequence[int],
        slices: Sequence[str],
        tokenize: Callable[[str], Sequence[int]],
    ) -> None: ...

class GrammarMatcher:
    def __init__(
        self, index: GrammarIndex, grammar: str, limits: Mapping[str, int], budget: Mapping[str, float]
    ) -> None: ...
    @property
    def busy(self) -> bool: ...
    @property
    def finished(self) -> bool: ...
    @property
    def n_consumed(self) -> int: ...
    @property
    def n_long_steps(self) -> int: ...
    @property
    def n_seen(self) -> int: ...
    @property
    def is_over_budget(self) -> bool: ...
    def copy(self) -> GrammarMatcher: ...
    def fork(self) -> GrammarMatcher: ...
    def consume(self, token: int) -> bool: ...
    def rollback(self, n_tokens: int) -> bool: ...
    def reset(self) -> bool: ...
    def forced(self) -> list[int]: ...
    def mask(self) -> bytes: ...
    def error(self) -> str: ...

class GrammarJob:
    def forced(self) -> list[list[int] | None]: ...
    def wait(self) -> list[int]: ...

class GrammarThreads:
    def __init__(self, n_threads: int) -> None: ...
    def begin(
        self,
        takers: Sequence[GrammarMatcher],
        tokens: Sequence[int],
        forces: Sequence[bool],
        fillers: Sequence[GrammarMatcher],
        rows: Sequence[int],
        masks: object,
    ) -> GrammarJob: ...
