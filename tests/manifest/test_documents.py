"""Every kernel document: round trip, strict fields, golden bytes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from capsule_manifest import orders, policy, records, release, route, survey
from capsule_manifest.canonical import decode, encode
from capsule_manifest.errors import Refused
from support import documents as make

VECTORS = Path(__file__).parent.parent / "golden" / "documents"

CASES: dict[str, tuple[Callable[[], object], Callable[..., bytes], Callable[..., object]]] = {
    "release": (make.make_release, release.encode_release, release.decode_release),
    "policy": (make.make_policy, policy.encode_policy, policy.decode_policy),
    "policy-full": (make.make_full_policy, policy.encode_policy, policy.decode_policy),
    "route": (make.make_route, route.encode_route, route.decode_route),
    "order": (make.make_order, orders.encode_order, orders.decode_order),
    "confirm": (make.make_confirm, orders.encode_confirm, orders.decode_confirm),
    "marker": (make.make_marker, records.encode_marker, records.decode_marker),
    "proof": (make.make_proof, records.encode_proof, records.decode_proof),
    "outcome": (make.make_outcome, records.encode_outcome, records.decode_outcome),
    "receipt": (make.make_receipt, records.encode_receipt, records.decode_receipt),
    "survey": (make.make_survey, survey.encode_survey, survey.decode_survey),
    "survey-full": (make.make_full_survey, survey.encode_survey, survey.decode_survey),
}


@pytest.mark.parametrize("name", CASES)
def test_a_document_reads_back_as_it_was_written(name: str) -> None:
    value, write, read = CASES[name]
    assert read(write(value())) == value()


@pytest.mark.parametrize("name", CASES)
def test_the_bytes_of_a_format_change_only_with_its_version(
    name: str, request: pytest.FixtureRequest
) -> None:
    value, write, _ = CASES[name]
    vector = VECTORS / f"{name}.json"
    if request.config.getoption("--update-goldens"):
        vector.parent.mkdir(parents=True, exist_ok=True)
        vector.write_bytes(write(value()))
    assert write(value()) == vector.read_bytes()


def leaves(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Return the path of every field and item of a document."""
    if isinstance(value, dict):
        return [
            found
            for key, item in value.items()
            for found in [(*path, key), *leaves(item, (*path, key))]
        ]
    if isinstance(value, list):
        return [found for i, item in enumerate(value) for found in leaves(item, (*path, i))]
    return []


def at(value: object, path: tuple[object, ...]) -> object:
    for step in path:
        value = value[step]  # type: ignore[index]
    return value


# Names chosen by people: removing one leaves a smaller, valid document.
OPEN_MAPS = {
    "identities",
    "nodes",
    "vars",
    "platforms",
    "roles",
    "trees",
    "derived",
    "counts",
    "details",
    "claims",
    "pythons",
    "units",
}


@pytest.mark.parametrize("name", CASES)
def test_every_field_must_be_there_and_no_other_may(name: str) -> None:
    value, write, read = CASES[name]
    raw = write(value())
    checked = 0
    for path in leaves(decode(raw)):
        parent_name = path[-2] if len(path) > 1 else None
        if parent_name in OPEN_MAPS:
            continue
        document = decode(raw)
        removed = at(document, path[:-1])
        del removed[path[-1]]  # type: ignore[attr-defined]
        with pytest.raises(Refused):
            read(encode(document))
        document = decode(raw)
        at(document, path[:-1])["an-extra-field"] = 1  # type: ignore[index]
        with pytest.raises(Refused):
            read(encode(document))
        checked += 1
    assert checked >= 5


@pytest.mark.parametrize("name", CASES)
def test_a_value_of_another_type_is_refused_where_it_stands(name: str) -> None:
    value, write, read = CASES[name]
    raw = write(value())
    for path in leaves(decode(raw)):
        document = decode(raw)
        at(document, path[:-1])[path[-1]] = [[7]]  # type: ignore[index]
        with pytest.raises(Refused) as caught:
            read(encode(document))
        assert caught.value.where


@pytest.mark.parametrize("name", CASES)
def test_another_version_of_a_format_is_told_apart_from_another_document(name: str) -> None:
    value, write, read = CASES[name]
    document = decode(write(value()))
    assert isinstance(document, dict)
    family = document["schema"].rpartition("/")[0]
    for schema, error_id in ((f"{family}/2", "document-version"), ("other/1", "document-invalid")):
        with pytest.raises(Refused) as caught:
            read(encode(document | {"schema": schema}))
        assert caught.value.error_id == error_id


@pytest.mark.parametrize(
    "target",
    ["etc/x", "/etc/../x", "/etc/./x", "/etc//x", "/etc/x/", "/", "/etc/x\n", "/.."],
)
def test_a_managed_file_names_one_absolute_place(target: str) -> None:
    document = decode(release.encode_release(make.make_release()))
    document["components"][1]["files"][0]["target"] = target  # type: ignore[index,call-overload]
    with pytest.raises(Refused) as caught:
        release.decode_release(encode(document))
    assert caught.value.error_id == "document-invalid"


def test_a_role_that_names_no_component_of_the_release_is_refused() -> None:
    document = decode(release.encode_release(make.make_release()))
    document["roles"]["web"]["components"] = ["missing"]  # type: ignore[index,call-overload]
    with pytest.raises(Refused):
        release.decode_release(encode(document))


def test_components_out_of_order_or_twice_are_refused() -> None:
    for change in (lambda items: items[::-1], lambda items: [items[0], *items]):
        document = decode(release.encode_release(make.make_release()))
        document["components"] = change(document["components"])  # type: ignore[index,call-overload]
        with pytest.raises(Refused):
            release.decode_release(encode(document))


def test_a_node_receives_its_role_s_components_and_its_platform_s_runtime() -> None:
    chosen = make.make_release().selected("web", "bookworm")
    assert [component.name for component in chosen] == ["app", "config", "runtime-bookworm", "web"]
    assert [c.name for c in make.make_release().selected("web", "trixie")] == [
        "app",
        "config",
        "web",
    ]


def test_a_lane_of_nine_is_refused() -> None:
    document = decode(route.encode_route(make.make_route()))
    node = document["nodes"]["n1"]  # type: ignore[index,call-overload]
    document["nodes"] = {f"n{i}": node for i in range(9)}  # type: ignore[index,call-overload]
    with pytest.raises(Refused):
        route.decode_route(encode(document))


def test_a_waiver_lowers_the_guard_of_its_node_only() -> None:
    assert make.make_route().guard_floor("n1") == "L0"
    assert make.make_route().guard_floor("n2") == "L2"


def test_only_a_waiver_lets_a_try_to_use_the_network_pass_for_its_node() -> None:
    frozen = make.make_route()
    waiver = route.Waiver(node="n2", rule="guard-policy", value="report", reason="found out first")
    waived = route.decode_route(
        route.encode_route(replace(frozen, waivers=(*frozen.waivers, waiver)))
    )
    assert [waived.guard_policy(node) for node in ("n1", "n2")] == ["fail", "report"]
    assert waived.guard_floor("n2") == "L2"


def test_a_waiver_has_a_value_of_its_own_rule() -> None:
    frozen = make.make_route()
    for rule, value in (("guard-policy", "L0"), ("guard-level", "report"), ("any", "L0")):
        waiver = route.Waiver(node="n1", rule=rule, value=value, reason="r")
        with pytest.raises(Refused, match="document-"):
            route.decode_route(route.encode_route(replace(frozen, waivers=(waiver,))))


def test_only_the_first_receipt_has_none_before_it() -> None:
    document = decode(records.encode_receipt(make.make_receipt()))
    for change in ({"sequence": 1}, {"previous": None}):
        with pytest.raises(Refused) as caught:
            records.decode_receipt(encode(document | change))
        assert caught.value.error_id == "record-chain-broken"


def test_a_rescue_outcome_is_recognised_for_its_own_op_only() -> None:
    raw = records.encode_rescue_outcome(make.OP_ID)
    outcome = records.decode_rescue_outcome(raw, op_id=make.OP_ID)
    assert outcome is not None
    assert (outcome.result, outcome.by) == ("restoring", "rescue")
    assert records.decode_rescue_outcome(raw, op_id="f" * 32) is None
    assert records.decode_rescue_outcome(raw[:-1], op_id=make.OP_ID) is None


def test_guard_level_zero_never_claims_that_nothing_happened() -> None:
    assert records.guard_text("L0") == "L0: not monitored"


@pytest.mark.parametrize("address", ["w1.example", "localhost", "", "192.0.2.7 ", "192.0.2", "1"])
def test_a_frozen_route_leads_to_addresses_and_never_to_a_name(address: str) -> None:
    for path in (("n2", "endpoint"), ("n2", "endpoint", "jump", 0)):
        document = decode(route.encode_route(make.make_route()))
        at(document["nodes"], path)["address"] = address  # type: ignore[index,call-overload]
        with pytest.raises(Refused) as caught:
            route.decode_route(encode(document))
        assert caught.value.where.endswith(".address")
