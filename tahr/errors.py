"""What a user can catch. Every message is a full sentence that says what is wrong and what to do about it."""


class TahrError(Exception):
    """Base of every error Tahr raises on purpose; `exit_code` is what the command line exits with."""

    exit_code = 4


class ConfigError(TahrError):
    """An option or a configuration value is wrong."""

    exit_code = 3


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


class ModelNotLoaded(GenerateError):
    """The method needs a model, and none is loaded yet."""


class KvCacheFull(GenerateError):
    """The request needs more KV pages than the pool has."""


class ServerError(TahrError):
    """The server cannot start or go on."""

    exit_code = 5
