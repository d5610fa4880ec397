"""The settings of a server."""

from dataclasses import dataclass, field
from typing import ClassVar

from tahr.config import Range, SamplingParams, check_ranges, whole
from tahr.config.checks import refuse_empty
from tahr.errors import ConfigError

SESSION_CACHES = ("off", "memory")
MAX_BYTES = 2**62  # memory is counted beyond the numbers of 32 bits
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Settings:
    """Frozen and checked; what is loaded and counted lives in `ServerState`."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()  # none: open
    # key of routes that change the server; None: only clients on this machine may use them
    admin_key: str | None = None
    rate_limit: int | None = None  # requests per minute and key
    rate_limit_total: int | None = None  # requests per minute of all keys together
    cors_origins: tuple[str, ...] = ()  # sites whose pages may use it; *: all
    allowed_hosts: tuple[str, ...] = ()  # names clients may use for it, besides addresses and its own; *: all
    max_body_bytes: int = 10 * 2**20
    max_image_body_bytes: int = 64 * 2**20  # where a loaded model reads images; no less than max_body_bytes
    max_audio_body_bytes: int = 25 * 2**20  # a form with a recording; no less than max_body_bytes
    max_audio_s: int = 4 * 3600  # seconds of a recording
    max_images: int = 32  # images of one request
    kept_image_bytes: int = 4 * 2**30  # images of all requests, as towers read them, until their replies are done
    max_requests: int = 4096  # requests in flight, running or waiting
    max_websockets: int = 256  # connections that stay open for /v1/responses
    # limit on the memory of all loaded models; None: all are loaded at the start
    models_budget_bytes: int | None = None
    model_keep_alive_s: float | None = None  # time a model without requests stays loaded; None: for ever
    sleep_after_s: float | None = None  # time after which a model without requests sleeps; None: never
    max_tokens_cap: int | None = None
    request_timeout_s: float | None = None  # 0: none either
    body_timeout_s: float = 60.0
    stream_interval_s: float = 0.025  # between two events of a stream, but its first and last; 0: as tokens come
    keep_alive_s: float = 15.0  # between comments on a silent stream
    reader_timeout_s: float = 120.0  # time for a client to read its waiting bytes
    log_interval_s: float = 5.0  # between throughput lines; 0: none
    drain_timeout_s: float = 30.0  # time between a signal, or POST /drain, and the end of the process
    shared_prefix_cache: bool = False  # clients with different keys share it, too
    session_cache: str = "off"  # "memory": conversations are kept by id
    session_max_entries: int = 128
    session_max_tokens: int = 4096  # limit on one conversation
    response_max_entries: int = 1024  # stored responses of /v1/responses
    response_max_bytes: int = 64 * 2**20  # limit on all of them together
    response_max_age_s: float = 86_400.0
    state_dir: str | None = None  # a folder where stored responses outlive the server, and for files and batches
    file_max_bytes: int = 200 * 2**20  # an uploaded file of requests
    file_store_max_bytes: int = 16 * 2**30  # all files together, results included; a key has as much as it leaves free
    file_store_max_entries: int = 4096
    file_store_max_age_s: float = 30 * 86_400.0
    decision_trace_jsonl: str | None = None  # a file that gets a line per step of the engine
    chrome_trace: str | None = None  # the same for chrome://tracing
    request_dump_dir: str | None = None  # a folder that gets a folder per request
    request_dump_texts: bool = False  # prompts and replies are dumped, too
    otlp_endpoint: str | None = None  # URL of a collector of traces
    sampling: SamplingParams = field(default_factory=SamplingParams)  # defaults of requests; they go before the model's

    RANGES: ClassVar[dict[str, Range]] = {
        "port": whole(0, 65535),
        "rate_limit": whole(1),
        "rate_limit_total": whole(1),
        "max_body_bytes": whole(1024, MAX_BYTES),
        "max_image_body_bytes": whole(1024, MAX_BYTES),
        "max_audio_body_bytes": whole(1024, MAX_BYTES),
        "max_audio_s": whole(1, 1_000_000),
        "max_images": whole(1, 2048),
        "kept_image_bytes": whole(1, MAX_BYTES),
        "max_requests": whole(1),
        "max_websockets": whole(0),
        "models_budget_bytes": whole(1, MAX_BYTES),
        "model_keep_alive_s": Range(0, 1e9),
        "sleep_after_s": Range(0, 1e9),
        "max_tokens_cap": whole(1),
        "request_timeout_s": Range(0, 1e6),
        "body_timeout_s": Range(0, 1e6, low_included=False),
        "stream_interval_s": Range(0, 60),
        "keep_alive_s": Range(0, 1e6, low_included=False),
        "reader_timeout_s": Range(0, 1e6, low_included=False),
        "log_interval_s": Range(0, 1e6),
        "drain_timeout_s": Range(0, 1e6),
        "session_max_entries": whole(1),
        "session_max_tokens": whole(1),
        "response_max_entries": whole(0),
        "response_max_bytes": whole(0, MAX_BYTES),
        "response_max_age_s": Range(0, 1e9),
        "file_max_bytes": whole(1, MAX_BYTES),
        "file_store_max_bytes": whole(0, MAX_BYTES),
        "file_store_max_entries": whole(0),
        "file_store_max_age_s": Range(0, 1e9),
    }

    def __post_init__(self) -> None:
        check_ranges(self, self.RANGES)
        refuse_empty(self, ("admin_key", "state_dir", "decision_trace_jsonl", "chrome_trace", "request_dump_dir"))
        if self.session_cache not in SESSION_CACHES:
            raise ConfigError(
                f"There is no session cache {self.session_cache!r}: take one of {', '.join(SESSION_CACHES)}."
            )
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                f"otlp_endpoint is {self.otlp_endpoint!r}, but it must be a URL, such as http://localhost:4318."
            )
        if not all(key.strip() for key in (*self.api_keys, self.admin_key or "-")):
            raise ConfigError("An API key is empty: give it at least one character, or leave the option out.")

    @property
    def has_sessions(self) -> bool:
        return self.session_cache != "off"

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in LOOPBACK
