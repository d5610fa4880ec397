"""A vocabulary of letters, a few words and the usual special tokens."""

from typing import Any

NORMAL, UNKNOWN, CONTROL, NAMED, UNUSED, BYTE = range(1, 7)


def tiny(model: str = "gpt2", **changes: Any) -> dict[str, Any]:
    """Metadata of a vocabulary of letters, a few words and the usual special tokens."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    words = ["ab", "abc", "Ġ", "▁", "▁ab"]
    special = ["<s>", "</s>", "<unk>", "<|im_end|>"]
    pieces = special + letters + words + ["[named one]"]
    kinds = [CONTROL, CONTROL, UNKNOWN, CONTROL] + [NORMAL] * (len(letters) + len(words)) + [NAMED]
    fields = {
        "model": model,
        "pre": "gpt-2",
        "tokens": pieces,
        "token_type": kinds,
        "scores": [0.0] * len(special) + [-float(i) for i in range(len(letters) + len(words))] + [0.0],
        "merges": ["a b", "ab c"],
        "bos_token_id": 0,
        "eos_token_id": 1,
        "unknown_token_id": 2,
        "add_bos_token": False,
    }
    fields |= changes
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items() if value is not None}
