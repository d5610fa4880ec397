"""Keys of pages as numbers, for the host."""

from typing import Any

import numpy as np

from tahr.backends.api import KV_BLOCK, Bytes, Floats, kv_sides, stored_head_bytes

TYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16}


def stored_keys(stored: Bytes, dtype: str, head_dim: int) -> Floats:
    """Keys [n_tokens, head_dim] of one head, of the bytes of its keys and values. Those of 8 bits are as queries meet
    them."""
    key_type = kv_sides(dtype)[0]
    stored = np.ascontiguousarray(stored[:, : stored_head_bytes(key_type, head_dim)])
    if key_type == "bf16":
        wide: Floats = (stored.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return wide
    if key_type != "q8_0":
        return np.asarray(stored.view(TYPES[key_type]), np.float32)
    codes = np.ascontiguousarray(stored[:, :head_dim]).view(np.int8)
    scales = np.ascontiguousarray(stored[:, head_dim:]).view(np.float16)
    return np.asarray(codes * np.repeat(scales, KV_BLOCK, axis=1).astype(np.float32), np.float32)
