"""A TCP forwarder on loopback that counts bytes and can delay each direction, as a long line would."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from types import TracebackType


class Forwarder:
    """Listens on :attr:`port` and forwards to ``target`` on loopback.

    Args:
        target: the port behind it.
        delay: seconds that each byte is under way in each direction; the order stays, the rate is not limited.
    """

    def __init__(self, target: int, delay: float = 0.0) -> None:
        self._target = target
        self._delay = delay
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self._stopping = threading.Event()
        self.reset()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def reset(self) -> None:
        """Counts from here: bytes to the target, bytes from it, and how often the direction changed to it.

        ``turns`` is a lower bound of the round trips that a client waited for.
        """
        self.sent = self.received = self.turns = 0
        self._last_sent = False

    def __enter__(self) -> Forwarder:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        pairs: dict[socket.socket, socket.socket] = {}
        waiting: deque[tuple[float, socket.socket, bytes]] = deque()
        clients: set[socket.socket] = set()
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._stopping.is_set():
                now = time.monotonic()
                pause = min(0.1, max(0.0, waiting[0][0] - now)) if waiting else 0.1
                for key, _ in selector.select(pause):
                    stream = key.fileobj
                    assert isinstance(stream, socket.socket)
                    if stream is self._listener:
                        client, _ = self._listener.accept()
                        server = socket.create_connection(("127.0.0.1", self._target))
                        for one in (client, server):
                            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                            selector.register(one, selectors.EVENT_READ)
                        pairs[client], pairs[server] = server, client
                        clients.add(client)
                        continue
                    try:
                        data = stream.recv(1 << 16)
                    except ConnectionError:
                        data = b""
                    if not data:
                        selector.unregister(stream)
                    self._count(stream in clients, len(data))
                    waiting.append((time.monotonic() + self._delay, pairs[stream], data))
                while waiting and waiting[0][0] <= time.monotonic():
                    _, target, data = waiting.popleft()
                    self._deliver(target, data)
            for stream in pairs:
                stream.close()

    def _count(self, sent: bool, size: int) -> None:
        if sent:
            self.sent += size
            self.turns += not self._last_sent and size > 0
        else:
            self.received += size
        if size:
            self._last_sent = sent

    def _deliver(self, target: socket.socket, data: bytes) -> None:
        try:
            if data:
                target.sendall(data)
            else:
                target.shutdown(socket.SHUT_WR)
        except OSError:
            return  # that side is gone; the other one will notice
