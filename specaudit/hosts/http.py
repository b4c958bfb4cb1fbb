"""The one door to package indexes: a client set up like pip, byte ranges, and errors mapped to ours."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx2
from unearth.auth import MultiDomainBasicAuth
from unearth.collector import (
    SUPPORTED_CONTENT_TYPES,
    IndexPage,
    LinkCollectError,
    parse_html_page,
    parse_json_response,
)
from unearth.fetchers.sync import PyPIClient
from unearth.link import Link

from specaudit.errors import ConfigurationError, UnreachableError
from specaudit.hosts.pipconfig import PipConfig, redacted

#: Answers that may be different a moment later.
_TRANSIENT = {408, 429, 500, 502, 503, 504}
_ATTEMPTS = 3
_CHECK = "Check the network, and `pip config list`; or download the wheel elsewhere and use wheel:FILE."
#: What a server of index pages may send at most.
_PAGE_BYTES = 32 << 20
#: Seconds that a page may take in all.
_PAGE_SECONDS = 120.0
#: Headers of an answer that say how it came, not what it is.
_OF_TRANSFER = frozenset({"content-encoding", "content-length", "transfer-encoding"})
_CONTENT_RANGE = re.compile(r"bytes (\d{1,15})-(\d{1,15})/(\d{1,15})")
#: What parsers of pages and addresses raise over nonsense.
_NONSENSE = (ValueError, AttributeError, KeyError, TypeError, LookupError, RecursionError, httpx2.InvalidURL)


class NoRangesError(Exception):
    """The server answers with whole files only. Internal: the caller takes another way."""


class Client(PyPIClient):
    """unearth's client; an index that does not answer, or not with a page of links, is remembered in ``failures`` and
    the others are still asked.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.failures: list[str] = []

    def get(self, url: str, *, headers: Mapping[str, str] | None = None) -> httpx2.Response:  # type: ignore[override]
        """Asks for an index page."""
        try:
            answer = self._page(url, headers)
            if answer.status_code < 400:
                _check_page(answer)
        except (httpx2.HTTPError, *_NONSENSE) as bad:
            self.failures.append(f"{redacted(str(url))}: {_words(bad)}")
            raise LinkCollectError(str(bad)) from bad
        if answer.status_code >= 400 and answer.status_code != 404:  # 404: this index does not know the project
            self.failures.append(f"{redacted(str(url))}: HTTP {answer.status_code} {answer.reason_phrase}")
        return answer

    def _page(self, url: str, headers: Mapping[str, str] | None) -> httpx2.Response:
        """One page, read whole; an index that sends without end is given up."""
        until = time.monotonic() + _PAGE_SECONDS
        data = bytearray()
        with self.stream("GET", url, headers=headers) as answer:
            for chunk in answer.iter_bytes():
                data += chunk
                if len(data) > _PAGE_BYTES:
                    raise ValueError(f"larger than {_PAGE_BYTES >> 20} MiB")
                if time.monotonic() > until:
                    raise ValueError(f"it took longer than {_PAGE_SECONDS:g} s")
        kept = [(name, value) for name, value in answer.headers.items() if name.lower() not in _OF_TRANSFER]
        return httpx2.Response(answer.status_code, headers=kept, content=bytes(data), request=answer.request)


def _check_page(answer: httpx2.Response) -> None:
    """Reads the page as unearth will: one that it stumbles over would end the search in the other indexes, too."""
    kind = answer.headers.get("Content-Type", "nothing that says what it is")
    if not kind.lower().startswith(SUPPORTED_CONTENT_TYPES):
        raise ValueError(kind)
    page = IndexPage(Link(str(answer.url)), answer.content, answer.encoding, kind)
    for link in (parse_json_response if "json" in kind.lower() else parse_html_page)(page):
        _ = link.filename, link.parsed.port


def _words(bad: Exception) -> str:
    text = str(bad).rstrip(".") or type(bad).__name__
    return text if isinstance(bad, httpx2.HTTPError) else f"its answer is no page of links ({text})"


def open_client(config: PipConfig) -> Client:
    """An HTTP client with pip's indexes, proxy, certificates, netrc and trusted hosts.

    Raises:
        ConfigurationError: a certificate file cannot be loaded.
    """
    verify = _verify(config)
    try:
        auth = MultiDomainBasicAuth(prompting=False, index_urls=[url for url in config.index_urls if url])
        mounts = {}
        if config.proxy:  # unearth sends requests to trusted hosts past the proxy
            past = httpx2.HTTPTransport(verify=False, proxy=config.proxy)
            mounts = {f"all://{host}": past for host in config.trusted_hosts}
        return Client(
            mounts=mounts,
            verify=verify,
            trusted_hosts=config.trusted_hosts,
            proxy=config.proxy or None,
            timeout=config.timeout,
            follow_redirects=True,
            auth=auth,
        )
    except (ValueError, ImportError, httpx2.InvalidURL) as bad:  # ImportError: a SOCKS proxy
        raise ConfigurationError(
            f"A proxy or a trusted host of pip's configuration cannot be used: {redacted(str(bad))}.",
            "Correct it (see `pip config list`, and the variables HTTP_PROXY, HTTPS_PROXY and ALL_PROXY).",
        ) from bad


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
                part = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
                if answer.status_code != 206 or part is None:
                    raise NoRangesError(redacted(url))
                return _part(url, answer.read(), first, last, *map(int, part.groups()))
        except httpx2.HTTPError as bad:
            if attempt == _ATTEMPTS:
                raise _silent(url, bad) from bad
        except (ValueError, httpx2.InvalidURL) as bad:  # redirected to something that is no address
            raise _silent(url, bad) from bad
    raise AssertionError("the last attempt returns or raises")


def _part(url: str, data: bytes, first: int, last: int, start: int, end: int, total: int) -> tuple[bytes, int]:
    """The part that was asked for: another one, taken for it, would look like a damaged file."""
    wanted = (first, min(last, total - 1)) if first >= 0 else (max(0, total + first), total - 1)
    if (start, end) != wanted or len(data) != end - start + 1:
        raise UnreachableError(
            f"{redacted(url)} sent bytes {start} to {end} of {total} where {wanted[0]} to {wanted[1]} were asked for.",
            _CHECK,
        )
    return data, total


def stream(client: httpx2.Client, url: str) -> Iterator[bytes]:
    """A whole file in chunks, one after the other.

    Raises:
        UnreachableError: no usable answer, or one that broke off.
    """
    try:
        with client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as answer:
            _refuse_errors(answer, url)
            yield from answer.iter_bytes(1 << 18)
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as bad:
        raise _silent(url, bad) from bad


def _refuse_errors(answer: httpx2.Response, url: str) -> None:
    if answer.status_code >= 400 and answer.status_code != 416:  # 416: this kind of range is not understood
        raise UnreachableError(f"{redacted(url)} answered HTTP {answer.status_code}.", _CHECK)


def _silent(url: str, bad: Exception) -> UnreachableError:
    return UnreachableError(f"{redacted(url)} did not answer in full: {str(bad).rstrip('.')}.", _CHECK)
