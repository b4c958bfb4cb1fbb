"""The near side of the patch agent: sends it to a machine, and turns answers into values, refusals into errors."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from specaudit.errors import IntegrityError, JournalError, RefusedError, SpecauditError
from specaudit.hosts.bundle import bundle
from specaudit.threads import to_the_end

if TYPE_CHECKING:
    from specaudit.hosts.base import Answer

State = Literal["clean", "patched", "interrupted", "busy"]

#: Seconds for one request: a patch is a few hundred kB, but a network file system may take long to sync it.
DEADLINE = 120.0

#: The agent's modules, each after those that it imports.
AGENT = tuple(f"specaudit.patching.{name}" for name in ("agent_files", "agent_journal", "agent_store", "agent"))

_CHANGING = ("apply", "revert", "forget")


class Caller(Protocol):
    """What a machine must offer for the agent: see :class:`specaudit.hosts.base.Machine`."""

    @property
    def label(self) -> str:
        """How the user named it."""
        ...

    def call(
        self,
        script: str,
        request: Mapping[str, Any],
        *,
        blobs: Mapping[str, bytes] = ...,
        python: str | None = None,
        deadline: float = 60.0,
    ) -> Answer:
        """Runs a script there."""
        ...


@dataclass(frozen=True, slots=True)
class FileState:
    """One touched file: SHA-256 now, before everything, and as the standing applications left it (``None``: absent)."""

    path: str
    now: str | None
    original: str | None
    expected: str | None

    @property
    def word(self) -> str:
        """patched | original | absent | changed | missing; absent: a patch's own file, and it is not there (yet)."""
        if self.now == self.expected and self.expected != self.original:
            return "patched"
        if self.now == self.original:
            return "absent" if self.now is None else "original"
        return "missing" if self.now is None else "changed"


@dataclass(frozen=True, slots=True)
class Standing:
    """What the agent says about one engine.

    ``applied`` holds the applications that stand, oldest first, as they were sent; ``leftovers`` is true when an
    interrupted run left its folder and nothing else. ``identity`` is the same for one engine under several names of one
    machine, or of several names of a machine.
    """

    state: State
    folder: str
    applied: tuple[Mapping[str, Any], ...]
    files: tuple[FileState, ...]
    leftovers: bool
    pending: Mapping[str, Any] | None
    identity: str

    @property
    def recipes(self) -> tuple[str, ...]:
        """Names of the recipes that stand."""
        return tuple(str(a["recipe"]) for a in self.applied)

    def going(self, recipes: Collection[str] | None = None) -> tuple[Mapping[str, Any], ...]:
        """The applications that a revert of some recipes (all by default) takes back, interrupted reverts included."""
        begun = (self.pending or {}).get("going", ())
        return tuple(a for a in self.applied if recipes is None or a["recipe"] in (*recipes, *begun))

    def goal(self, recipes: Collection[str] | None = None) -> Mapping[str, str | None]:
        """What that revert brings files to, by path: a SHA-256, ``None`` where a file is deleted.

        What an interrupted run left is taken back with it.
        """
        goal: dict[str, str | None] = dict(self.pending["goal"]) if self.pending else {}
        for application in reversed(self.going(recipes)):
            goal.update((change["path"], change["before"]) for change in reversed(application["changes"]))
        return goal

    @property
    def drifted(self) -> tuple[FileState, ...]:
        """Files that are not as the standing applications left them."""
        return tuple(f for f in self.files if f.now != f.expected) if self.state == "patched" else ()


class AgentClient:
    """The agent on one machine, for one engine.

    Args:
        machine: where it runs.
        root: the folder that holds the package.
        engine: the package.
        python: interpreter that runs the agent; default the machine's own choice.
        label: how the user named the place, for messages; default the machine's name.
    """

    def __init__(
        self, machine: Caller, root: str, engine: str, python: str | None = None, label: str | None = None
    ) -> None:
        self.machine, self.root, self.engine, self.python = machine, root, engine, python
        self.label = label or machine.label

    def status(self) -> Standing:
        """What stands, without changing anything."""
        header = self._call("status").header
        return Standing(
            state=header["state"],
            folder=header["folder"],
            applied=tuple(header["applied"]),
            files=tuple(FileState(f["path"], f["now"], f["original"], f["expected"]) for f in header["files"]),
            leftovers=header["leftovers"],
            pending=header["pending"],
            identity=header["identity"],
        )

    def apply(self, applications: Sequence[Mapping[str, Any]], blobs: Mapping[str, bytes]) -> tuple[str, ...]:
        """Carries out applications, all or none; returns the changed paths.

        Raises:
            RefusedError: it was refused, or failed and was undone.
        """
        return tuple(self._call("apply", blobs, applications=list(applications)).header["changed"])

    def revert(self, recipes: Sequence[str] | None = None) -> Mapping[str, Any]:
        """Takes applications back (all of them by default), and whatever an interrupted run left.

        Returns:
            ``reverted`` (recipe names); ``restored``, ``deleted`` and ``untouched`` (paths that got their content back,
            that a patch had added, and that were right already); ``left`` (folders that hold someone else's files, and
            what someone else has put into the agent's own folder).

        Raises:
            PatchError: a file was changed by someone else (the message shows how), or a later application is in
                the way.
        """
        request: dict[str, Any] = {} if recipes is None else {"recipes": list(recipes)}
        return self._call("revert", **request).header

    def fetch(self) -> tuple[Mapping[str, Any], Mapping[str, bytes]]:
        """The machine's journal and every content it keeps, by SHA-256."""
        answer = self._call("fetch")
        return answer.header["journal"], answer.blobs

    def forget(self) -> Mapping[str, Any]:
        """Drops the machine's journal and leaves the engine's files as they are.

        Returns:
            ``forgotten`` (recipe names) and ``left`` (what someone else has put into the agent's own folder).
        """
        return self._call("forget").header

    def _call(self, operation: str, blobs: Mapping[str, bytes] | None = None, /, **request: Any) -> Answer:
        whole = {"op": operation, "root": self.root, "engine": self.engine, **request}

        def call() -> Answer:
            return self.machine.call(bundle(AGENT), whole, blobs=blobs or {}, python=self.python, deadline=DEADLINE)

        # Cut in the middle, a change would be left half done on a machine that this process cannot reach any more.
        answer = to_the_end(call) if operation in _CHANGING else call()
        error = answer.header.get("error")
        if error is not None:
            raise _error(self.label, operation, error, answer.blobs)
        return answer


#: What to do about it; see :mod:`specaudit.advice` for TARGET.
_HINTS = {
    "changed": "Plan again: specaudit patch TARGET --recipe NAME.",
    "interrupted": "Undo it first: specaudit patch revert TARGET.",
    "already": "Nothing is to be done; see specaudit patch status TARGET.",
    "locked": "Wait until it has finished, then look at specaudit patch status TARGET.",
    "stacked": "Take both back: name both with --recipe, or leave --recipe out to take everything back.",
    "unknown": "See what is applied: specaudit patch status TARGET.",
    "owner": "Run as the owner of the files, or with --sudo.",
    "transfer": "Try again.",
    "terminated": "See specaudit patch status TARGET.",
    "missing": "Check the target; specaudit scan TARGET says which engine it finds there.",
    "journal": "Reinstall the engine (pip install --force-reinstall), then: specaudit patch forget TARGET.",
    "foreign": "Keep that change elsewhere and undo it, then revert again; or keep everything as it is and drop the "
    "journal: specaudit patch forget TARGET.",
    "folder": "See what it is, move it away, then try again.",
    "unreadable": "Run as the owner of the engine's files, or with --sudo.",
}
#: The same for what the system refused, by what stands now, and by what was asked for where nothing is half done.
_HALF = {
    "interrupted": "Some files may be changed and others not: repair what is in the way, then undo it: "
    "specaudit patch revert TARGET.",
    "unknown": "Repair what is in the way, or get permission (--sudo), then look at specaudit patch status TARGET.",
}
_WHOLE = {
    "apply": "Nothing is left half done; free space or get write permission (--sudo), or use --emit FILE.patch "
    "instead.",
    "revert": "Nothing is left half done; free space or get write permission (--sudo), then try again.",
    "forget": "The engine's files are as they were; get write permission (--sudo), then try again.",
}
_ASKED = "Nothing was to be changed; repair what is in the way, or get permission (--sudo), then try again."


def _error(label: str, operation: str, error: Mapping[str, Any], blobs: Mapping[str, bytes]) -> SpecauditError:
    kind, message = str(error.get("kind")), f"{label}: {error.get('message')}"
    hint = _HINTS.get(kind, "See specaudit patch status TARGET.")
    if kind == "os":
        hint = _HALF.get(str(error.get("state"))) or _WHOLE.get(operation, _ASKED)
        if error.get("left"):
            message += f" Left, because specaudit did not make what is there: {', '.join(error['left'])}."
    if kind == "path":
        hint = "Nothing was changed. A folder of the engine is a link to elsewhere: put the folder itself in its place."
        return IntegrityError(message, hint)
    if kind == "foreign":
        message += "\n" + "".join(_difference(f, blobs) for f in error.get("foreign", ()))
    return JournalError(message, hint) if kind == "journal" else RefusedError(kind, message, hint)


def _difference(foreign: Mapping[str, Any], blobs: Mapping[str, bytes]) -> str:
    path = str(foreign["path"])
    if foreign["now"] is None:
        return f"{path} was deleted\n"
    if not foreign["now"]:
        return f"{path} is no file any more\n"
    ours, now = blobs.get(f"expected/{path}"), blobs.get(f"now/{path}", b"")
    if ours is None:
        return f"{path} appeared\n"
    lines = (ours.decode("utf-8", "replace").splitlines(True), now.decode("utf-8", "replace").splitlines(True))
    return "".join(difflib.unified_diff(*lines, f"{path} (as patched)", f"{path} (now)", n=2))
