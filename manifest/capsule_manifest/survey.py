"""Survey: everything that says what a host is and runs, as the host's program read it.

One answer to one question, so that a look at a host costs one connection and one start. It is a
claim: what in it is signed was checked by the host with its own key, and the controller compares
that key with the one that it pinned. Surfaces that disagree, are unsafe or can't be read are
reported as they are; to judge is the reader's part.

Source: design, section 9 ("Markers and identity"); `docs/reference/identity.md`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from capsule_manifest.canonical import JsonValue, Limits, decode, encode
from capsule_manifest.fields import Object, root_object

__all__ = [
    "FRAGMENTS",
    "MARKER_STATES",
    "SURVEY_SCHEMA",
    "ChangedFile",
    "GenerationSurface",
    "MarkerSurface",
    "Obstacle",
    "ReceiptSurface",
    "Setting",
    "Survey",
    "UnitSurface",
    "Unreadable",
    "decode_survey",
    "encode_survey",
    "survey_value",
]

SURVEY_SCHEMA: Final = "capsule-survey/1"
MARKER_STATES: Final = ("absent", "signed", "unsafe", "invalid")
FRAGMENTS: Final = ("same", "differs", "absent")

_LIMITS: Final = Limits(size_bytes_max=4 * 1024 * 1024, depth_max=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerSurface:
    """The installed marker. All but `state` and `why` are None unless it is `signed`."""

    state: str
    why: str | None = None
    generation: str | None = None
    previous: str | None = None
    capsule: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSurface:
    """The capsule of the current generation: by its own manifest, and by its stage marker."""

    manifest: str | None
    staged: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptSurface:
    """The last receipt that changed what is current; `capsule` is None unless it committed."""

    sequence: int
    result: str
    current: str
    capsule: str | None
    op_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSurface:
    """A unit of the current generation: its file, and what its running process shows."""

    fragment: str
    active: bool
    pid: int
    invocation_id: str | None
    generation: str | None
    commit: str | None
    expected_commit: str
    is_service: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFile:
    """A managed file that is not what was signed at stage, in bytes, mode, owner or kind.

    `got` is `absent`, or tells what differs; both are for people.
    """

    target: str
    expected: str
    got: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Something that stands where a staged generation would put a file and capsule has put none."""

    generation: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting of a retired mechanism that a unit still has; nothing reads it."""

    unit: str
    setting: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A surface that could not be read; `why` is an error id."""

    surface: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """One host at one moment. `current` and `previous` are generations, `absent`, or a wrong link.

    `wall_ms` is the wall clock in milliseconds since 1970, for people; `boot_ms` counts since boot.
    `ballast` says whether the space is there that a restore on a full disk frees first.
    """

    installer: str
    runtime: str | None
    node: str | None
    node_key: str | None
    machine: str
    machine_id: str | None
    glibc: str
    pythons: Mapping[str, str]
    service_manager: str
    guard_levels: tuple[str, ...]
    boot_id: str
    boot_ms: int
    wall_ms: int
    free_bytes: int
    free_inodes: int
    noexec: bool
    ballast: bool
    policy: str | None
    counter_floor: int
    fence: int
    route: str | None
    staged: tuple[str, ...]
    open_op: str | None
    hold: str | None
    current: str
    previous: str
    marker: MarkerSurface
    generation: GenerationSurface | None
    receipt: ReceiptSurface | None
    units: Mapping[str, UnitSurface]
    files: tuple[ChangedFile, ...]
    obstacles: tuple[Obstacle, ...]
    ignored: tuple[Setting, ...]
    unreadable: tuple[Unreadable, ...]


def survey_value(survey: Survey) -> JsonValue:
    """Return a survey as the JSON object that a record carries."""
    return {"schema": SURVEY_SCHEMA, **_plain(asdict(survey))}


def encode_survey(survey: Survey) -> bytes:
    """Return the canonical bytes of a survey."""
    return encode(survey_value(survey))


def decode_survey(raw: bytes, *, where: str = "survey") -> Survey:
    """Read a survey strictly.

    Raises:
        Refused: `json-*`, `document-invalid`, `document-version`.
    """
    value = decode(raw, limits=_LIMITS, where=where)
    item = root_object(value, schema=SURVEY_SCHEMA, name=where)
    generation = item.optional_nested("generation")
    receipt = item.optional_nested("receipt")
    survey = Survey(
        installer=item.text("installer"),
        runtime=item.optional_text("runtime"),
        node=item.optional_text("node"),
        node_key=item.optional_text("node_key"),
        machine=item.text("machine"),
        machine_id=item.optional_text("machine_id"),
        glibc=item.text("glibc", empty=True),
        pythons=item.text_map("pythons"),
        service_manager=item.text("service_manager"),
        guard_levels=item.texts("guard_levels"),
        boot_id=item.text("boot_id"),
        boot_ms=item.integer("boot_ms"),
        wall_ms=item.integer("wall_ms"),
        free_bytes=item.integer("free_bytes"),
        free_inodes=item.integer("free_inodes"),
        noexec=item.boolean("noexec"),
        ballast=item.boolean("ballast"),
        policy=item.optional_sha256("policy"),
        counter_floor=item.integer("counter_floor"),
        fence=item.integer("fence"),
        route=item.optional_sha256("route"),
        staged=item.texts("staged"),
        open_op=item.optional_text("open_op"),
        hold=item.optional_text("hold"),
        current=item.text("current"),
        previous=item.text("previous"),
        marker=_read_marker(item.nested("marker")),
        generation=None if generation is None else _read_generation(generation),
        receipt=None if receipt is None else _read_receipt(receipt),
        units=item.named("units", _read_unit),
        files=item.items("files", _read_file),
        obstacles=item.items("obstacles", _read_obstacle),
        ignored=item.items("ignored", _read_setting),
        unreadable=item.items("unreadable", _read_unreadable),
    )
    item.end()
    return survey


def _plain(value: Mapping[str, object]) -> dict[str, JsonValue]:
    """Return what `asdict` made with lists for tuples."""
    return {key: _plain_value(item) for key, item in value.items()}


def _plain_value(value: object) -> JsonValue:
    if isinstance(value, Mapping):
        return _plain(value)
    if isinstance(value, tuple):
        return [_plain_value(item) for item in value]
    assert value is None or isinstance(value, str | int), "a survey holds nothing else"
    return value


def _read_marker(item: Object) -> MarkerSurface:
    marker = MarkerSurface(
        state=item.text("state", one_of=MARKER_STATES),
        why=item.optional_text("why"),
        generation=item.optional_text("generation"),
        previous=item.optional_text("previous"),
        capsule=item.optional_sha256("capsule"),
    )
    item.end()
    return marker


def _read_generation(item: Object) -> GenerationSurface:
    generation = GenerationSurface(
        manifest=item.optional_sha256("manifest"), staged=item.optional_sha256("staged")
    )
    item.end()
    return generation


def _read_receipt(item: Object) -> ReceiptSurface:
    receipt = ReceiptSurface(
        sequence=item.integer("sequence"),
        result=item.text("result"),
        current=item.text("current"),
        capsule=item.optional_sha256("capsule"),
        op_id=item.text("op_id", empty=True),
    )
    item.end()
    return receipt


def _read_unit(item: Object) -> UnitSurface:
    unit = UnitSurface(
        fragment=item.text("fragment", one_of=FRAGMENTS),
        active=item.boolean("active"),
        pid=item.integer("pid"),
        invocation_id=item.optional_text("invocation_id"),
        generation=item.optional_text("generation"),
        commit=item.optional_text("commit"),
        expected_commit=item.text("expected_commit"),
        is_service=item.boolean("is_service"),
    )
    item.end()
    return unit


def _read_file(item: Object) -> ChangedFile:
    file = ChangedFile(
        target=item.text("target"), expected=item.text("expected"), got=item.text("got")
    )
    item.end()
    return file


def _read_obstacle(item: Object) -> Obstacle:
    obstacle = Obstacle(generation=item.text("generation"), target=item.text("target"))
    item.end()
    return obstacle


def _read_setting(item: Object) -> Setting:
    setting = Setting(unit=item.text("unit"), setting=item.text("setting"))
    item.end()
    return setting


def _read_unreadable(item: Object) -> Unreadable:
    unreadable = Unreadable(surface=item.text("surface"), why=item.text("why"))
    item.end()
    return unreadable
