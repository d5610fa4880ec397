"""Real HTTP servers on this machine that speak like the Hugging Face hub and the Ollama registry, and can misbehave."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

LFS_BYTES = 1000  # larger files count as stored in LFS


@dataclass
class Served:
    """What a server has, how it misbehaves, and what it was asked."""

    requests: list[tuple[str, str]] = field(default_factory=list)  # (method, path)
    headers: list[dict[str, str]] = field(default_factory=list)
    n_body_bytes: int = 0
    token: str | None = None  # needed for everything, when set
    damage: bytes | None = None  # sent in place of the first bytes of LFS files and blobs
    stall_at: int | None = None  # send so many bytes of a large file, then hang until released
    drop_at: int | None = None  # send so many bytes of a large file, then close; once
    ignore_ranges: bool = False
    fail_times: int = 0  # answer 503 to so many GETs of large files first
    stalled: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""

    def paths(self, method: str | None = None) -> list[str]:
        return [path for verb, path in self.requests if method in (None, verb)]


@dataclass
class Hub(Served):
    """Repositories: id -> file name -> content; the commit follows from the content."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    content_url: str = ""  # LFS files are redirected there, as the hub does to its content network

    def commit(self, repo: str) -> str:
        names = sorted(self.repos[repo].items())
        return hashlib.sha1(repr([(name, sha256(data)) for name, data in names]).encode()).hexdigest()


@dataclass
class Registry(Served):
    """Manifests: repo -> tag -> manifest; blobs: digest -> content."""

    manifests: dict[str, dict[str, Any]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)

    def add(self, repo: str, tag: str, layers: dict[str, bytes]) -> None:
        rows = [
            {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{sha256(data)}", "size": len(data)}
            for kind, data in layers.items()
        ]
        self.manifests.setdefault(repo, {})[tag] = {"schemaVersion": 2, "layers": rows}
        self.blobs |= {f"sha256:{sha256(data)}": data for data in layers.values()}


def own_places(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Keep a test away from the models, the login and the settings of whoever runs it."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TAHR_HOME", str(directory / "home"))
    monkeypatch.setenv("HF_HOME", str(directory / "hf"))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Served

    def log_message(self, format: str, *args: object) -> None:
        return

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def answer(self) -> None:
        with self.served.lock:
            self.served.requests.append((self.command, self.path))
            self.served.headers.append(dict(self.headers.items()))
        try:
            self.route(unquote(urlsplit(self.path).path))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def route(self, path: str) -> None:
        raise NotImplementedError

    def may_read(self) -> bool:
        token = self.served.token
        return token is None or self.headers.get("Authorization") == f"Bearer {token}"

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def send_file(self, data: bytes, etag: str, **headers: str) -> None:
        """A file with everything a download may need: ETag, Range, If-Range, and the faults asked for."""
        served = self.served
        large = len(data) > LFS_BYTES
        if large and self.command == "GET" and served.fail_times > 0:
            served.fail_times -= 1
            return self.reply(503)
        if large and served.damage is not None:
            data = served.damage + data[len(served.damage) :]
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        fresh = self.headers.get("If-Range", f'"{etag}"') == f'"{etag}"'
        start, stop, status = 0, len(data), 200
        if match and fresh and not (large and served.ignore_ranges):
            start, stop, status = int(match[1]), int(match[2] or len(data) - 1) + 1, 206
            headers["Content_Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        self.send_response(status)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(stop - start))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.send_body(data[start:stop], large)
        return None

    def send_body(self, body: bytes, large: bool) -> None:
        served = self.served
        cut = served.stall_at if served.stall_at is not None else served.drop_at
        if large and cut is not None and cut < len(body):
            self.count(cut)
            self.wfile.write(body[:cut])
            self.wfile.flush()
            if served.stall_at is not None:
                served.stalled.set()
                served.release.wait(30)
            served.drop_at = None
            self.close_connection = True
            return
        self.count(len(body))
        self.wfile.write(body)

    def count(self, n_bytes: int) -> None:
        with self.served.lock:  # before the bytes leave: the client may be done before this thread runs again
            self.served.n_body_bytes += n_bytes


class _HubHandler(_Handler):
    served: Hub

    def route(self, path: str) -> None:
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self.with_repo(match[1], match[2] or "main", lambda: self.model_info(match[1]))
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.with_repo(match[1], match[2], lambda: self.resolve(match[1], match[3]))
        else:
            self.reply(404)

    def with_repo(self, repo: str, revision: str, then: Callable[[], None]) -> None:
        if repo in self.served.gated and not self.may_read():
            return self.reply(401, X_Error_Code="GatedRepo", X_Error_Message="Access to this model is restricted.")
        if repo not in self.served.repos:
            return self.reply(404, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        if revision not in ("main", self.served.commit(repo)):
            return self.reply(404, X_Error_Code="RevisionNotFound", X_Error_Message="Invalid rev id")
        return then()

    def model_info(self, repo: str) -> None:
        files = self.served.repos[repo]
        info = {
            "_id": "0",
            "id": repo,
            "modelId": repo,
            "sha": self.served.commit(repo),
            "siblings": [self.sibling(name, data) for name, data in files.items()],
        }
        self.reply(200, json.dumps(info).encode(), Content_Type="application/json")

    @staticmethod
    def sibling(name: str, data: bytes) -> dict[str, Any]:
        row: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": git_sha1(data)}
        if len(data) > LFS_BYTES:
            row["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 134}
        return row

    def resolve(self, repo: str, name: str) -> None:
        data = self.served.repos[repo].get(name)
        if data is None:
            return self.reply(404, X_Error_Code="EntryNotFound", X_Error_Message="Entry not found")
        commit = self.served.commit(repo)
        if len(data) <= LFS_BYTES:
            return self.send_file(data, git_sha1(data), X_Repo_Commit=commit)
        return self.reply(
            302,
            Location=f"{self.served.content_url}/{repo}/{name}",
            X_Repo_Commit=commit,
            X_Linked_Etag=f'"{sha256(data)}"',
            X_Linked_Size=str(len(data)),
        )


class _ContentHandler(_Handler):
    """The content network behind the hub, on another port: it must never see the login."""

    served: Hub

    def answer(self) -> None:
        if "Authorization" in self.headers:
            return self.reply(400)
        return super().answer()

    def route(self, path: str) -> None:
        _, org, name, file = path.split("/", 3)
        data = self.served.repos[f"{org}/{name}"][file]
        self.send_file(data, sha256(data))


class _RegistryHandler(_Handler):
    served: Registry

    def route(self, path: str) -> None:
        if match := re.fullmatch(r"/v2/(.+)/manifests/([^/]+)", path):
            manifest = self.served.manifests.get(match[1], {}).get(match[2])
            if manifest is None:
                return self.reply(404, b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}')
            return self.reply(200, json.dumps(manifest).encode(), Content_Type="application/json")
        if match := re.fullmatch(r"/v2/(.+)/blobs/(sha256:[0-9a-f]{64})", path):
            data = self.served.blobs.get(match[2])
            return self.reply(404) if data is None else self.send_file(data, match[2])
        return self.reply(404)


@contextmanager
def _serving(handler: type[_Handler], served: Served) -> Iterator[str]:
    bound = type("Bound", (handler,), {"served": served})
    server = ThreadingHTTPServer(("127.0.0.1", 0), bound)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        served.release.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """A hub and its content network, each on a port of its own."""
    hub = Hub()
    with _serving(_ContentHandler, hub) as hub.content_url, _serving(_HubHandler, hub) as hub.url:
        yield hub


@contextmanager
def serve_registry() -> Iterator[Registry]:
    """An Ollama registry."""
    registry = Registry()
    with _serving(_RegistryHandler, registry) as registry.url:
        yield registry
