"""Know before you stop: ask every node of a route what it is, and change nothing.

The result is one document with a digest. It names the route and the capsule it was made for, and a
rollout starts only from a fresh one of the same two. Classes and reasons go into the digest, clocks
and free space do not: asking twice gives the same digest unless something changed.

Source: design, section 9 ("Markers and identity").
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from capsule.fleet_work import for_each_node
from capsule.freeze import FrozenRoute
from capsule.home import ProductHome
from capsule.payload import Payload
from capsule.rollout.coherence import Coherence, Judged, judge
from capsule.session import HostSession
from capsule.transport.base import Transport
from capsule_manifest.canonical import DEFAULT_LIMITS, JsonValue, decode, encode
from capsule_manifest.digest import sha256_text
from capsule_manifest.errors import CapsuleError, ExitCode, Refused
from capsule_manifest.fields import Object, root_object
from capsule_manifest.keys import b64encode
from capsule_manifest.route import Endpoint
from capsule_manifest.survey import Survey

__all__ = [
    "Finding",
    "Preflight",
    "Surveyor",
    "decode_preflight",
    "encode_preflight",
    "require_fresh",
]

_SCHEMA: Final = "capsule-preflight/1"
_SKEW_MS_MAX: Final = 5_000
_FREE_BYTES_MIN: Final = 64 * 1024 * 1024
_FREE_INODES_MIN: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What preflight found of one node. `problems` keep it out of a rollout, each with its remedy.

    `notes` are for people and change nothing.
    """

    coherence: Coherence
    serving: bool
    current: str
    fence: int
    disagreements: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def is_fit(self) -> bool:
        """Say whether a rollout may touch the node."""
        return not self.problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """The findings of one route and capsule. `made_ms` is wall time, for freshness only."""

    route: str
    capsule: str
    made_ms: int
    nodes: Mapping[str, Finding]

    @property
    def digest(self) -> str:
        """Return what names this result: everything in it but when it was made, and the notes."""
        decided = {node: replace(finding, notes=()) for node, finding in self.nodes.items()}
        return sha256_text(encode(_document(replace(self, made_ms=0, nodes=decided))))

    @property
    def exit_code(self) -> ExitCode:
        """Return 0 when every node is fit, 3 otherwise: nothing was stopped."""
        fit = all(finding.is_fit for finding in self.nodes.values())
        return ExitCode.DONE if fit else ExitCode.PREFLIGHT_REFUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyor:
    """Ask the nodes of a frozen route."""

    home: ProductHome
    route: FrozenRoute
    payload: Payload
    connect: Callable[[Endpoint, str], Transport]
    now_ms: Callable[[], int]

    def run(self) -> Preflight:
        """Ask every node, at most eight at once, and return what was found."""
        answers = for_each_node(sorted(self.route.route.nodes), self._look)
        findings = {
            node: _unreachable(answer) if isinstance(answer, CapsuleError) else answer
            for node, answer in answers.items()
        }
        return Preflight(
            route=self.route.digest,
            capsule=self.payload.capsule,
            made_ms=self.now_ms(),
            nodes=findings,
        )

    def _look(self, node: str) -> Finding:
        endpoint = self.route.route.nodes[node].endpoint
        session = HostSession(self.connect(endpoint, node), node=node)
        asked = time.monotonic()
        survey = session.survey()
        took_ms = int((time.monotonic() - asked) * 1000)
        pinned = self.home.node_key(node)
        judged = judge(node, None if pinned is None else b64encode(pinned.spki), survey)
        skew_ms = abs(survey.wall_ms - self.now_ms())
        return Finding(
            coherence=judged.coherence,
            serving=judged.serving,
            current=judged.current,
            fence=survey.fence,
            disagreements=tuple(item.text for item in judged.disagreements),
            problems=tuple(self._problems(node, survey, judged)),
            notes=tuple(_notes(survey, skew_ms, took_ms)),
        )

    def _problems(self, node: str, survey: Survey, judged: Judged) -> list[str]:
        found = []
        remedy = _REMEDIES.get(judged.coherence)
        if remedy is not None:
            found.append(f"{judged.coherence}: {remedy}")
        if survey.files:
            found.append(
                f"{len(survey.files)} managed files differ: move the edits into the release, or "
                f"set them aside with `capsule node files {node} --set-aside`"
            )
        entry = self.route.route.nodes[node]
        generation = self.payload.generation
        blocked = [item.target for item in survey.obstacles if item.generation == generation]
        if blocked:
            found.append(
                f"files that capsule never put stand where {generation} puts one: "
                f"{', '.join(blocked)}: set them aside with `capsule node files {node} "
                f"--set-aside --generation {generation}`"
            )
        if survey.route != self.route.digest:
            found.append("staged under another route: run `capsule stage`")
        elif generation not in survey.staged and judged.current != generation:
            found.append(f"{generation} is not staged: run `capsule stage`")
        if survey.open_op is not None:
            found.append("an op is open on the host: wait for its end, see `capsule status`")
        platform = self.payload.release.platforms.get(entry.platform)
        if platform is not None and platform.machine != survey.machine:
            found.append(
                f"the machine is {survey.machine}, the platform {entry.platform} is "
                f"{platform.machine}: correct fleet.toml"
            )
        floor = self.route.route.guard_floor(node)
        if not any(level >= floor for level in survey.guard_levels):
            found.append(f"no network guard of {floor} or higher: sign a waiver, then freeze")
        if survey.free_bytes < _FREE_BYTES_MIN:
            found.append(f"fewer than {_FREE_BYTES_MIN} bytes free: free some")
        if 0 < survey.free_inodes < _FREE_INODES_MIN:
            found.append(f"fewer than {_FREE_INODES_MIN} inodes free: free some")
        return found


_REMEDIES: Final[Mapping[Coherence, str]] = {
    Coherence.REPAIRABLE: "run `capsule node repair`, all evidence agrees",
    Coherence.CONTRADICTORY: "find out what changed the host; the node is quarantined until then",
    Coherence.FOREIGN: "this is another host than the one first met: correct the inventory",
}


_WITHOUT_SURVEY: Final[Mapping[str, str]] = {
    "host-program-missing": "it has no program yet: run `capsule stage`",
    "host-verb-unknown": "its program is older than this controller: run `capsule stage`",
    "document-version": "its program is newer than this controller: use the newer controller",
}


def _unreachable(error: CapsuleError) -> Finding:
    remedy = _WITHOUT_SURVEY.get(error.error_id, "make the host answer, or leave it out")
    return Finding(
        coherence=Coherence.UNREACHABLE,
        serving=False,
        current="unknown",
        fence=0,
        disagreements=(),
        problems=(f"unreachable: {error.error_id}: {remedy}",),
        notes=(),
    )


def _notes(survey: Survey, skew_ms: int, took_ms: int) -> list[str]:
    notes = []
    if skew_ms > _SKEW_MS_MAX + took_ms:
        notes.append(f"its wall clock differs by {skew_ms / 1000:.0f} s; no deadline uses it")
    if survey.node is not None and not survey.ballast:
        notes.append("no space is put aside for a restore on a full disk; the next stage does it")
    notes += [f"{item.unit} still has {item.setting}: retired, ignored" for item in survey.ignored]
    return notes


def encode_preflight(preflight: Preflight) -> bytes:
    """Return the canonical bytes that the controller keeps."""
    return encode(_document(preflight))


def _document(preflight: Preflight) -> dict[str, JsonValue]:
    return {
        "schema": _SCHEMA,
        "route": preflight.route,
        "capsule": preflight.capsule,
        "made_ms": preflight.made_ms,
        "nodes": {
            node: {
                "class": str(finding.coherence),
                "serving": finding.serving,
                "current": finding.current,
                "fence": finding.fence,
                "disagreements": list(finding.disagreements),
                "problems": list(finding.problems),
                "notes": list(finding.notes),
            }
            for node, finding in preflight.nodes.items()
        },
    }


def decode_preflight(raw: bytes, *, where: str) -> Preflight:
    """Read a kept result.

    Raises:
        Refused: `json-*`, `document-invalid`, `document-version`.
    """
    value = decode(raw, limits=DEFAULT_LIMITS, where=where)
    document = root_object(value, schema=_SCHEMA, name=where)
    preflight = Preflight(
        route=document.sha256("route"),
        capsule=document.sha256("capsule"),
        made_ms=document.integer("made_ms"),
        nodes=document.named("nodes", _read_finding),
    )
    document.end()
    return preflight


def _read_finding(item: Object) -> Finding:
    finding = Finding(
        coherence=Coherence(item.text("class", one_of=tuple(Coherence))),
        serving=item.boolean("serving"),
        current=item.text("current"),
        fence=item.integer("fence"),
        disagreements=item.texts("disagreements"),
        problems=item.texts("problems"),
        notes=item.texts("notes"),
    )
    item.end()
    return finding


def require_fresh(
    preflight: Preflight | None, *, route: str, capsule: str, now_ms: int, age_ms_max: int
) -> Preflight:
    """Return a result that is about this route and capsule and not too old.

    Raises:
        Refused: `preflight-missing`.
    """
    expected = f"a preflight of {capsule} under route {route}, at most {age_ms_max // 1000} s old"
    if preflight is None:
        raise Refused("preflight-missing", "there is no preflight", expected=expected)
    age_ms = now_ms - preflight.made_ms
    if (preflight.route, preflight.capsule) != (route, capsule) or not 0 <= age_ms <= age_ms_max:
        raise Refused(
            "preflight-missing",
            "the last preflight is of something else, or too old",
            expected=expected,
            got=f"of {preflight.capsule} under {preflight.route}, {age_ms // 1000} s old",
        )
    return preflight
