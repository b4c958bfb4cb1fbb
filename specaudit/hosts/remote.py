"""A machine as a host: what the probe finds there, checked, and its files on request. Works over any shell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specaudit.cache import DerivedCache, NoCache
from specaudit.errors import TargetError
from specaudit.hosts import answers
from specaudit.hosts.base import Answer, Installation, Manifest
from specaudit.hosts.bundle import bundle
from specaudit.hosts.machine import PythonCaller
from specaudit.hosts.probe import environments
from specaudit.hosts.probe.files import sha256
from specaudit.hosts.probe.hardware import NO_SMI
from specaudit.hosts.shell import Shell, printable
from specaudit.model import Environment, NotLooked, Server

#: Answers in which the files of one engine have to come: each holds 64 MB, and an engine has some 30.
MAX_ROUNDS = 8
MANIFEST_VERSION = 1
OPS_VERSION = 1


@dataclass(frozen=True, slots=True)
class Looking:
    """Where the probe looks; tests point it elsewhere."""

    proc: str = "/proc"
    usual: tuple[str, ...] = tuple(environments.COMMON)
    smi: str = ""


class RemoteHost:
    """Engines of a machine that runs Python.

    Args:
        shell: the way there.
        python: the interpreter whose environment is meant; without it the probe looks for candidates.
        cache: keeps manifests and operator names, so that a build that was seen anywhere is not sent again.
        metrics: whether to read the metrics pages of its servers.
        deadline: seconds for each of the (at most four) calls.
        looking: where the probe looks.
    """

    def __init__(
        self,
        shell: Shell,
        *,
        python: str | None = None,
        cache: DerivedCache | None = None,
        metrics: bool = False,
        deadline: float = 120.0,
        looking: Looking | None = None,
    ) -> None:
        self._caller = PythonCaller(shell, python)
        self._python = python
        self._cache: DerivedCache = cache or NoCache()
        self._metrics = metrics
        self._deadline = deadline
        self._looking = looking or Looking()
        self._survey: answers.Survey | None = None
        self._manifests: dict[tuple[str, str], Manifest] = {}
        self._engines: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """How the user named the machine."""
        return self._caller.label

    def call(
        self,
        script: str,
        request: Mapping[str, Any],
        *,
        blobs: Mapping[str, bytes] | None = None,
        python: str | None = None,
        deadline: float = 60.0,
    ) -> Answer:
        """See :meth:`specaudit.hosts.base.Machine.call`."""
        return self._caller.call(script, request, blobs=blobs, python=python, deadline=deadline)

    def close(self) -> None:
        """Ends the connection."""
        self._caller.close()

    def installations(self, engines: tuple[str, ...]) -> tuple[Installation, ...]:
        """The engines of this machine as they are now, one installation of each.

        Raises:
            TargetError: there is none, or there are several of one engine and the user has to say which.
        """
        self._survey = None
        survey = self._look(engines)
        if not survey.installations:
            raise TargetError(
                f"{self.label} has no {' or '.join(engines)} where its {printable(survey.python)} looks, nor in the "
                "usual places.",
                _way_in(survey.servers),
            )
        names = [found.engine for found in survey.installations]
        several = sorted({name for name in names if names.count(name) > 1})
        if several:
            listed = "".join(
                f"\n  --python {f.python}  {f.engine} {f.version or '?'} in {f.root} ({f.why})"
                for f in survey.installations
            )
            raise TargetError(
                printable(f"{self.label} has more than one {' and '.join(several)}:{listed}\n"), "Say which."
            )
        return tuple(self._installation(found) for found in survey.installations)

    def manifest(self, installation: Installation) -> Manifest:
        """Hashes taken on the machine, of one of :meth:`installations`."""
        return self._manifests[installation.engine, installation.root]

    def _installation(self, found: answers.Found) -> Installation:
        """Its listing comes from the cache when any machine has sent the same before; operator names likewise."""
        stored = self._cache.get("manifest", answers.key_of(found), MANIFEST_VERSION) if found.complete else None
        listed = answers.kept(stored, found.digest) if stored else None
        names: set[str] = set()
        missing = {}
        for path, signature in found.libraries:
            known = self._cache.get("ops", signature, OPS_VERSION) if signature else None
            if known is None:
                missing[path] = signature
            else:
                names.update(known.decode().split())
        unread: list[NotLooked] = []
        if listed is None or missing:
            entry = {"root": found.root, "engine": found.engine, "source": found.source, "info": found.info}
            answer = self._ask(
                {"do": "manifest", "installation": entry, "libraries": list(missing), "files": listed is None}
            )
            listed = listed or self._listed(found, answer)
            ops, failed = answers.operators(self.label, answer)
            for path, signature in missing.items():
                names.update(ops.get(path, ()))
                if path in ops and signature:
                    self._cache.put("ops", signature, OPS_VERSION, " ".join(ops[path]).encode())
            unread = [NotLooked(f"compiled ops of {printable(path)}", printable(why)) for path, why in failed.items()]
        if not found.libraries:
            unread = [NotLooked("compiled ops", "no .so file lies beside the sources")]
        notes = [NotLooked(printable(what), printable(why)) for what, why in found.notes]
        self._manifests[found.engine, found.root] = Manifest(
            listed.files, tuple(sorted(names)), (*notes, *unread, *self._unseen(found)), listed.errors
        )
        return Installation(
            engine=found.engine,
            version=printable(found.version),
            root=found.root,
            source=found.source,
            python=printable(found.python),
            record=listed.record,
            patched=answers.safe_hashes(found.patched, found.engine),
        )

    def _listed(self, found: answers.Found, answer: Answer) -> answers.Listing:
        listed = answers.listing(self.label, answer, found.engine)
        if listed.sound and listed.digest == found.digest:
            self._cache.put("manifest", answers.key_of(found), MANIFEST_VERSION, answers.keep(listed))
        return listed

    def _unseen(self, found: answers.Found) -> list[NotLooked]:
        """What the survey could not tell: servers of other installations, metrics, GPUs behind a broken driver."""
        survey = self._look(self._engines)
        unseen = [NotLooked("the ssh configuration", why) for why in self._caller.shell.unread]
        if survey.servers_why:
            unseen.append(NotLooked("running servers", printable(survey.servers_why)))
        for process in survey.servers:
            if process.package not in ("", found.package):
                where = f"it runs the {process.engine} in {process.package}"
                unseen.append(NotLooked(f"process {process.pid}", printable(where)))
                continue
            if not process.package and process.container:
                unseen.append(NotLooked(f"process {process.pid}", f"it {_inside(process)}"))
                continue
            if not process.package:
                what = f"the installation of process {process.pid}"
                unseen.append(NotLooked(what, "it is taken to run the one that was scanned"))
            if process.unseen:
                unseen.append(NotLooked(f"variables of process {process.pid}", printable(process.unseen)))
            if process.metrics_why:
                unseen.append(NotLooked(f"metrics of process {process.pid}", printable(process.metrics_why)))
        if survey.gpus_why and survey.gpus_why != NO_SMI:
            unseen.append(NotLooked("GPUs", printable(survey.gpus_why)))
        return unseen

    def read(self, installation: Installation, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """The files' bytes. What does not have the hash of the manifest is left out, like what cannot be read."""
        expected = {entry.path: entry.sha256 for entry in self.manifest(installation).files}
        left = [path for path in paths if path in expected]
        for _ in range(MAX_ROUNDS):
            if not left:
                return
            wanted = "\n".join(left).encode()
            answer = self._ask({"do": "contents", "root": installation.root}, {"paths": wanted})
            asked = set(left)
            sent = {path: data for path, data in answer.blobs.items() if path in asked}
            for path, data in sent.items():
                if sha256(data) == expected[path]:
                    yield path, data
            if not sent:
                return
            # The machine goes through the paths in order and stops at a size; what it skipped cannot be read.
            left = left[max(map(left.index, sent)) + 1 :]

    def environment(self) -> Environment:
        """Versions, and the GPUs."""
        survey = self._look(self._engines)
        facts = {key: printable(value) for key, value in survey.environment.items()}
        return Environment(
            python=facts.get("python", ""),
            torch=facts.get("torch", ""),
            cuda=facts.get("cuda", ""),
            triton=facts.get("triton", ""),
            platform=facts.get("platform", ""),
            gpus=tuple(map(answers.gpu, survey.gpus)),
        )

    def servers(self) -> tuple[Server, ...]:
        """Running processes of the installations found, with arguments and counters."""
        survey = self._look(self._engines)
        packages = {"", *(found.package for found in survey.installations)}
        ours = [p for p in survey.servers if p.package in packages and (p.package or not p.container)]
        return tuple(map(answers.server, ours))

    def _look(self, engines: tuple[str, ...]) -> answers.Survey:
        if self._survey is None or not set(engines) <= set(self._engines):
            self._engines = engines
            request = {
                "do": "survey",
                "engines": list(engines),
                "explicit": self._python is not None,
                "proc": self._looking.proc,
                "usual": list(self._looking.usual),
                "smi": self._looking.smi,
                "metrics": self._metrics,
            }
            self._survey = answers.survey(self.label, self._ask(request), engines)
        return self._survey

    def _ask(self, request: Mapping[str, Any], blobs: Mapping[str, bytes] | None = None) -> Answer:
        return self._caller.call(bundle(), request, blobs=blobs, deadline=self._deadline)


def _inside(process: answers.Process) -> str:
    return printable(f'runs {process.engine} in a container: --via "docker exec -i {process.container}", or --sudo')


def _way_in(servers: Iterable[answers.Process]) -> str:
    """What to try where no engine is found: perhaps one runs in a container that this user cannot look into."""
    for process in servers:
        if process.container:
            return f"Process {process.pid} {_inside(process)}."
    return 'Name its interpreter with --python PATH, or its container with --via "docker exec -i NAME".'
