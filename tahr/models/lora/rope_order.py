"""The rows of query and key heads in the order the model has them: halves (0, d/2) or pairs (0, 1)."""

from tahr.errors import AdapterError
from tahr.models.config.record import ModelConfig
from tahr.weights.tensor import HostTensor

# Families whose checkpoints hold queries and keys in halves order and whose GGUF files in pairs order. Others keep one
# order in both.
REORDERED = frozenset(
    [
        *("llama", "mistral", "ministral", "ministral3", "mixtral", "smollm3", "internlm3", "minicpm"),
        *("granite", "granitemoe", "granitemoeshared"),
    ]
)


def to_pairs(name: str, b: HostTensor, cfg: ModelConfig) -> HostTensor:
    """Turn rows from the order of checkpoints to that of GGUF files, if the linear makes queries or keys."""
    n_heads = heads_of(name, cfg)
    return reordered(b, n_heads, (2, -1)) if n_heads else b


def to_halves(name: str, b: HostTensor, cfg: ModelConfig) -> HostTensor:
    """The reverse."""
    n_heads = heads_of(name, cfg)
    return reordered(b, n_heads, (-1, 2)) if n_heads else b


def heads_of(name: str, cfg: ModelConfig) -> int:
    """How many heads the rows of a linear are; 0 where their order does not matter."""
    return {"q_proj": cfg.n_heads, "k_proj": cfg.n_kv_heads}.get(name.rpartition(".")[2], 0)


def reordered(b: HostTensor, n_heads: int, two: tuple[int, int]) -> HostTensor:
    """Rows of each head, seen as a table of that shape, column by column."""
    if len(b.shape) != 2 or not b.shape[0] or b.shape[0] % (2 * n_heads):
        raise AdapterError(f"Tensor {b.name} has the shape {list(b.shape)}, which {n_heads} heads do not share evenly.")
    rows = b.data.reshape(n_heads, *two, b.n_bytes // b.shape[0])
    return HostTensor(b.name, b.format, b.shape, rows.swapaxes(1, 2).reshape(-1))
