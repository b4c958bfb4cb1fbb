"""A package index on loopback, real HTTP, that can misbehave the way indexes do."""

from __future__ import annotations

import base64
import hashlib
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Index:
    """One project's files, and how the server serves them.

    ``ranges``: ``all``, ``no-suffix`` (not those that count from the end) or ``none``; ``hashes`` replaces what the
    index promises for a file; ``password`` asks for ``user:password``; ``broken`` answers that many requests with 503;
    ``answers`` replaces the answer (status, body, headers) for a path.
    """

    files: Mapping[str, bytes]
    ranges: str = "all"
    hashes: Mapping[str, str] = field(default_factory=dict)
    password: str = ""
    broken: int = 0
    answers: Mapping[str, tuple[int, bytes, Mapping[str, str]]] = field(default_factory=dict)
    project: str = "vllm"
    url: str = ""
    requests: list[str] = field(default_factory=list)
    sent: int = 0

    def page(self) -> bytes:
        """The project's page (PEP 503)."""
        links = []
        for name, data in self.files.items():
            sha = self.hashes.get(name, hashlib.sha256(data).hexdigest())
            fragment = f"#sha256={sha}" if sha else ""
            links.append(f'<a href="/files/{name}{fragment}">{name}</a>')
        return ("<!DOCTYPE html><html><body>" + "\n".join(links) + "</body></html>").encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    index: Index

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionResetError:  # the client hung up in the middle of an answer, on purpose
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""

    def do_GET(self) -> None:
        index = self.index
        index.requests.append(self.path)
        self.path = re.sub(r"^http://[^/]*", "", self.path)  # asked as a proxy
        if index.password and self.headers.get("Authorization") != "Basic " + _basic(index.password):
            self._answer(401, b"who are you?")
        elif self.path in index.answers:
            self._answer(*index.answers[self.path])
        elif index.broken > 0 and self.path.startswith("/files/"):
            index.broken -= 1
            self._answer(503, b"busy")
        elif self.path == f"/simple/{index.project}/":
            self._answer(200, index.page(), {"Content-Type": "text/html"})
        elif self.path.removeprefix("/files/") in index.files:
            self._file(index.files[self.path.removeprefix("/files/")])
        else:
            self._answer(404, b"no such page")

    def _file(self, data: bytes) -> None:
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        suffix = wanted is not None and not wanted[1]
        if wanted is None or self.index.ranges == "none" or (suffix and self.index.ranges == "no-suffix"):
            self._answer(200, data)
            return
        first = max(0, len(data) - int(wanted[2])) if suffix else int(wanted[1])
        last = len(data) - 1 if suffix or not wanted[2] else min(int(wanted[2]), len(data) - 1)
        part = data[first : last + 1]
        self._answer(206, part, {"Content-Range": f"bytes {first}-{last}/{len(data)}"})

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            for start in range(0, len(body), 1 << 16):
                self.index.sent += self.wfile.write(body[start : start + (1 << 16)])
        except (BrokenPipeError, ConnectionResetError):  # the client has seen enough
            self.close_connection = True


def _basic(userinfo: str) -> str:
    return base64.b64encode(userinfo.encode()).decode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Silent: a handshake that fails is what some tests are about."""


@contextmanager
def serving(index: Index, tls: ssl.SSLContext | None = None) -> Iterator[Index]:
    """Serves an index until the block ends; ``index.url`` is its ``index-url``."""
    handler = type("Handler", (_Handler,), {"index": index})
    server = _Server(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    index.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}/simple"
    try:
        yield index
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
