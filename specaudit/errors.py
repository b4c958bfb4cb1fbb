"""The exception tree. Every error carries what happened and what the user can do next.

SpecauditError                  exit 2
├── UsageError                  exit 2   the command line or a document the user gave is wrong
│   ├── TargetError             exit 2   a target cannot be understood, or holds nothing to examine
│   ├── ConfigurationError      exit 2   a speculative configuration, an inventory or a rule document is wrong
│   └── RecipeRefused           exit 2   a recipe's preconditions do not hold on this tree
├── UnreachableError            exit 3   a host or an index did not answer, or refused
│   ├── HostKeyError            exit 3   a host key is unknown, changed or revoked
│   └── DeadlineError           exit 3   an answer took longer than allowed
├── IncompleteError             exit 3   part of a target could not be examined
│   ├── ChangedError            exit 3   because a file is no longer what it was when the examination began
│   └── FaultError              exit 3   because of a mistake in this program (:mod:`specaudit.faults`)
├── IntegrityError              exit 2   bytes do not have the hash they were promised with
│   └── AnswerError             exit 3   what a machine sent is not what it announced, or makes no sense
├── CacheError                  exit 2   the cache folder cannot be used
└── PatchError                  exit 2   a change could not be made, and was undone
    ├── RefusedError            exit 2   a machine's agent refused it, or undid it
    ├── JournalError            exit 2   because what a machine keeps of earlier changes cannot be read
    └── LeftError               exit 130 Ctrl-C came after a change was sent: it may stand
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the program."""

    CLEAN = 0
    FINDINGS = 1
    ERROR = 2
    INCOMPLETE = 3
    INTERRUPTED = 130
    #: As a program that SIGPIPE ended, so that a gate behind ``| head`` and ``pipefail`` never passes unseen.
    READER_GONE = 141


def exit_of(codes: Iterable[Exit]) -> Exit:
    """The exit code of a command from those of its targets, each of which is clean or has its error's code.

    One target has its own. Of several, one that failed for whatever reason leaves the answer incomplete, since the
    others were examined or changed; only where all of them fail for what the user wrote, nothing came of it.
    """
    each = set(codes)
    if Exit.ERROR in each and len(each) > 1:
        return Exit.INCOMPLETE
    return max(each, default=Exit.CLEAN)


class SpecauditError(Exception):
    """Anything this program reports to its user.

    Args:
        message: what happened, one sentence, naming the file, host or option concerned.
        hint: what the user can do next, one sentence.
    """

    code: Exit = Exit.ERROR

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()

    def __reduce__(self) -> tuple[type[SpecauditError], tuple[str, str]]:
        # BaseException pickles args alone, which would lose the hint between processes.
        return type(self), (self.message, self.hint)


class UsageError(SpecauditError):
    """The command line, or a document that the user gave, is wrong."""


class TargetError(UsageError):
    """A target cannot be understood, or holds nothing to examine."""


class ConfigurationError(UsageError):
    """A speculative configuration, an inventory or a rule document is wrong."""


class RecipeRefused(UsageError):
    """A recipe's preconditions do not hold on this tree; nothing was changed."""


class UnreachableError(SpecauditError):
    """A host or an index did not answer, or refused."""

    code = Exit.INCOMPLETE


class HostKeyError(UnreachableError):
    """A host key is unknown, has changed or was revoked."""


class DeadlineError(UnreachableError):
    """An answer took longer than allowed."""


class IncompleteError(SpecauditError):
    """Part of a target could not be examined; what was found is still reported."""

    code = Exit.INCOMPLETE


class ChangedError(IncompleteError):
    """A file is no longer what it was when the examination began, or is not there any more."""


class FaultError(IncompleteError):
    """Something could not be done because of a mistake in this program."""


class IntegrityError(SpecauditError):
    """Bytes do not have the hash that they were promised with."""


class AnswerError(IntegrityError):
    """What a machine sent is not what it announced, or makes no sense; nothing of it is used."""

    code = Exit.INCOMPLETE


class CacheError(SpecauditError):
    """The cache folder cannot be used."""


class PatchError(SpecauditError):
    """A change could not be made; whatever had been done was undone."""


class RefusedError(PatchError):
    """The agent on a machine answered that it changed nothing, or undid what it had begun: nothing of this run stands.

    Args:
        kind: its word for the reason, such as ``already`` or ``locked``.
    """

    def __init__(self, kind: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.kind = kind


class JournalError(PatchError):
    """What a machine keeps of earlier changes, to take them back, cannot be read."""


class LeftError(PatchError):
    """Ctrl-C ended a command that had sent a change to a machine: the change may stand."""

    code = Exit.INTERRUPTED
