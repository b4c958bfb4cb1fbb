"""How pip is configured here: which indexes, through which proxy, with which certificates.

The files and variables that ``pip config debug`` lists are read in pip's own order (global, user, environment's, then
``PIP_CONFIG_FILE``, then ``PIP_*``; later wins), sections ``[global]`` before ``[download]``. Passwords stay in memory:
nothing here prints or stores an URL without :func:`redacted`.
"""

from __future__ import annotations

import configparser
import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from specaudit.errors import ConfigurationError

#: Stands for the index that pip asks when it is told of none; :mod:`.find` knows it from its library.
DEFAULT_INDEX = ""
_TRUE = {"1", "true", "yes", "on", "y", "t"}


@dataclass(frozen=True, slots=True)
class PipConfig:
    """What matters of pip's configuration for finding and reading one release."""

    index_urls: tuple[str, ...] = (DEFAULT_INDEX,)
    find_links: tuple[str, ...] = ()
    proxy: str = ""
    cert: str = ""
    client_cert: str = ""
    trusted_hosts: tuple[str, ...] = ()
    timeout: float = 15.0

    @property
    def fingerprint(self) -> str:
        """SHA-256 of where releases come from, without credentials: what a cached choice of a build depends on."""
        places = (*map(redacted, self.index_urls), "", *map(redacted, self.find_links))
        return hashlib.sha256("\n".join(places).encode()).hexdigest()


def redacted(url: str) -> str:
    """The URL without user name and password."""
    return re.sub(r"(?<=://)[^/@\s]+@", "", url)


def read(environ: Mapping[str, str] | None = None, prefix: str = sys.prefix) -> PipConfig:
    """Reads pip's configuration.

    Args:
        environ: environment variables; default those of this process.
        prefix: the virtual environment whose ``pip.conf`` counts.

    Raises:
        ConfigurationError: a configuration file is not readable as one, or ``timeout`` is no number.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, str] = {}
    for file in _files(environ, prefix):
        values.update(_section_values(file))
    values.update(_variables(environ))
    indexes = () if values.get("no-index", "").lower() in _TRUE else _indexes(values)
    return PipConfig(
        index_urls=indexes,
        find_links=tuple(values.get("find-links", "").split()),
        proxy=values.get("proxy", ""),
        # The two variables that pip's own HTTP library obeys.
        cert=values.get("cert", "") or environ.get("REQUESTS_CA_BUNDLE", "") or environ.get("CURL_CA_BUNDLE", ""),
        client_cert=values.get("client-cert", ""),
        trusted_hosts=tuple(values.get("trusted-host", "").split()),
        timeout=_seconds(values.get("timeout") or values.get("default-timeout") or "15"),
    )


def _indexes(values: Mapping[str, str]) -> tuple[str, ...]:
    found = (values.get("index-url", "").strip() or DEFAULT_INDEX, *values.get("extra-index-url", "").split())
    for url in found:
        if url != DEFAULT_INDEX and not _is_address(url):
            raise ConfigurationError(
                f"pip's index {redacted(url)!r} is no address.", "Correct it (see `pip config list`): https://…/simple."
            )
    return found


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return bool(parts.netloc) if parts.scheme in ("http", "https") else parts.scheme == "file"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
        if not 0 < seconds < 1e6:
            raise ValueError(text)
        return seconds
    except ValueError:
        raise ConfigurationError(
            f"pip's timeout is no number of seconds: {text!r}.", "Correct it with `pip config set global.timeout 15`."
        ) from None


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name[4:].lower().replace("_", "-"): value
        for name, value in environ.items()
        if name.startswith("PIP_") and name != "PIP_CONFIG_FILE" and value
    }


def _files(environ: Mapping[str, str], prefix: str) -> Iterator[Path]:
    override = environ.get("PIP_CONFIG_FILE", "")
    if override == os.devnull:  # pip: no configuration file is read at all
        return
    home = Path(environ.get("HOME") or os.path.expanduser("~"))  # of an account that has none, as pip takes it
    if sys.platform == "darwin":
        yield Path("/Library/Application Support/pip/pip.conf")
        user = home / "Library/Application Support/pip/pip.conf"
        user = user if user.parent.is_dir() else home / ".config/pip/pip.conf"
    else:
        for folder in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep):
            yield Path(folder, "pip/pip.conf")
        yield Path("/etc/pip.conf")
        user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config", "pip/pip.conf")
    yield home / ".pip/pip.conf"
    yield user
    yield Path(prefix, "pip.conf")
    if override:
        yield Path(override)


def _section_values(file: Path) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(file, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as bad:
        raise ConfigurationError(
            f"{file} cannot be read as pip's configuration: {str(bad).splitlines()[0]}", "Correct or remove the file."
        ) from bad
    found: dict[str, str] = {}
    for section in ("global", "download"):
        if parser.has_section(section):
            found.update((name.replace("_", "-"), value) for name, value in parser.items(section))
    return found
