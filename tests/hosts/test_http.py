"""The door to package indexes: certificates, proxy, netrc, ranges; real servers on loopback."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import certificates
from support.index import Index, serving

from specaudit.errors import ConfigurationError, TargetError, UnreachableError
from specaudit.hosts.find import find
from specaudit.hosts.http import NoRangesError, get_range, open_client
from specaudit.hosts.pipconfig import PipConfig
from specaudit.hosts.ranges import RangeFile

WHEEL = "vllm-1.0-py3-none-any.whl"


def found(config: PipConfig) -> str:
    with open_client(config) as client:
        build = find(client, config, "vllm==1.0").wheel
        assert build is not None
        return get_range(client, build.url, 0, 4)[0].decode()


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> certificates.Certificates:
    return certificates.make(tmp_path_factory.mktemp("tls"))


def test_the_configured_bundle_is_what_is_trusted(issued: certificates.Certificates) -> None:
    with serving(Index({WHEEL: b"hello, wheel"}), issued.context()) as index:
        assert found(PipConfig(index_urls=(index.url,), cert=str(issued.authority))) == "hello"
        with pytest.raises(UnreachableError, match="certificate"):
            found(PipConfig(index_urls=(index.url,)))


def test_a_trusted_host_needs_no_certificate(issued: certificates.Certificates) -> None:
    with serving(Index({WHEEL: b"hello, wheel"}), issued.context()) as index:
        assert found(PipConfig(index_urls=(index.url,), trusted_hosts=("127.0.0.1",))) == "hello"


def test_the_client_certificate_is_shown_to_those_who_ask(issued: certificates.Certificates) -> None:
    with serving(Index({WHEEL: b"hello, wheel"}), issued.context(client=True)) as index:
        config = PipConfig(index_urls=(index.url,), cert=str(issued.authority), client_cert=str(issued.client))
        assert found(config) == "hello"
        with pytest.raises(UnreachableError):
            found(PipConfig(index_urls=(index.url,), cert=str(issued.authority)))


@pytest.mark.parametrize("field", ["cert", "client_cert"])
def test_a_certificate_that_cannot_be_loaded_is_named(tmp_path: Path, field: str) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        open_client(PipConfig(**{field: str(tmp_path / "bad.pem")}))  # type: ignore[arg-type]


def test_the_proxy_is_asked_for_everything() -> None:
    with serving(Index({WHEEL: b"hello, wheel"})) as proxy:
        config = PipConfig(index_urls=("http://index.invalid/simple",), proxy=proxy.url.removesuffix("/simple"))
        trusting = PipConfig(config.index_urls, proxy=config.proxy, trusted_hosts=("index.invalid",))
        assert found(trusting) == "hello"
        assert {request.partition("/simple")[0].partition("/files")[0] for request in proxy.requests} == {
            "http://index.invalid"
        }


def test_an_index_without_encryption_that_is_not_trusted_is_named() -> None:
    with pytest.raises(UnreachableError, match=r"index\.invalid/simple/vllm/ is plain HTTP.*trusted-host"):
        found(PipConfig(index_urls=("http://me:secret@index.invalid/simple",)))


def test_netrc_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ann password s3cret\n")
    with serving(Index({WHEEL: b"hello, wheel"}, password="ann:s3cret")) as index:
        with pytest.raises(UnreachableError, match="401"):
            found(PipConfig(index_urls=(index.url,)))
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        assert found(PipConfig(index_urls=(index.url,))) == "hello"


def test_one_index_that_is_silent_does_not_hide_another() -> None:
    with serving(Index({})) as gone:
        pass
    with serving(Index({WHEEL: b"hello, wheel"})) as index:
        assert found(PipConfig(index_urls=(gone.url, index.url), timeout=2)) == "hello"


def test_a_release_that_only_a_silent_index_may_have_is_not_called_absent() -> None:
    with serving(Index({})) as gone:
        pass
    with serving(Index({"vllm-2.0-py3-none-any.whl": b""})) as index:
        with pytest.raises(UnreachableError, match=r"no package index that answered, and one did not: http://127"):
            found(PipConfig(index_urls=(gone.url, index.url), timeout=2))
        with pytest.raises(TargetError, match=r"no release vllm==1\.0"):
            found(PipConfig(index_urls=(index.url,)))


@pytest.mark.parametrize("links", [(), ("/no/such/folder",)])
def test_no_index_and_no_links_is_a_configuration_and_the_public_index_is_not_asked(links: tuple[str, ...]) -> None:
    with pytest.raises(TargetError, match="no index"):
        found(PipConfig(index_urls=(), find_links=links))


HTML = {"Content-Type": "text/html"}
JSON = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
NONSENSE = {
    "bytes": (200, b"\xff\xfe\x00" * 99, HTML),
    "no JSON": (200, b"{", JSON),
    "null": (200, b"null", JSON),
    "files that are none": (200, b'{"files": 5}', JSON),
    "file that is none": (200, b'{"files": ["x"]}', JSON),
    "link that is no address": (200, b'<a href="http://[bad/vllm-1.0-py3-none-any.whl">x</a>', HTML),
    "something else": (200, b"x", {"Content-Type": "application/octet-stream"}),
    "redirect to itself": (302, b"", {"Location": "/simple/vllm/"}),
    "redirect to another protocol": (302, b"", {"Location": "ftp://127.0.0.1/"}),
    "redirect to a file": (302, b"", {"Location": "file:///etc/passwd"}),
    "no such encoding": (200, b"not compressed", {"Content-Encoding": "gzip", **HTML}),
    "too large": (200, b"<a>" * 2000, HTML),
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_an_index_that_answers_nonsense_is_named_and_does_not_hide_another(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specaudit.hosts.http._PAGE_BYTES", 5000)
    odd = Index({}, answers={"/simple/vllm/": NONSENSE[kind]})
    with serving(odd), serving(Index({WHEEL: b"hello, wheel"})) as index:
        assert found(PipConfig(index_urls=(odd.url, index.url))) == "hello"
        with pytest.raises(UnreachableError, match=r"No package index answered for vllm==1\.0: http://127"):
            found(PipConfig(index_urls=(odd.url,)))


def test_an_index_that_never_comes_to_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specaudit.hosts.http._PAGE_SECONDS", -1.0)
    with serving(Index({WHEEL: b"hello, wheel"})) as index, pytest.raises(UnreachableError, match="took longer than"):
        found(PipConfig(index_urls=(index.url,)))


@pytest.mark.parametrize(
    "told", ["bytes 0-3/12", "bytes 1-5/12", "bytes 0-4/3", "bytes 0-4/99999999999", "bytes 0-0/0", "bytes 0-9/12"]
)
def test_another_part_of_a_file_than_was_asked_for_is_not_taken_for_it(told: str) -> None:
    odd = Index({WHEEL: b""}, answers={f"/files/{WHEEL}": (206, b"hello", {"Content-Range": told})})
    with serving(odd), open_client(PipConfig()) as client:
        url = odd.url.replace("/simple", f"/files/{WHEEL}")
        if told.endswith("/99999999999"):
            with pytest.raises(UnreachableError, match="were asked for"):
                get_range(client, url, -5, 0)
            return
        with pytest.raises(UnreachableError, match="were asked for"):
            get_range(client, url, 0, 4)


@pytest.mark.parametrize("proxy", ["nonsense", "junk://me:secret@127.0.0.1:1", "socks5://127.0.0.1:1"])
def test_a_proxy_that_is_none_is_a_configuration(proxy: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be used") as refused:
        open_client(PipConfig(proxy=proxy))
    assert "secret" not in str(refused.value)


def test_a_server_without_ranges_is_noticed_before_its_file_is_read() -> None:
    with serving(Index({WHEEL: random.Random(0).randbytes(40_000_000)}, ranges="none")) as index:
        with open_client(PipConfig()) as client, pytest.raises(NoRangesError):
            RangeFile(client, index.url.replace("/simple", f"/files/{WHEEL}"))
        assert index.sent < 20_000_000


DATA = random.Random(1).randbytes(300_000)
SPAN = st.tuples(st.integers(0, len(DATA)), st.integers(0, len(DATA) + 1000))


@given(prefetched=st.lists(SPAN, max_size=6), read=st.lists(SPAN, max_size=6), tail=st.integers(1, 5000))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_remote_file_reads_like_the_file_whatever_was_fetched_ahead(
    prefetched: list[tuple[int, int]], read: list[tuple[int, int]], tail: int
) -> None:
    with serving(Index({WHEEL: DATA})) as index, open_client(PipConfig()) as client:
        file = RangeFile(client, index.url.replace("/simple", f"/files/{WHEEL}"), tail)
        file.prefetch(prefetched)
        before = file.fetched
        for first, end in prefetched:
            file.seek(first)
            assert file.read(max(0, end - first)) == DATA[first : max(first, end)]
        assert file.fetched - before <= tail + len(DATA) // 50
        for first, size in read:
            file.seek(first)
            assert file.read(size) == DATA[first : first + size]
        assert file.seek(0, 2) == len(DATA)
