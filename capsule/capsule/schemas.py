"""JSON Schemas of every document that a person writes or reads, for editors and other programs.

A schema knows shapes, not meanings: what it refuses, the decoder refuses too, but a name that
nothing defines or two keys of one owner only the decoder sees. What pydantic checks, it describes
itself; the two canonical documents, whose decoders are written by hand, are described here.
"""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from capsule.builder.config import release_schema
from capsule.builder.lockfile import lock_schema
from capsule.builder.secret_scan import waivers_schema
from capsule.inventory import fleet_schema
from capsule_manifest.policy import CLAIMS
from capsule_manifest.release import NAME, PRODUCT, UNIT_NAME, ComponentKind

__all__ = ["SCHEMAS", "schema_text"]

Schema = Mapping[str, object]

_INTEGER_MAX: Final = 2**53 - 1
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema_text(name: str) -> str:
    """Return the JSON Schema of a document as text, the same for the same version."""
    schema = {"$schema": _DIALECT, "title": name, **SCHEMAS[name]()}
    return json.dumps(schema, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def _object(**fields: object) -> Schema:
    """Return an object with exactly these fields."""
    return {
        "type": "object",
        "properties": fields,
        "required": sorted(fields),
        "additionalProperties": False,
    }


def _named(schema: Schema) -> Schema:
    return {"type": "object", "additionalProperties": schema}


def _list(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def _like(pattern: str) -> Schema:
    return {"type": "string", "pattern": f"^(?:{pattern})$"}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _whole(least: int = 0, most: int = _INTEGER_MAX) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


_TEXT: Final[Schema] = {"type": "string", "minLength": 1}
_SHA256: Final = _like("sha256:[0-9a-f]{64}")
_BLAKE3: Final = _like("blake3:[0-9a-f]{64}")
_GIT_ID: Final = _like("[0-9a-f]{40}([0-9a-f]{24})?")
_DOTTED: Final = _like("[0-9]+\\.[0-9]+")


def _capsule_schema() -> Schema:
    """Describe `capsule.json`. Source: `docs/reference/release-manifest.md`."""
    unit = _object(
        name=_like(UNIT_NAME.pattern),
        file=_TEXT,
        start_timeout_ms=_whole(1),
        stop_timeout_ms=_whole(1),
        soak_ms=_whole(),
        probe=_or_null(_object(http=_TEXT, timeout_ms=_whole(1))),
    )
    managed = _object(
        file=_TEXT,
        target=_like("/.+"),
        owner=_like(NAME.pattern),
        group=_like(NAME.pattern),
        mode=_whole(most=0o777),
        template={"type": "boolean"},
    )
    component = _object(
        name=_like(NAME.pattern),
        kind={"enum": [kind.value for kind in ComponentKind]},
        platforms=_list(_TEXT),
        tree=_BLAKE3,
        entries=_whole(most=1_000_000),
        content_bytes=_whole(),
        external=_list(
            _object(type=_TEXT, name=_TEXT, digest=_like("sha(1:[0-9a-f]{40}|256:[0-9a-f]{64})"))
        ),
        units=_list(unit),
        files=_list(managed),
        guarded_steps=_list(_object(argv=_list(_TEXT))),
    )
    return _object(
        schema={"const": "capsule/1"},
        product=_like(PRODUCT.pattern),
        version=_TEXT,
        release_counter=_whole(1),
        source=_object(commit=_GIT_ID, tree=_GIT_ID, date_s=_whole()),
        installer=_object(version=_like("[0-9]+(\\.[0-9]+){1,3}"), reason=_TEXT),
        platforms=_named(
            _object(
                machine=_like(NAME.pattern), glibc=_DOTTED, python=_DOTTED,
                interpreter=_or_null(_TEXT),
            )
        ),
        roles=_named(
            _object(components=_list(_TEXT), case_collisions={"enum": ["warn", "error"]})
        ),
        components=_list(component),
        budgets=_object(d1_ms=_whole(1), d2_ms=_whole(1), ttl_ms=_whole(1)),
    )  # fmt: skip


def _policy_schema() -> Schema:
    """Describe the trust policy. Source: `docs/reference/policy.md`."""
    window = {"counter_from": _whole(), "counter_to": _or_null(_whole())}
    rule = _object(keys=_list(_TEXT), identities=_list(_TEXT), threshold=_whole(1))
    # Who signs what else than releases are keys only, and a route has one signature.
    keys_only = {"type": "array", "maxItems": 0}
    return _object(
        schema={"const": "capsule-trust/1"},
        product=_like(PRODUCT.pattern),
        version=_whole(1),
        keys=_list(
            _object(keyid=_TEXT, spki=_like("[A-Za-z0-9+/]+={0,2}"), owner=_TEXT, **window)
        ),
        release=rule,
        route=_object(keys=_list(_TEXT), identities=keys_only, threshold={"const": 1}),
        trust=_object(keys=_list(_TEXT), identities=keys_only, threshold=_whole(1)),
        identities=_named(
            _object(
                owner=_TEXT, san=_TEXT, issuer=_TEXT, **window,
                claims={
                    "type": "object",
                    "properties": {name: {"type": "string"} for name in sorted(CLAIMS)},
                    "additionalProperties": False,
                },
            )
        ),
        trusted_root=_or_null(_SHA256),
        release_counter_floor=_whole(),
        downgrades=_list(_object(capsule=_SHA256, reason=_TEXT)),
        revoked_capsules=_list(_SHA256),
        revoked_keys=_list(_TEXT),
        revoked_certificates=_list(_SHA256),
        issued_s=_whole(),
        max_age_s=_or_null(_whole(1)),
    )  # fmt: skip


SCHEMAS: Final[Mapping[str, Callable[[], Schema]]] = MappingProxyType(
    {
        "release": release_schema,
        "fleet": fleet_schema,
        "release-lock": lock_schema,
        "secret-waivers": waivers_schema,
        "policy": _policy_schema,
        "capsule": _capsule_schema,
    }
)
"""`release.toml`, `fleet.toml`, `release.lock`, `secret-waivers.toml`, `trust.json` and the release
manifest `capsule.json`."""
