"""The bodies of Ollama's requests. A field is honoured, known to change nothing, or refused by name."""

from typing import Any

from msgspec import Struct

from tahr.server.bodies.decoding import Inert
from tahr.server.bodies.sampling_fields import SamplingFields

KeepAlive = str | float | int | None
Format = str | dict[str, Any] | bool | None
Think = bool | str | None


class OllamaOptions(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """`options`; null is the same as not given."""

    num_predict: int | None = None
    num_ctx: int | None = None  # limit: the context the model was loaded with
    tfs_z: float | None = None  # 1, which is off
    penalize_newline: bool | None = None  # true alone is honoured
    logits_all: bool | None = None  # false alone is honoured
    vocab_only: bool | None = None  # false alone is honoured
    speculative: bool | None = None  # Tahr's own

    num_keep: Inert = None  # inert: no context is shifted here
    num_batch: Inert = None
    num_gpu: Inert = None
    main_gpu: Inert = None
    num_thread: Inert = None
    numa: Inert = None
    low_vram: Inert = None
    f16_kv: Inert = None
    use_mmap: Inert = None
    use_mlock: Inert = None


class OllamaFunction(Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] | str | None = None
    index: Inert = None


class OllamaToolCall(Struct, kw_only=True, forbid_unknown_fields=True):
    """A call the model made before."""

    function: OllamaFunction
    id: str | None = None
    type: Inert = None


class OllamaMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[OllamaToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    name: str | None = None


class OllamaBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields that /api/generate and /api/chat share."""

    model: str = ""
    stream: bool | None = None  # null: true
    format: Format = None
    options: OllamaOptions | None = None
    think: Think = None
    keep_alive: KeepAlive = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    truncate: bool | None = None  # false alone is honoured: a prompt that does not fit is refused
    shift: bool | None = None  # false alone is honoured: a reply ends where the context does


class OllamaChatBody(OllamaBody, kw_only=True):
    """The body of /api/chat; without messages it loads the model."""

    messages: list[OllamaMessage] | None = None
    tools: list[Any] | None = None


class OllamaGenerateBody(OllamaBody, kw_only=True):
    """The body of /api/generate; without a prompt it loads the model."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    raw: bool | None = None
    context: list[int] | None = None
    images: list[str] | None = None


class OllamaEmbedBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /api/embed."""

    model: str = ""
    input: str | list[str] | None = None
    truncate: bool | None = None  # null: true
    dimensions: int | None = None
    options: OllamaOptions | None = None
    keep_alive: KeepAlive = None


class OllamaEmbeddingsBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /api/embeddings, the older of the two."""

    model: str = ""
    prompt: str | None = None
    options: OllamaOptions | None = None
    keep_alive: KeepAlive = None


class NamedBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A model by its name, or as older clients say it."""

    model: str | None = None
    name: str | None = None

    @property
    def given(self) -> str:
        return self.model or self.name or ""


class ShowBody(NamedBody, kw_only=True):
    """The body of /api/show."""

    verbose: bool | None = None
    system: Inert = None
    template: Inert = None
    options: Inert = None


class DeleteBody(NamedBody, kw_only=True):
    """The body of DELETE /api/delete."""


class PullBody(NamedBody, kw_only=True):
    """The body of /api/pull."""

    stream: bool | None = None  # null: true
    insecure: bool | None = None
    username: Inert = None
    password: Inert = None


class CopyBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /api/copy."""

    source: str
    destination: str
