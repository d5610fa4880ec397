"""Parts of a tokenizer, however a model's files spell them; and the bytes of a vocabulary's pieces."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tahr.errors import TahrError, TokenizerError
from tahr.text.tokens.long_text import Encoder

MAX_VOCAB = 1 << 22  # ids; the largest released vocabulary has 262,208
SPACE = "▁"  # SentencePiece's space
_BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")
_SECRET = os.urandom(8).hex()


def alias(token: int) -> str:
    """The name of a special token where its own is only text; it is secret, so that no text can hold it."""
    return f"\ufdd0{_SECRET}:{token}\ufdd1"


@dataclass(frozen=True, slots=True)
class LibraryErrors:
    """Turns whatever a damaged file makes the tokenizer library raise into a sentence that begins with `what`.

    The library raises bare `Exception`, and where its Rust code fails an error that is not even one of those.
    """

    what: str

    def __enter__(self) -> None: ...

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: object) -> None:
        if error is None or isinstance(error, TahrError):
            return
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise TokenizerError(f"{self.what} ({shorten(error, str)}): download it again.") from error


def shorten(value: Any, show: Callable[[Any], str] = repr) -> str:
    """A value of a file as an error quotes it."""
    try:
        text = show(value)
    except (ValueError, RecursionError):  # a whole number of thousands of digits, or lists in lists without end
        return f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


@cache
def _byte_of_letter() -> dict[str, int]:
    """The byte-level alphabet: printable bytes are their own letters, the others U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


@cache
def _letter_of_byte() -> dict[int, str]:
    return {byte: letter for letter, byte in _byte_of_letter().items()}


def to_byte_level(text: str) -> str:
    """A text in the alphabet of byte-level BPE."""
    letters = text.encode().decode("latin-1")
    # Translating holds the GIL, so it is done in parts.
    parts = (letters[at : at + 8192] for at in range(0, len(letters), 8192))
    return "".join([part.translate(_letter_of_byte()) for part in parts])


def byte_level(piece: str) -> bytes:
    """Bytes of a piece in the alphabet of byte-level BPE."""
    try:
        return bytes(map(_byte_of_letter().__getitem__, piece))
    except KeyError:  # an added word, written as it reads
        return piece.encode("utf-8", "surrogateescape")


def metaspace(piece: str) -> bytes:
    """Bytes of a SentencePiece piece: `▁` is a space, `<0x0A>` one byte."""
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace(SPACE, " ").encode("utf-8", "surrogateescape")


def wordpiece(piece: str) -> bytes:
    """Bytes of a WordPiece piece: `##` continues the word before, anything else starts one."""
    return piece.removeprefix("##").encode() if piece.startswith("##") else b" " + piece.encode()


@dataclass(frozen=True)
class Ends:
    """Which tokens open and close an encoded text, and which end a reply."""

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    between: tuple[int, ...] = ()  # the two texts of a pair
    bos_id: int | None = None
    eos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Vocab:
    """One vocabulary: text to ids in two ways, its pieces, and the facts that decoding needs."""

    parsing: Encoder  # recognises special tokens in text
    plain: Encoder  # takes them for text, and recognises only their aliases
    pieces: Sequence[str | None]  # None: no token has that id
    special: frozenset[int]
    literal: frozenset[int]  # ids whose piece is plain text rather than in the alphabet
    alphabet: Callable[[str], bytes]
    drops_first_space: bool  # the encoder adds a space in front, so decoding takes it away
    ends: Ends
    # How many bytes of a text may become one byte of its tokens; None: any number, as where space is dropped.
    shrinks: int | None = None


# Tokens that end a reply when a file has them as control or user-defined tokens. GGUF files name one or two of them,
# and fine-tunes often name the wrong one: the base model's marker while the chat template ends turns with another.
END_MARKERS: dict[str, str] = {
    "<|endoftext|>": "GPT-2, Qwen and Phi: end of document",
    "<|end_of_text|>": "Llama 3 and Granite: end of document",
    "<eos>": "Gemma: end of document",
    "<｜end▁of▁sentence｜>": "DeepSeek: end of reply",
    "[EOS]": "Kimi: end of document",
    "<|im_end|>": "ChatML: end of turn",
    "<|eot_id|>": "Llama 3: end of turn",
    "<|eom_id|>": "Llama 3.1: end of message, a tool is to answer",
    "<|eot|>": "Llama 4: end of turn",
    "<|eom|>": "Llama 4: end of message, a tool is to answer",
    "<end_of_turn>": "Gemma: end of turn",
    "<turn|>": "Gemma 4: end of turn",
    "<|tool_response>": "Gemma 4: a tool is to answer",
    "<|end|>": "Phi: end of turn",
    "<|return|>": "gpt-oss: end of reply",
    "<|call|>": "gpt-oss: a tool is to answer",
    "<|flush|>": "Solar: end of reply",
    "<|calls|>": "Solar: a tool is to answer",
    "<EOT>": "code models: end of text",
    "[EOT]": "Kimi: end of turn",
    "<end_of_utterance>": "SmolVLM: end of turn",
    "[e~[": "MiniMax: end of turn",
    "<|fim_pad|>": "Qwen coder: end of a filled-in middle",
    "<|repo_name|>": "Qwen coder: the next repository starts",
    "<|file_sep|>": "Qwen coder: the next file starts",
}
# Markers that only close one message of a reply that goes on, where one of these is present.
_REPLY_GOES_ON = {"<|end|>": {"<|return|>", "<|flush|>"}, "<|eom|>": {"<|start|>"}}


def end_markers(ids: dict[str, int]) -> frozenset[int]:
    """Ids of the well-known end markers among tokens that are no plain text, given as piece -> id."""
    skipped = {marker for marker, others in _REPLY_GOES_ON.items() if others & ids.keys()}
    return frozenset(ids[marker] for marker in END_MARKERS if marker in ids and marker not in skipped)
