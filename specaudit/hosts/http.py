"""The one door to package indexes: a client set up like pip, byte ranges, and errors mapped to ours."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx2
from unearth.auth import MultiDomainBasicAuth
from unearth.collector import LinkCollectError
from unearth.fetchers.sync import PyPIClient

from specaudit.errors import ConfigurationError, UnreachableError
from specaudit.hosts.pipconfig import PipConfig, redacted

#: Answers that may be different a moment later.
_TRANSIENT = {408, 429, 500, 502, 503, 504}
_ATTEMPTS = 3
_CHECK = "Check the network, and `pip config list`; or download the wheel elsewhere and use wheel:FILE."


class NoRangesError(Exception):
    """The server answers with whole files only. Internal: the caller takes another way."""


class Client(PyPIClient):
    """unearth's client; an index that does not answer is remembered in ``failures`` and the others are still asked."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.failures: list[str] = []

    def get(self, url: str, *, headers: Mapping[str, str] | None = None) -> httpx2.Response:  # type: ignore[override]
        """Asks for an index page."""
        try:
            answer = super().get(url, headers=headers)
        except httpx2.HTTPError as bad:
            self.failures.append(f"{redacted(str(url))}: {bad}")
            raise LinkCollectError(str(bad)) from bad
        if answer.status_code >= 400 and answer.status_code != 404:  # 404: this index does not know the project
            self.failures.append(f"{redacted(str(url))}: HTTP {answer.status_code} {answer.reason_phrase}")
        return answer


def open_client(config: PipConfig) -> Client:
    """An HTTP client with pip's indexes, proxy, certificates, netrc and trusted hosts.

    Raises:
        ConfigurationError: a certificate file cannot be loaded.
    """
    auth = MultiDomainBasicAuth(prompting=False, index_urls=config.index_urls)
    mounts = {}
    if config.proxy:  # unearth sends requests to trusted hosts past the proxy
        past = httpx2.HTTPTransport(verify=False, proxy=config.proxy)
        mounts = {f"all://{host}": past for host in config.trusted_hosts}
    return Client(
        mounts=mounts,
        verify=_verify(config),
        trusted_hosts=config.trusted_hosts,
        proxy=config.proxy or None,
        timeout=config.timeout,
        follow_redirects=True,
        auth=auth,
    )


def _verify(config: PipConfig) -> Any:
    if not config.cert and not config.client_cert:
        return True
    import ssl
    from pathlib import Path

    try:
        if Path(config.cert).is_dir() and config.cert:
            context = ssl.create_default_context(capath=config.cert)
        else:
            context = ssl.create_default_context(cafile=config.cert or None)
        if config.client_cert:
            context.load_cert_chain(config.client_cert)
    except (OSError, ssl.SSLError) as bad:
        raise ConfigurationError(
            f"A certificate of pip's configuration cannot be loaded: {bad}.",
            "Correct `cert` or `client-cert` (see `pip config list`).",
        ) from bad
    return context


def get_range(client: httpx2.Client, url: str, first: int, last: int) -> tuple[bytes, int]:
    """Bytes ``first`` to ``last`` (inclusive) of a file, and the file's size. ``first`` < 0: the last ``-first`` bytes.

    Identity encoding is asked for: a compressing proxy would make offsets meaningless.

    Raises:
        NoRangesError: the server sent, or began to send, the whole file; nothing but its headers was read.
        UnreachableError: no usable answer.
    """
    span = f"bytes={first}-{last}" if first >= 0 else f"bytes={first}"
    headers = {"Range": span, "Accept-Encoding": "identity"}
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with client.stream("GET", url, headers=headers) as answer:
                if answer.status_code in _TRANSIENT and attempt < _ATTEMPTS:
                    time.sleep(0.2 * attempt)
                    continue
                _refuse_errors(answer, url)
                total = answer.headers.get("Content-Range", "").rpartition("/")[2]
                if answer.status_code != 206 or not total.isdigit():
                    raise NoRangesError(redacted(url))
                return answer.read(), int(total)
        except httpx2.HTTPError as bad:
            if attempt == _ATTEMPTS:
                raise _silent(url, bad) from bad
    raise AssertionError("the last attempt returns or raises")


def stream(client: httpx2.Client, url: str) -> Iterator[bytes]:
    """A whole file in chunks, one after the other.

    Raises:
        UnreachableError: no usable answer, or one that broke off.
    """
    try:
        with client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as answer:
            _refuse_errors(answer, url)
            yield from answer.iter_bytes(1 << 18)
    except httpx2.HTTPError as bad:
        raise _silent(url, bad) from bad


def _refuse_errors(answer: httpx2.Response, url: str) -> None:
    if answer.status_code >= 400 and answer.status_code != 416:  # 416: this kind of range is not understood
        raise UnreachableError(f"{redacted(url)} answered HTTP {answer.status_code}.", _CHECK)


def _silent(url: str, bad: Exception) -> UnreachableError:
    return UnreachableError(f"{redacted(url)} did not answer in full: {bad}.", _CHECK)
