"""How much the header of a weight file may list: each thing becomes objects many times larger than its bytes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeaderLimits:
    """Far above any real file of a kind."""

    n_tensors: int
    n_json_bytes: int  # header of safetensors, with some hundred bytes for each tensor
    n_metadata: int  # values of a GGUF
    n_text_bytes: int  # all strings of a GGUF together
    # A file of tens of gigabytes (a sparse one takes no space) could else hold billions, which are walked through one
    # by one and take eight bytes each, or more.
    n_items: int  # all arrays of a GGUF together


MODEL = HeaderLimits(
    n_tensors=1 << 17, n_json_bytes=32 << 20, n_metadata=1 << 16, n_text_bytes=1 << 28, n_items=1 << 24
)
# Clients of a server name adapters while others wait. Those of mixtures with thousands of experts have more tensors,
# but no family of ours runs them.
ADAPTER = HeaderLimits(
    n_tensors=1 << 15, n_json_bytes=8 << 20, n_metadata=1 << 12, n_text_bytes=1 << 24, n_items=1 << 20
)
