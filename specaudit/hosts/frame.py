"""The near side of the frame protocol: composes what goes to a Python's stdin, and reads the answer out of its stdout.

An answer is ``\\n--specaudit:<nonce>--\\n``, an 8-byte length, that many bytes of zlib, and their SHA-256. Everything
before the marker is noise (login shells print) and is dropped. Lengths are checked before anything is kept, so a host
can make this side hold at most :data:`MAX_PACKED` compressed and :data:`MAX_RAW` plain bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from specaudit.errors import AnswerError, IncompleteError, IntegrityError, UnreachableError
from specaudit.hosts import far_side
from specaudit.hosts.base import Answer
from specaudit.hosts.shell import printable
from specaudit.words import counted

#: Bytes that may come before an answer: a login shell that prints more is broken.
MAX_NOISE = 16 << 20
#: Bytes of one answer as it travels, and unpacked. The ``.py`` files of vLLM 0.33.0 are 32 MB, 7 MB packed.
MAX_PACKED = 128 << 20
MAX_RAW = 512 << 20
#: Bytes of one request, packed.
MAX_REQUEST = 64 << 20

_DIGEST = 32
#: Bytes of noise that are kept.
_NOISE_TAIL = 600


@cache
def _far_side() -> bytes:
    return files("specaudit.hosts").joinpath("far_side.py").read_bytes()


def compose(script: str, request: Mapping[str, Any], blobs: Mapping[str, bytes], nonce: str, lifetime: int) -> bytes:
    """The program that makes a Python run ``script``: one text, because stdin carries nothing else to ``python -``.

    Raises:
        IntegrityError: the request is larger than :data:`MAX_REQUEST`.
    """
    payload = zlib.compress(far_side.pack({"request": dict(request), "script": script}, dict(blobs)))
    if len(payload) > MAX_REQUEST:
        raise IntegrityError(
            f"A request of {len(payload) >> 20} MiB is larger than the {MAX_REQUEST >> 20} MiB that one call carries.",
            "Send it in several calls.",
        )
    text = base64.b85encode(payload).decode("ascii")
    return _far_side() + f'\n\nserve("{nonce}", {lifetime}, b"{text}")\n'.encode("ascii")


class AnswerReader:
    """Takes an answer out of a stream, chunk by chunk.

    Args:
        label: the host's name, for messages.
        nonce: the one given to :func:`compose`.
    """

    def __init__(self, label: str, nonce: str) -> None:
        self._label = label
        self._marker = far_side.marker(nonce)
        self._buffer = bytearray()
        self._dropped = 0
        self._size: int | None = None
        self._started = False
        self._noise = b""
        self.received = 0

    def feed(self, chunk: bytes) -> bool:
        """Takes more bytes; true once the answer is complete.

        Raises:
            UnreachableError: noise without end, or a length beyond the limit.
        """
        self.received += len(chunk)
        self._buffer += chunk
        if not self._started:
            self._skip_noise()
        if self._started and self._size is None and len(self._buffer) >= 8:
            self._size = int(struct.unpack(">Q", self._buffer[:8])[0])
            del self._buffer[:8]
            if self._size > MAX_PACKED:
                raise UnreachableError(
                    f"{self._label} announced an answer of {self._size} bytes; at most {MAX_PACKED} are taken.",
                    "Check what answers there in place of the program that was sent.",
                )
        return self._size is not None and len(self._buffer) >= self._size + _DIGEST

    def _skip_noise(self) -> None:
        at = self._buffer.find(self._marker)
        drop = at + len(self._marker) if at >= 0 else max(0, len(self._buffer) - len(self._marker))
        self._noise = (self._noise + self._buffer[max(0, drop - _NOISE_TAIL) : drop])[-_NOISE_TAIL:]
        del self._buffer[:drop]
        self._dropped += drop
        self._started = at >= 0
        if not self._started and self._dropped > MAX_NOISE:
            raise UnreachableError(
                f"{self._label} sent more than {MAX_NOISE >> 20} MiB and no answer among them.",
                "Look at what its login scripts print.",
            )

    @property
    def noise(self) -> str:
        """The end of what came in place of an answer, printable: ``This account is currently not available.``"""
        return printable((self._noise + self._buffer).decode("utf-8", "replace").replace("\r", "").strip())

    @property
    def started(self) -> bool:
        """Whether the marker was seen."""
        return self._started

    def answer(self) -> Answer:
        """The complete answer.

        Raises:
            UnreachableError: the answer is not complete.
            AnswerError: its bytes are not those that were sent, or are malformed.
            IncompleteError: the script failed on the host.
        """
        size = self._size
        if size is None or len(self._buffer) < size + _DIGEST:
            raise UnreachableError(
                f"{self._label} stopped in the middle of its answer, after {counted(self.received, 'byte')}.",
                "Try again; if it happens again, look at the host's log.",
            )
        data = bytes(self._buffer[:size])
        if hashlib.sha256(data).digest() != bytes(self._buffer[size : size + _DIGEST]):
            raise self._malformed("its bytes do not have the hash that was sent with them")
        unzip = zlib.decompressobj()
        try:
            raw = unzip.decompress(data, MAX_RAW)
            if not unzip.eof:
                raise self._malformed(f"it unpacks to more than {MAX_RAW >> 20} MiB, or is cut")
            header, blobs = far_side.unpack(raw)
        except (zlib.error, ValueError) as error:
            raise self._malformed(str(error)) from error
        if "failed" in header:
            trace = str(header["failed"]).strip()
            last = printable(trace.splitlines()[-1])[:600] if trace else "?"
            raise IncompleteError(
                f"The script that was sent to {self._label} failed there: {last}",
                "Report it with the host's Python version; trace: " + json.dumps(trace[-1500:]),
            )
        answer = header.get("answer")
        if not isinstance(answer, dict):
            raise self._malformed("its header holds no answer")
        return Answer(answer, blobs)

    def _malformed(self, why: str) -> AnswerError:
        return AnswerError(f"The answer of {self._label} is malformed: {why}.", "Try again.")
