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


def test_no_index_and_no_links_is_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="no index"):
        found(PipConfig(index_urls=()))


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
