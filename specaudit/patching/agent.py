"""The patch agent: the script that changes an installed engine on its own machine (stdlib only, Python >= 3.8).

It is sent there as text and knows nothing of recipes. A request is ``{"op": "status" | "apply" | "revert" | "fetch" |
"forget", "root": FOLDER, "engine": NAME, …}``. Everything that it must know later is kept beside the engine, in
``ROOT/.specaudit-ENGINE``, so that any machine can take a change back:

    lock                held (flock) by the one writer
    journal.json        which files were touched, what they were, which applications stand, what is under way
    blobs/SHA256        every content that was replaced or written
    originals/KEY       a hard link to the inode that was replaced: bringing it back restores bytes, mode, owner, times,
                        attributes and the link count of a file that a cache shares
    pyc/KEY-NAME        compiled files of touched sources, set aside

How a change survives SIGKILL, a full disk and a power cut:

1. an empty journal is written, blobs and originals are stored, then it names the transaction as ``pending`` (one
   rename);
2. every new content is written to a hidden file beside its target and synced, before any target is touched;
3. hashes are checked once more, then each target is replaced by a rename, in the order of the request;
4. the journal records the application instead of the pending transaction (one rename).

Until 4, ``revert`` undoes what it finds, whatever it finds: each file is brought to the state that the journal
promises. A file that is in none of the states that the journal knows was changed by someone else, and that is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import stat
from typing import TYPE_CHECKING

from specaudit.patching.agent_files import NO_FILE, Refused, digest, make_folder, names_in, real_folder, sync_folder
from specaudit.patching.agent_store import Store, explain, identity

if TYPE_CHECKING:
    from typing import Any

    from specaudit.patching.agent_files import Blobs, Header


#: What has become of a file that has no content.
_WORDS = {None: "is gone", NO_FILE: "is no file any more"}


def main(request: Header, blobs: Blobs) -> tuple[Header, Blobs]:
    """Carries out one request; what was refused or failed is in ``error`` of the answer, never an exception."""
    with contextlib.suppress(ValueError):  # not in the main thread, where no signal arrives anyway
        for number in (signal.SIGHUP, signal.SIGINT):  # a lost connection or a Ctrl-C must not stop a change half way
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _terminate)
    operations = {"status": status, "apply": apply, "revert": revert, "fetch": fetch, "forget": forget}
    try:
        store = Store(request["root"], request["engine"], unread=request["op"] == "forget")
        return operations[request["op"]](store, request, blobs)
    except Refused as refused:
        # A path that is refused and did not come with the request stands in the journal.
        kind = "journal" if refused.kind == "path" and request["op"] != "apply" else refused.kind
        error, found = dict(refused.detail, kind=kind, message=refused.message), refused.blobs
    except OSError as failed:
        error, found = {"kind": "os", "message": explain(failed)}, {}
    if error["kind"] == "os":
        error["state"] = _state(request)
    return {"error": error}, found


def _state(request: Header) -> str:
    """What the journal says after a failure, or ``unknown``."""
    try:
        journal = Store(request["root"], request["engine"]).journal
    except (Refused, OSError):
        return "unknown"
    return _word(journal)


def _word(journal: Header) -> str:
    return "interrupted" if journal["pending"] else "patched" if journal["applied"] else "clean"


def _terminate(number: int, frame: Any) -> None:
    raise Refused("terminated", f"The agent was asked to stop (signal {number}).")


# --- operations -----------------------------------------------------------------------------------------------------


def status(store: Store, request: Header, blobs: Blobs) -> tuple[Header, Blobs]:
    """What stands, what is under way, and in which state each touched file is; changes nothing."""
    journal, expected = store.journal, store.expected()
    pending = journal["pending"]
    files = []
    for path in sorted(set(journal["files"]) | set(expected)):
        original = journal["files"].get(path, {}).get("sha256")
        now = digest(store.target(path))
        files.append({"path": path, "now": now, "original": original, "expected": expected.get(path, original)})
    return {
        "state": "busy" if store.busy() else _word(journal),
        "folder": store.folder,
        "leftovers": store.leftovers(),
        "applied": journal["applied"],
        "pending": pending,
        "files": files,
        "identity": identity(store.package),
    }, {}


def apply(store: Store, request: Header, blobs: Blobs) -> tuple[Header, Blobs]:
    """Carries out ``request["applications"]``, all or none: ``{recipe, version, …, changes: [{path, before, after}]}``.

    ``before`` and ``after`` are SHA-256; ``before`` is ``None`` for a file that must not exist yet. New contents are
    blobs named by their SHA-256.
    """
    applications: list[Header] = request["applications"]
    changes = _net([change for application in applications for change in application["changes"]])
    with store.locked(create=True):
        before = json.loads(json.dumps(store.journal))
        try:
            _ready(store, applications, changes, blobs)
        except BaseException:
            if not before["applied"] and not before["pending"]:
                store.remove()
            raise
        replaced: list[str] = []
        try:
            _store(store, applications, changes, blobs)
            undone = {c["path"]: c["before"] for c in reversed(changes)}
            under_way = {"recipe": "", "changes": changes}
            store.journal["pending"] = {"op": "apply", "application": under_way, "goal": undone}
            store.save()
            for change in changes:
                _stage(store, change["path"], change["after"])
            _unchanged(store, changes)
            for change in changes:
                replaced.insert(0, change["path"])
                _set_pyc_aside(store, change)
                os.replace(store.staged(change["path"]), store.target(change["path"]))
                sync_folder(os.path.dirname(store.target(change["path"])))
            store.journal["applied"] = [*before["applied"], *applications]
            store.journal["pending"] = None
            store.save()
        except BaseException as failed:
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            left = _undo(store, before, changes, replaced)
            if isinstance(failed, OSError):
                raise Refused("os", explain(failed), {"left": left}) from failed
            raise
    return {"changed": [c["path"] for c in changes], "folder": store.folder}, {}


def revert(store: Store, request: Header, blobs: Blobs) -> tuple[Header, Blobs]:
    """Takes back what is pending, and the applications named in ``request["recipes"]`` (all when absent).

    Of the files, ``restored`` have got back what they held, ``deleted`` are those that a patch had added, and
    ``untouched`` were as they should be already (an interrupted run had not come to them).
    """
    with store.locked(create=False):
        journal, names = store.journal, request.get("recipes")
        applied, pending = journal["applied"], journal["pending"]
        wanted = {a["recipe"] for a in applied}
        if names is not None:
            wanted = set(names) | set((pending or {}).get("going", ()))
        going = [a for a in applied if a["recipe"] in wanted]
        unknown = sorted(wanted - {a["recipe"] for a in going})
        if unknown:
            raise Refused("unknown", "Not applied here: {}.".format(", ".join(unknown)))
        _not_stacked(applied, going)
        goal: dict[str, str | None] = dict(pending["goal"]) if pending else {}
        for application in reversed(going):
            goal.update((c["path"], c["before"]) for c in reversed(application["changes"]))
        _not_foreign(store, goal)
        _not_lost(store, goal)
        if goal:
            under_way = pending["application"] if pending else {"recipe": "", "changes": []}
            reverting = [a["recipe"] for a in going]
            journal["pending"] = {"op": "revert", "application": under_way, "going": reverting, "goal": goal}
            store.save()
        untouched = [path for path in goal if digest(store.target(path)) == goal[path]]
        left = _bring_back(store, goal)
        journal["applied"] = [a for a in applied if a not in going]
        left += _settle(store)
    moved = sorted(set(goal) - set(untouched))
    return {
        "reverted": [a["recipe"] for a in going],
        "restored": [path for path in moved if goal[path] is not None],
        "deleted": [path for path in moved if goal[path] is None],
        "untouched": sorted(untouched),
        "left": left,
    }, {}


def fetch(store: Store, request: Header, blobs: Blobs) -> tuple[Header, Blobs]:
    """The stored contents named by ``request["blobs"]``, or all of them: for a journal kept elsewhere."""
    stored = store.stored()
    return {"journal": store.journal}, {sha: store.blob(sha) for sha in stored if sha in request.get("blobs", stored)}


def forget(store: Store, request: Header, blobs: Blobs) -> tuple[Header, Blobs]:
    """Drops what the agent keeps and leaves every file of the engine as it is (after a reinstallation, say)."""
    with store.locked(create=False):
        forgotten = [a["recipe"] for a in store.journal["applied"]]
        left = store.remove() if real_folder(store.folder) else []
    return {"forgotten": forgotten, "left": left}, {}


# --- checks ---------------------------------------------------------------------------------------------------------


def _ready(store: Store, applications: list[Header], changes: list[Header], blobs: Blobs) -> None:
    if store.journal["pending"]:
        raise Refused("interrupted", f"An earlier change of {store.package} was interrupted and is not undone yet.")
    twice = sorted({a["recipe"] for a in store.journal["applied"]} & {a["recipe"] for a in applications})
    if twice:
        raise Refused("already", "Already applied: {}.".format(", ".join(twice)), {"recipes": twice})
    for change in changes:
        sha = change["after"]
        if sha is not None and hashlib.sha256(blobs.get(sha, b"")).hexdigest() != sha:
            raise Refused("transfer", "The new content of {} did not arrive as it was sent.".format(change["path"]))
    _unchanged(store, changes)


def _unchanged(store: Store, changes: list[Header]) -> None:
    for change in changes:
        now, before = digest(store.target(change["path"])), change["before"]
        if now != before:
            what = "exists already" if before is None else _WORDS.get(now, "has changed since the plan")
            raise Refused("changed", "{} {}.".format(change["path"], what), {"path": change["path"], "now": now})


def _not_stacked(applied: list[Header], going: list[Header]) -> None:
    for position, application in enumerate(applied):
        if application not in going:
            continue
        mine = {c["path"] for c in application["changes"]}
        for later in applied[position + 1 :]:
            shared = sorted(mine & {c["path"] for c in later["changes"]})
            if later in going or not (shared or application["recipe"] in later.get("requires", ())):
                continue
            why = "has since changed " + ", ".join(shared) if shared else "needs it"
            message = "{} cannot be taken back alone: {} {}.".format(application["recipe"], later["recipe"], why)
            raise Refused("stacked", message, {"later": later["recipe"]})


def _not_foreign(store: Store, goal: dict[str, str | None]) -> None:
    known, expected = store.known(), store.expected()
    foreign: list[Header] = []
    blobs: Blobs = {}
    for path in sorted(goal):
        now, ours = digest(store.target(path)), expected.get(path)
        if now == goal[path] or now in known.get(path, ()):
            continue
        foreign.append({"path": path, "now": now, "expected": ours})
        if now:
            with open(store.target(path), "rb") as file:
                blobs["now/" + path] = file.read()
        if ours is not None:
            blobs["expected/" + path] = store.blob(ours)
    if foreign:
        names = ", ".join(f["path"] for f in foreign)
        raise Refused("foreign", f"Changed by someone else since: {names}.", {"foreign": foreign}, blobs)


def _not_lost(store: Store, goal: dict[str, str | None]) -> None:
    """Refuses before the first file is touched what could not be brought to its end."""
    lost = []
    for path, sha in goal.items():
        entry = store.journal["files"][path]
        if sha is None or digest(store.target(path)) == sha:
            continue
        if sha == entry["sha256"] and _intact(store.original(path), entry):
            continue
        try:
            store.blob(sha)
        except Refused:
            lost.append(path)
    if lost:
        names = ", ".join(sorted(lost))
        raise Refused("journal", f"{store.folder} has lost, or holds damaged, what was kept of {names}.")


# --- steps ----------------------------------------------------------------------------------------------------------


def _store(store: Store, applications: list[Header], changes: list[Header], blobs: Blobs) -> None:
    store.collect()
    for application in applications:
        for change in application["changes"]:
            if change["after"] is not None:
                store.keep(blobs[change["after"]])
    files, folders = store.journal["files"], store.journal["folders"]
    for change in changes:
        path, target = change["path"], store.target(change["path"])
        if change["before"] is not None:
            with open(target, "rb") as file:
                store.keep(file.read())
        if path not in files:
            files[path] = _record(store, path, target, change["before"])
        folder, missing = os.path.dirname(path), []
        while not os.path.isdir(store.where(folder)):
            missing.append(folder)
            folder = os.path.dirname(folder)
        folders += [f for f in reversed(missing) if f not in folders]
    sync_folder(store.path("originals"))


def _record(store: Store, path: str, target: str, sha: str | None) -> Header:
    """What a file is before it is touched for the first time; keeps its inode."""
    cache = os.path.join(os.path.dirname(target), "__pycache__")
    entry: Header = {"sha256": sha, "pyc": _pyc_names(target), "pycache": os.path.isdir(cache)}
    if sha is None:
        return entry
    facts, link = os.stat(target), os.lstat(target)
    entry.update(mode=stat.S_IMODE(facts.st_mode), uid=link.st_uid, gid=link.st_gid, mtime_ns=facts.st_mtime_ns)
    entry.update(links=link.st_nlink, symlink=os.readlink(target) if stat.S_ISLNK(link.st_mode) else None)
    try:
        os.link(target, store.original(path), follow_symlinks=False)
        entry["kept"] = "link"
    except OSError:  # no hard links here, or not allowed for this file: its copy, with the same owner and mode, will do
        entry["kept"] = "copy"
    return entry


def _stage(store: Store, path: str, sha: str | None) -> None:
    """Writes a content beside its target, with the mode and owner that the target had, or its folder's owner."""
    if sha is None:
        return
    data = store.blob(sha)
    target, staged, entry = store.target(path), store.staged(path), store.journal["files"][path]
    for folder in store.journal["folders"]:
        if path.startswith(folder + "/"):
            make_folder(store.where(folder), os.stat(store.package))
    _unstage(store, path)
    beside = os.stat(os.path.dirname(target))
    mode, uid, gid = entry.get("mode", 0o644), entry.get("uid", beside.st_uid), entry.get("gid", beside.st_gid)
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            facts = os.fstat(descriptor)
            if (facts.st_uid, facts.st_gid) != (uid, gid):
                _change_owner(descriptor, uid, gid, path, required=entry["sha256"] is not None)
            os.fchmod(descriptor, mode)
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        _unstage(store, path)
        raise


def _change_owner(descriptor: int, uid: int, gid: int, path: str, required: bool) -> None:
    try:
        os.fchown(descriptor, uid, gid)
    except PermissionError:
        if required:
            owner = f"{path} belongs to user {uid} and group {gid}"
            raise Refused("owner", f"{owner}, which this user cannot give a file to.") from None


def _unstage(store: Store, path: str) -> None:
    # A folder in its place is somebody else's: writing there is what fails, never undoing.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        os.unlink(store.staged(path))


def _undo(store: Store, before: Header, changes: list[Header], replaced: list[str]) -> list[str]:
    """Undoes an application after an error, as far as it got; returns folders that could not be removed."""
    states = {c["path"]: c for c in changes}
    for path in states:
        _unstage(store, path)
    # A file that someone changed in the last milliseconds is theirs: the journal goes on saying "interrupted".
    if any(digest(store.target(p)) not in (states[p]["before"], states[p]["after"]) for p in replaced):
        return []
    _bring_back(store, {path: states[path]["before"] for path in replaced})
    left = _remove_folders(store, set(states))
    store.journal = before
    return left + _settle(store)


def _settle(store: Store) -> list[str]:
    """Ends a transaction: nothing is pending, and what no application needs any more is forgotten.

    Returns what was left in the agent's folder, because the agent did not make it.
    """
    journal = store.journal
    journal["pending"] = None
    if not journal["applied"]:
        return store.remove()
    needed = {c["path"] for a in journal["applied"] for c in a["changes"]}
    journal["files"] = {path: entry for path, entry in journal["files"].items() if path in needed}
    journal["folders"] = [f for f in journal["folders"] if any(path.startswith(f + "/") for path in needed)]
    store.save()
    store.collect()
    return []


def _bring_back(store: Store, goal: dict[str, str | None]) -> list[str]:
    """Brings each path to a state it had before, in this order; returns folders that now hold someone else's files."""
    for path, sha in goal.items():
        _unstage(store, path)
        entry = store.journal["files"][path]
        _restore(store, path, sha, entry)
        _give_pyc_back(store, path, sha, entry)
    return _remove_folders(store, set(goal))


def _restore(store: Store, path: str, sha: str | None, entry: Header) -> None:
    target, original = store.target(path), store.original(path)
    if sha is None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target)
    elif sha == entry["sha256"] and _intact(original, entry):
        if not os.path.lexists(target) or not os.path.samestat(os.lstat(original), os.lstat(target)):
            os.rename(original, target)
    elif digest(target) != sha:
        _stage(store, path, sha)
        if sha == entry["sha256"]:
            os.utime(store.staged(path), ns=(entry["mtime_ns"], entry["mtime_ns"]))
        if sha == entry["sha256"] and entry["symlink"] is not None:
            os.unlink(store.staged(path))
            os.symlink(entry["symlink"], store.staged(path))
        os.replace(store.staged(path), target)
    if os.path.isdir(os.path.dirname(target)):
        sync_folder(os.path.dirname(target))


def _intact(original: str, entry: Header) -> bool:
    """Whether the kept inode is still what was replaced (a cache that shares it could have been edited in place)."""
    if entry["kept"] != "link" or not os.path.lexists(original):
        return False
    if entry["symlink"] is not None:
        return os.path.islink(original) and os.readlink(original) == entry["symlink"]
    return not os.path.islink(original) and bool(digest(original) == entry["sha256"])


def _remove_folders(store: Store, paths: set[str]) -> list[str]:
    left = []
    for folder in reversed(store.journal["folders"]):
        where = store.where(folder)
        if not os.path.isdir(where) or not any(path.startswith(folder + "/") for path in paths):
            continue
        with contextlib.suppress(OSError):
            os.rmdir(os.path.join(where, "__pycache__"))
        try:
            os.rmdir(where)
        except OSError:
            ours = [p for p in store.journal["files"] if p.startswith(folder + "/")]
            if not any(digest(store.target(p)) for p in ours):
                left.append(folder)
    return left


# --- compiled files -------------------------------------------------------------------------------------------------


def _pyc_names(target: str) -> list[str]:
    """Compiled files of a source, of every Python version and optimisation level."""
    folder, name = os.path.split(target)
    stem, extension = os.path.splitext(name)
    if extension != ".py":
        return []
    names = names_in(os.path.join(folder, "__pycache__"))
    return [n for n in names if n.startswith(stem + ".") and n.endswith(".pyc")]


def _set_pyc_aside(store: Store, change: Header) -> None:
    """Moves compiled files away before the source changes: one marked "unchecked" would be run in its place."""
    target, entry = store.target(change["path"]), store.journal["files"][change["path"]]
    cache = os.path.join(os.path.dirname(target), "__pycache__")
    for name in _pyc_names(target):
        if name in entry["pyc"] and change["before"] == entry["sha256"]:
            os.rename(os.path.join(cache, name), store.compiled(change["path"], name))
        else:
            os.unlink(os.path.join(cache, name))


def _give_pyc_back(store: Store, path: str, sha: str | None, entry: Header) -> None:
    target = store.target(path)
    cache = os.path.join(os.path.dirname(target), "__pycache__")
    kept = [name for name in entry["pyc"] if os.path.exists(store.compiled(path, name))]
    for name in _pyc_names(target):
        if name in kept or name not in entry["pyc"]:  # else it is the original one, never set aside
            os.unlink(os.path.join(cache, name))
    if sha != entry["sha256"]:
        return
    if kept and not os.path.isdir(cache):
        make_folder(cache, os.stat(os.path.dirname(target)))
    for name in kept:
        os.rename(store.compiled(path, name), os.path.join(cache, name))
    if not entry["pycache"]:
        with contextlib.suppress(OSError):
            os.rmdir(cache)


def _net(changes: list[Header]) -> list[Header]:
    """Several changes of one path as one, in the order of first mention."""
    net: dict[str, Header] = {}
    for change in changes:
        net[change["path"]] = dict(change, before=net.get(change["path"], change)["before"])
    return list(net.values())
