"""What is said about a write that failed, of words as the system, Git and GitPython give them."""

from __future__ import annotations

import errno
import os
from subprocess import CalledProcessError

import pytest
from git.exc import GitCommandError

from specaudit.writing import is_full, why

INIT = ["git", "init", "-q", "/j"]


@pytest.mark.parametrize(
    ("bad", "said", "full"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/j"), "No space left on device", True),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "/j"), "Disk quota exceeded", True),
        (PermissionError(errno.EACCES, "Permission denied", "/j"), "Permission denied", False),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "/j"), "it is a folder", False),
        (
            CalledProcessError(128, INIT, stderr=b"error: unable to write symref for HEAD: No space left on device\n"),
            "No space left on device",
            True,
        ),
        (
            CalledProcessError(128, INIT, stderr=b"error: failed to write /j\nfatal: could not set 'a.b' to '0'.\n"),
            "could not set 'a.b' to '0'",
            False,
        ),
        (CalledProcessError(1, INIT), "git ended with 1", False),
        (CalledProcessError(-9, INIT), "git was ended by a signal (Killed)", False),
        (GitCommandError(["git", "show"], 128, b"fatal: bad object x"), "bad object x", False),
        (GitCommandError(["git", "show"], 128, b"fatal: x: No space left on device"), "No space left on device", True),
        (ValueError("the index\nis damaged."), "the index", False),
        (KeyError(), "KeyError", False),
    ],
)
def test_a_failure_is_told_in_its_last_words_without_a_command_line(bad: Exception, said: str, full: bool) -> None:
    assert (why(bad), is_full(bad)) == (said, full)
