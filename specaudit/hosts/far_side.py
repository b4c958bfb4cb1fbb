"""The far side of the frame protocol: its text is sent ahead of every script, on the stdin of ``PYTHON -I -``.

Stdlib only. It must at least be *parsed* by old Pythons (3.6) so that they can say that they are too old, hence the
quoted annotations. The near side (:mod:`specaudit.hosts.frame`) imports :func:`pack`, :func:`unpack` and
:func:`marker` from here, so that both sides run the same lines.

A script is a module text that defines ``main(request, blobs) -> (header, blobs)``: ``request`` and ``header`` are JSON
objects, ``blobs`` map names to bytes.
"""

import base64
import hashlib
import json
import os
import signal
import struct
import sys
import traceback
import types
import zlib
from typing import Any

#: zlib level of answers: on ``.py`` files level 3 takes half the time of level 6 for a tenth more bytes.
LEVEL = 3
#: How an interpreter says that it is too old.
TOO_OLD = "specaudit needs Python 3.8 or newer on the host; "


def marker(nonce: str) -> bytes:
    """The bytes that precede an answer; whatever came before them is noise of a login shell."""
    return ("\n--specaudit:" + nonce + "--\n").encode("ascii")


def pack(header: "dict[str, Any]", blobs: "dict[str, bytes]") -> bytes:
    """(header, blobs) -> bytes: 4-byte length, JSON, then the blobs one after the other."""
    index = [[name, len(blobs[name])] for name in blobs]
    head = json.dumps({"header": header, "blobs": index}, separators=(",", ":")).encode("utf-8")
    return b"".join([struct.pack(">I", len(head)), head, *blobs.values()])


def unpack(raw: bytes) -> "tuple[dict[str, Any], dict[str, bytes]]":
    """bytes -> (header, blobs). Raises ``ValueError`` when the parts do not fill the whole exactly."""
    if len(raw) < 4:
        raise ValueError("shorter than its length field")
    end = 4 + struct.unpack(">I", raw[:4])[0]
    if end > len(raw):
        raise ValueError("its header is cut")
    try:
        head = json.loads(raw[4:end].decode("utf-8"))
        header = head["header"]
        index = [(str(name), int(size)) for name, size in head["blobs"]]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError("its header is malformed") from error
    if not isinstance(header, dict) or min([size for _, size in index] or [0]) < 0:
        raise ValueError("its header is malformed")
    if end + sum(size for _, size in index) != len(raw) or len(dict(index)) != len(index):
        raise ValueError("its blobs do not fill it")
    blobs = {}
    for name, size in index:
        blobs[name] = raw[end : end + size]
        end += size
    return header, blobs


def serve(nonce: str, lifetime: int, payload: bytes) -> None:
    """Runs the script in ``payload`` and writes its framed answer to the stdout this process was started with.

    Args:
        nonce: tells the answer from noise.
        lifetime: seconds after which the kernel ends this process, whatever it does (a closed SSH channel does not).
        payload: base85 of zlib of :func:`pack` of ``{"request": …, "script": …}`` and the request's blobs.
    """
    if sys.version_info < (3, 8):  # noqa: UP036
        version = ".".join(str(part) for part in sys.version_info[:3])
        sys.exit(TOO_OLD + sys.executable + " is " + version)
    sys.dont_write_bytecode = True
    signal.alarm(lifetime)
    # Nothing that the script or its children print may mix with the answer.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    call, blobs = unpack(zlib.decompress(base64.b85decode(payload)))
    module = types.ModuleType("specaudit_script")
    # dataclasses look their module up by name.
    sys.modules[module.__name__] = module
    try:
        exec(compile(call["script"], "<specaudit>", "exec"), module.__dict__)
        header, found = module.main(call["request"], blobs)
        body = pack({"answer": header}, found)
    except Exception:
        body = pack({"failed": traceback.format_exc()[-4000:]}, {})
    data = zlib.compress(body, LEVEL)
    out.write(marker(nonce) + struct.pack(">Q", len(data)) + data + hashlib.sha256(data).digest())
    out.close()
