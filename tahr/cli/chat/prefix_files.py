"""Pages of a text in the prefix cache, as bytes: a conversation that is loaded later goes on without its prefill.

The bytes are a snapshot (`tahr.library.inference.snapshot`), so everything that is checked there is checked here.
"""

from collections.abc import Callable
from collections.abc import Sequence as ListOf

from tahr.errors import SnapshotIncompatible
from tahr.kv.codec import layout_of, read_text, write_text
from tahr.kv.prefix import PrefixCache
from tahr.kv.tables import PageTable
from tahr.library.inference.config import InferenceConfig
from tahr.library.inference.snapshot import MAX_HEADER_BYTES, SnapshotInfo, pack, unpack
from tahr.library.llm import LLM
from tahr.models.config.longer import reads_long_texts
from tahr.models.config.record import ModelConfig


def identity_of(weights: str, quantize: str | None, cfg: ModelConfig) -> str:
    """The owner of keys and values: the weights as they were made at load, in a context of their kind."""
    parts = (weights, quantize, "long texts" if reads_long_texts(cfg) else "")
    return " ".join(filter(None, parts))


class PrefixFiles:
    """Keys and values of one model's texts, out of its prefix cache and into it again."""

    def __init__(self, llm: LLM, fingerprint: Callable[[], str]):
        self._llm = llm
        self._engine = llm.engine
        self._fingerprint = fingerprint

    @property
    def max_bytes(self) -> int:
        """The largest file that can be of use."""
        return self._engine.executor.facts.memory.n_bytes + MAX_HEADER_BYTES

    @property
    def _prefix(self) -> PrefixCache:
        prefix = self._engine.scheduler.prefix
        if prefix is None or len(prefix.pools) != 1 or prefix.checkpoints is not None:
            raise SnapshotIncompatible(
                "The keys and values of this model cannot be kept: its prefix cache is off, or its layers have windows "
                "or states."
            )
        return prefix

    def copy(self, tokens: ListOf[int]) -> bytes:
        """The beginning of a text, as much of it as is in the prefix cache."""
        prefix = self._prefix
        executor = self._engine.executor
        dtype = executor.facts.memory.dtype
        with self._llm.lock:
            adapter = self._engine.adapters.default.digest
            (table,) = prefix.lookup(prefix.hashes(adapter), tokens)
            held = tuple(tokens[: len(table.pages) * prefix.page_size])
            rows = read_text(executor.pages, table.pages, 0, len(held))
            table.cut(0)
        config = InferenceConfig(self._llm.name, kv_dtype=dtype)
        family = self._llm.model_config.family
        context = self._llm.context_size
        info = SnapshotInfo(family, self._fingerprint(), config, held, context, dtype, rows.shapes, (), adapter)
        return pack(info, rows)

    def restore(self, data: bytes) -> int:
        """Put a copy into the prefix cache; gives the number of its tokens."""
        prefix = self._prefix
        executor = self._engine.executor
        info, rows = unpack(data)
        self._check(info, prefix.page_size)
        with self._llm.lock:
            table = PageTable(prefix.pools[0])
            try:
                table.take(0, len(info.tokens))
                write_text(executor.pages, table.pages, 0, prefix.page_size, rows)
                prefix.insert(prefix.hashes(info.adapter), info.tokens, [table], len(info.tokens))
            finally:
                table.cut(0)
        return len(info.tokens)

    def _check(self, info: SnapshotInfo, page_size: int) -> None:
        executor = self._engine.executor
        dtype = executor.facts.memory.dtype
        mine = (self._fingerprint(), dtype, self._engine.adapters.default.digest)
        if (info.fingerprint, info.kv_dtype, info.adapter) != mine:
            raise SnapshotIncompatible("The keys and values were computed with other weights, adapters or KV types.")
        layout = layout_of(dtype, read_text(executor.pages, (), 0, 0).shapes, ())
        fits = layout_of(info.kv_dtype, info.kv_shapes, info.state_bytes).digest == layout.digest
        if not fits or len(info.tokens) % page_size or len(info.tokens) > self._llm.context_size:
            raise SnapshotIncompatible("The keys and values do not fit this model or its page size.")
