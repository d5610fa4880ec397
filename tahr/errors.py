"""Errors that a user can catch. Every message is a full sentence that says what is wrong and what to do about it."""

import re
from pathlib import Path

# Characters that a terminal obeys instead of showing them: control characters, marks that turn the direction of
# writing, and halves of characters, which cannot be written at all. Line breaks and tabs stay.
_UNPRINTABLE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
MAX_CHARS = 2000  # limit on a message: names in files may be of any length


def printable(text: str) -> str:
    """Text from a file or a stranger, with escapes for what a terminal would obey."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)


def install_extra(name: str) -> str:
    """The command that installs an extra: from the checkout this Tahr is, or from a package index."""
    is_checkout = (Path(__file__).parents[1] / "pyproject.toml").is_file()
    return f"`pip install '.[{name}]'` in Tahr's directory" if is_checkout else f"`pip install 'tahr[{name}]'`"


class TahrError(Exception):
    """Base of every error Tahr raises on purpose; `exit_code` is what the command line exits with."""

    exit_code = 4

    def __init__(self, message: str = "") -> None:
        # Messages quote names and values from model files, and end up on terminals.
        super().__init__(printable(message if len(message) <= MAX_CHARS else f"{message[:1500]} ... {message[-400:]}"))


class ConfigError(TahrError):
    """An option or a configuration value is wrong."""

    exit_code = 3


class GrammarError(ConfigError):
    """A grammar, a JSON schema or a regular expression cannot be used."""


class LoadError(TahrError):
    """A model cannot be loaded."""

    exit_code = 6


class ModelNotFound(LoadError):
    """No file, alias or repository answers to that name."""

    exit_code = 2


class CorruptFile(LoadError):
    """A model file is truncated, damaged or not what its name says."""


class UnsupportedModel(LoadError):
    """The file is sound, but its architecture or tokenizer is not one Tahr knows."""

    exit_code = 3


class QuantError(LoadError):
    """A weight format is unknown or cannot be used this way."""

    exit_code = 3


class AdapterError(LoadError):
    """An adapter cannot be used: it is damaged, of another kind, or made for another model."""

    exit_code = 3


class SnapshotIncompatible(LoadError):
    """The bytes are not a snapshot, are damaged, or were made by another version or for another memory layout."""


class ModelFingerprintMismatch(LoadError):
    """A snapshot belongs to other weights than those it is resumed with."""


class DownloadError(TahrError):
    """Fetching a model failed: no network, a refused login, a full disk, or bytes that do not match their digest."""

    exit_code = 6


class TokenizerError(TahrError):
    """A tokenizer cannot be built, or does not belong to the model."""

    exit_code = 3


class TemplateError(TahrError):
    """A chat template does not parse, raised, or ran past its budget."""


class GenerateError(TahrError):
    """Generation failed for one request."""


class GrammarBusy(GenerateError):
    """Too many grammars are being compiled at this moment."""


class ImagesBusy(GenerateError):
    """The images of requests take too much memory at this moment."""


class ModelNotLoaded(GenerateError):
    """The method needs a model, and none is loaded yet."""


class WeightsChanged(GenerateError):
    """A file of a loaded model was changed in place, so what the model computes could not be trusted."""


class ExecutorLost(GenerateError):
    """The processes that compute steps have ended or stand still: what they held in memory is gone."""


class OffloadError(GenerateError):
    """Weights that lie outside memory could not be read when a step needed them."""


class OffloadEof(OffloadError):
    """The source of such weights ended before they did."""


class TensorNotFound(OffloadError):
    """No tensor has the name that a layer pager was asked for."""


class ContextExceeded(ConfigError):
    """A prompt, or a prompt and the reply that is asked for, are longer than the context."""

    def __init__(self, n_prompt: int, context_size: int, max_tokens: int | None = None):
        # None: the prompt alone
        self.n_prompt = n_prompt
        self.context_size = context_size
        self.max_tokens = max_tokens
        reply = "a reply" if max_tokens is None else f"a reply of {max_tokens}"
        super().__init__(
            f"The prompt has {n_prompt} tokens, but the context holds {context_size} and needs room for {reply}: "
            "shorten the prompt or raise the context size."
        )


class KvCacheFull(GenerateError):
    """The request needs more KV pages than the pool has."""


class ServerError(TahrError):
    """The server cannot start or go on."""

    exit_code = 5
