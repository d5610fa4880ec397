"""The tokenizer fields of GGUF metadata (`tokenizer.ggml.*`), checked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tahr.errors import TokenizerError
from tahr.text.tokens.vocab import MAX_VOCAB, shorten

KEY = "tokenizer.ggml."


class Kind(IntEnum):
    """Kinds of tokens in `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class VocabSource:
    """The checked arrays of a file's vocabulary, with the rest of its metadata."""

    metadata: Mapping[str, Any]
    pieces: list[str]
    kinds: NDArray[np.int32]

    def get(self, name: str, default: Any = None) -> Any:
        return self.metadata.get(KEY + name, default)

    def text(self, name: str, default: str = "") -> str:
        """A field that is a string."""
        value = self.get(name, default)
        return value if isinstance(value, str) else _refuse(name, value, "a string")

    def flag(self, name: str, default: bool) -> bool:
        """A field that is true or false."""
        value = self.get(name, default)
        return value if isinstance(value, bool) else _refuse(name, value, "true or false")

    def of_kind(self, *kinds: Kind) -> list[int]:
        found: list[int] = np.flatnonzero(np.isin(self.kinds, kinds)).tolist()
        return found

    def numbers(self, name: str, dtype: Any, default: float) -> NDArray[Any]:
        """An array with one entry per token, all `default` where the file has none."""
        return _array(self.metadata, name, len(self.pieces), dtype, default)

    def token_id(self, *names: str) -> int | None:
        """The first of these `..._token_id` fields that the file has."""
        for name in names:
            value = self.get(f"{name}_token_id")
            if value is None:
                continue
            if type(value) is not int or not 0 <= value < len(self.pieces):
                raise TokenizerError(
                    f"The file says {KEY}{name}_token_id is {shorten(value)}, "
                    f"but its vocabulary has {len(self.pieces)} tokens: "
                    "it is damaged or was converted wrongly; download it again."
                )
            return value
        return None


@dataclass(frozen=True)
class TokenizerRecipe:
    """A builder's result: how a stretch of plain text becomes ids, and how pieces read."""

    encode: Callable[[str], list[int]]
    alphabet: Callable[[str], bytes]
    drops_first_space: bool = False
    add_bos: bool = False  # defaults of a file that is silent, as are the two below
    add_eos: bool = False
    add_sep: bool = False
    keeps_text: bool = True  # every byte of a text is in one of its tokens


def read_source(metadata: Mapping[str, Any]) -> VocabSource:
    """The vocabulary fields of a file."""
    tokens = metadata.get(KEY + "tokens", ())
    if KEY + "model" not in metadata or (isinstance(tokens, Sequence) and not len(tokens)):
        raise TokenizerError("The file carries no tokenizer: use a file that has one, or the model's tokenizer.json.")
    pieces = list(tokens) if isinstance(tokens, Sequence) and not isinstance(tokens, str) else []
    if set(map(type, pieces)) != {str} or len(pieces) > MAX_VOCAB:
        raise TokenizerError(
            f"The field {KEY}tokens is no list of 1 to {MAX_VOCAB} strings: the file is damaged; download it again."
        )
    return VocabSource(metadata, pieces, _array(metadata, "token_type", len(pieces), np.int32, Kind.NORMAL))


def _refuse(name: str, value: Any, wanted: str) -> NoReturn:
    raise TokenizerError(
        f"The file says {KEY}{name} is {shorten(value)}, but it must be {wanted}: it is damaged; download it again."
    )


def _array(
    metadata: Mapping[str, Any],
    name: str,
    n: int,
    dtype: Any,
    default: float,
) -> NDArray[Any]:
    if KEY + name not in metadata:
        return np.full(n, default, dtype)
    try:
        values = np.asarray(metadata[KEY + name], dtype)
    except (ValueError, TypeError, OverflowError):
        _refuse(name, metadata[KEY + name], "a list of numbers")
    if values.shape != (n,):
        raise TokenizerError(
            f"The file has {n} tokens but {values.size} entries in {KEY}{name}: it is damaged; download it again."
        )
    return values
