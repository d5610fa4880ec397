"""The parts of a running server, put together."""

import sqlite3
import time
from collections.abc import Callable
from copy import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from tahr.config import sampling_values
from tahr.generation.kept_images import KeptImages
from tahr.server.conversations.recent import RecentResponses
from tahr.server.conversations.sessions import Sessions
from tahr.server.conversations.store import ResponseStore, StoreLimits
from tahr.server.http.accounts import KeyRing
from tahr.server.http.guard import HostGuard
from tahr.server.http.rate_limit import rate_limits
from tahr.server.kept.batch_store import BatchStore
from tahr.server.kept.file_store import FileLimits, FileStore
from tahr.server.models.pool import ModelPool
from tahr.server.models.registry import ModelRegistry, ServedModel
from tahr.server.models.text_pool import TextPool
from tahr.server.observe.observer import Observers
from tahr.server.observe.otel_metrics import open_otel_metrics
from tahr.server.observe.request_dumps import open_dumps
from tahr.server.observe.request_log import RequestLog
from tahr.server.observe.server_metrics import ServerMetrics
from tahr.server.observe.tracing import open_tracer
from tahr.server.state.admission import Admission
from tahr.server.state.database import MemoryState
from tahr.server.state.keys import StoredKeys
from tahr.server.state.ledger import Ledger
from tahr.server.state.settings import Settings
from tahr.server.state.state_file import StateFile

MakeModel = Callable[[str, str], ServedModel]  # arguments are a name and the model's source


class ServerState:
    """State that handlers share. The parts do not know it, and handlers pass on only the parts that are needed.

    Handlers run on the event loop. What they give to the text pool uses settings, which do not change, models, whose
    table is replaced and not changed, and sessions, which lock.
    """

    def __init__(self, settings: Settings, make_model: MakeModel | None = None):
        self.settings = settings
        self.make_model = make_model
        self.drain: Callable[[], None] = lambda: None  # set by the server, which ends then
        self.is_draining = False
        self.n_pulls = 0  # models that are being fetched
        self.n_sockets = 0  # WebSockets that are open
        self.began = time.monotonic()
        self.models = ModelRegistry(settings.sampling)
        self.pool = ModelPool(
            self.models, settings.models_budget_bytes, settings.model_keep_alive_s, settings.sleep_after_s
        )
        self._file = StateFile(Path(settings.state_dir).expanduser()) if settings.state_dir else None
        self.keys = KeyRing(settings.api_keys)
        self._stored_keys = StoredKeys(self._file, self.keys) if self._file else None
        self.ledger = self._open_ledger()
        self.admission = Admission(
            self.models,
            self.pool,
            settings.max_requests,
            settings.request_timeout_s,
            self.keys,
            self.ledger,
        )
        self.host_guard = HostGuard(settings.host, settings.allowed_hosts, settings.cors_origins)
        self.rate_limits = rate_limits(settings.rate_limit, settings.rate_limit_total)
        self.sessions = Sessions(settings.session_max_entries, settings.session_max_tokens)
        limits = StoreLimits(settings.response_max_entries, settings.response_max_bytes, settings.response_max_age_s)
        self.responses = ResponseStore(limits, keeper=self._file)
        self.recent = RecentResponses(settings.response_max_bytes)
        if self._file:
            self.responses.restore(self._file.load(settings.response_max_bytes))
        kept = open_files(settings) if settings.state_dir else None
        self.files = kept and kept.files
        self.batches = kept and kept.batches
        self.text_pool = TextPool(always_threads=settings.has_sessions)  # a session is longer than what is sent
        self.kept_images = KeptImages(settings.kept_image_bytes)
        self.metrics = ServerMetrics()
        tracer = open_tracer(settings.otlp_endpoint, settings.host)
        otel_metrics = open_otel_metrics(settings.otlp_endpoint, settings.host)
        dumps = open_dumps(settings.request_dump_dir, settings.request_dump_texts, plain_settings(settings))
        self.observers = Observers(
            [self.metrics, RequestLog(), self.ledger, *filter(None, (tracer, otel_metrics, dumps))]
        )

    def _open_ledger(self) -> Ledger:
        try:
            return Ledger(self._file or MemoryState())
        except sqlite3.Error as error:
            assert self._file
            raise self._file.refused(error) from None

    def look_at_keys(self) -> None:
        """Take over keys that were added or revoked; requests of the latter end."""
        if self._stored_keys and self._stored_keys.look():
            self.admission.end_revoked()

    def write_usage(self) -> None:
        """Write what requests have used, with the energy of the models that answered them."""
        engines = {model.name: model.engine for model in self.models.loaded}
        self.ledger.share_energy(lambda name: engines[name].snapshot().energy if name in engines else None)
        self.ledger.flush()

    def for_batches(self) -> "ServerState":
        """A view of the state whose threads for texts no client waits for."""
        made = copy(self)
        made.text_pool = TextPool(always_threads=True)
        return made

    def close(self) -> None:
        """Let go of models, files and threads."""
        self.models.clear()
        self.observers.close()
        self.text_pool.close()
        self.responses.flush(at_once=True)
        self.ledger.flush(at_once=True)
        if self._file:
            self._file.close()


class KeptFiles(NamedTuple):
    """Files and batches."""

    files: FileStore
    batches: BatchStore


def open_files(settings: Settings) -> KeptFiles:
    """Files and batches of the state's folder, which nothing else has open."""
    folder = Path(settings.state_dir or "").expanduser()
    limits = FileLimits(
        settings.file_max_bytes,
        settings.file_store_max_bytes,
        settings.file_store_max_entries,
        settings.file_store_max_age_s,
    )
    files = FileStore(folder / "files", limits)
    batches = BatchStore(folder / "batches", settings.file_store_max_age_s)
    files.is_needed = lambda id: batches.uses(id) is not None
    files.clean(id for each in batches.unfinished for id in each.file_ids)
    return KeptFiles(files, batches)


def plain_settings(settings: Settings) -> dict[str, Any]:
    """The settings as a dump holds them, without the keys."""
    sampling = sampling_values(settings.sampling)
    keys = {"api_keys": len(settings.api_keys), "admin_key": settings.admin_key is not None}
    return asdict(settings) | keys | {"sampling": sampling}
