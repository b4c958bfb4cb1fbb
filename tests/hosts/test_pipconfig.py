"""pip's configuration, held against pip itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from specaudit.errors import ConfigurationError
from specaudit.hosts import pipconfig

CASES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "nothing": ({}, {}),
    "user file": ({".config/pip/pip.conf": "[global]\nindex-url = https://a.example/simple\ntimeout = 7\n"}, {}),
    "old user file loses": (
        {
            ".pip/pip.conf": "[global]\nindex-url = https://old.example/simple\ncert = /old.pem\n",
            ".config/pip/pip.conf": "[global]\nindex-url = https://new.example/simple\n",
        },
        {},
    ),
    "download section wins": (
        {".config/pip/pip.conf": "[global]\nproxy = http://p:1\n[download]\nproxy = http://q:2\n"},
        {},
    ),
    "several values": (
        {
            ".config/pip/pip.conf": "[global]\nextra-index-url =\n  https://b.example/simple\n  https://c.example/simple\n"
            "find-links = /one /two\ntrusted-host = a.example\n  b.example\n"
        },
        {},
    ),
    "variables win": (
        {".config/pip/pip.conf": "[global]\nindex_url = https://file.example/simple\n"},
        {"PIP_INDEX_URL": "https://env.example/simple", "PIP_FIND_LINKS": "/env"},
    ),
    "another file": (
        {"other.conf": "[global]\nclient-cert = /me.pem\n", ".config/pip/pip.conf": "[global]\nclient-cert = /x.pem\n"},
        {"PIP_CONFIG_FILE": "other.conf"},
    ),
    "no file": ({".config/pip/pip.conf": "[global]\nproxy = http://p:1\n"}, {"PIP_CONFIG_FILE": os.devnull}),
    "no index": ({".config/pip/pip.conf": "[global]\nno-index = true\nfind-links = /wheels\n"}, {}),
}


def pip_says(environ: Mapping[str, str]) -> pipconfig.PipConfig:
    """The same, asked of pip: ``pip download`` with every option it would use, shown by ``pip``'s own option parser."""
    script = """
import json
from pip._internal.commands import create_command
command = create_command("download")
values = command.parser.get_default_values()
from pip._internal.models.index import PyPI
names = "index_url extra_index_urls no_index find_links proxy cert client_cert trusted_hosts timeout".split()
found = {name: getattr(values, name) for name in names}
print(json.dumps(found | {"default": found["index_url"] == PyPI.simple_url}))
"""
    import json

    done = subprocess.run([sys.executable, "-c", script], env=dict(environ), capture_output=True, text=True, check=True)
    values = json.loads(done.stdout)
    first = pipconfig.DEFAULT_INDEX if values["default"] else values["index_url"]
    indexes = () if values["no_index"] else (first, *values["extra_index_urls"])
    return pipconfig.PipConfig(
        index_urls=tuple(indexes),
        find_links=tuple(values["find_links"]),
        proxy=values["proxy"] or "",
        cert=values["cert"] or "",
        client_cert=values["client_cert"] or "",
        trusted_hosts=tuple(values["trusted_hosts"]),
        timeout=float(values["timeout"]),
    )


@pytest.mark.parametrize("case", CASES)
def test_the_configuration_is_what_pip_makes_of_it(tmp_path: Path, case: str) -> None:
    files, variables = CASES[case]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    environ = {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "XDG_CONFIG_DIRS": str(tmp_path / "none"),
        **variables,
    }
    if not environ.get("PIP_CONFIG_FILE", "/").startswith("/"):
        environ["PIP_CONFIG_FILE"] = str(tmp_path / environ["PIP_CONFIG_FILE"])
    assert pipconfig.read(environ, prefix=sys.prefix) == pip_says(environ)


def test_the_bundle_that_pips_http_library_obeys_is_obeyed(tmp_path: Path) -> None:
    assert pipconfig.read(
        {"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull, "REQUESTS_CA_BUNDLE": "/ca.pem"}
    ).cert == ("/ca.pem")


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("index-url = https://a.example\n")
    with pytest.raises(ConfigurationError, match=r"pip\.conf cannot be read"):
        pipconfig.read({"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(tmp_path / "pip.conf")})


def test_the_fingerprint_tells_places_apart_and_not_credentials() -> None:
    a, b, c = (
        pipconfig.PipConfig(index_urls=(url,)).fingerprint
        for url in ("https://a.example/simple", "https://b.example/simple", "https://me:secret@a.example/simple")
    )
    assert a != b
    assert a == c


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *(("PIP_INDEX_URL", url) for url in ("nonsense", "http://", "http://[::1", "ftp://a.example/simple")),
        ("PIP_EXTRA_INDEX_URL", "https://a.example/simple https://me:secret@b.example:port/simple"),
        *(("PIP_TIMEOUT", seconds) for seconds in ("x", "-1", "0", "nan", "inf")),
    ],
)
def test_what_cannot_be_used_is_a_configuration(tmp_path: Path, variable: str, value: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        pipconfig.read({"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull, variable: value})
    assert "pip config" in refused.value.hint
    assert "secret" not in str(refused.value)
