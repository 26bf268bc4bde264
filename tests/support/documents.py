"""Valid values of every kernel document; tests change one thing with `dataclasses.replace`."""

from dataclasses import replace

from capsule_manifest.digest import CapsuleId, object_id, sha256_text
from capsule_manifest.envelope import IN_TOTO, encode_bundle, sign
from capsule_manifest.keys import b64encode
from capsule_manifest.orders import Confirm, Order
from capsule_manifest.policy import AuthorityRule, Downgrade, Identity, Policy, PolicyKey
from capsule_manifest.records import Marker, Outcome, Proof, Receipt, Step, UnitProof
from capsule_manifest.release import (
    Budgets,
    Component,
    ComponentKind,
    External,
    InstallerMinimum,
    ManagedFile,
    Platform,
    Probe,
    Release,
    Role,
    Source,
    Unit,
)
from capsule_manifest.route import Endpoint, Hop, Route, RouteNode, Waiver
from capsule_manifest.statements import ReleaseClaim, release_statement
from capsule_manifest.survey import (
    ChangedFile,
    GenerationSurface,
    MarkerSurface,
    Obstacle,
    ReceiptSurface,
    Setting,
    Survey,
    UnitSurface,
    Unreadable,
)
from support.signing import FixedSigner

RELEASE_KEY = FixedSigner("ci")
SECOND_RELEASE_KEY = FixedSigner("qa")
ROUTE_KEY = FixedSigner("ops")
CONTROLLER_KEY = FixedSigner("ctl")
TRUST_KEY = FixedSigner("root")
NODE_KEY = FixedSigner("node")
STRANGER_KEY = FixedSigner("eve")

CAPSULE = CapsuleId(sha256_text(b"a capsule"))
OP_ID = "0123456789abcdef0123456789abcdef"


def make_release() -> Release:
    """Return a release with one component of each shape."""
    return Release(
        product="acme/hello",
        version="1.2.3",
        release_counter=7,
        source=Source(commit="a" * 40, tree="b" * 40, date_s=1_700_000_000),
        installer=InstallerMinimum(version="0.1.0", reason="first format"),
        platforms={
            "bookworm": Platform(machine="x86_64", glibc="2.36", python="3.11", interpreter=None),
            "trixie": Platform(
                machine="aarch64", glibc="2.41", python="3.13", interpreter="/usr/bin/python3.13"
            ),
        },
        roles={"web": Role(components=("app", "config", "web"), case_collisions="error")},
        components=(
            _component("app", ComponentKind.SOURCE),
            Component(
                name="config",
                kind=ComponentKind.FILES,
                platforms=(),
                tree=object_id(b"config"),
                entries=1,
                content_bytes=10,
                files=(
                    ManagedFile(
                        file="hello.toml",
                        target="/etc/hello/hello.toml",
                        owner="root",
                        group="root",
                        mode=0o644,
                        template=True,
                    ),
                ),
            ),
            _component("runtime-bookworm", ComponentKind.RUNTIME, ("bookworm",)),
            Component(
                name="web",
                kind=ComponentKind.SERVICE,
                platforms=(),
                tree=object_id(b"web"),
                entries=1,
                content_bytes=10,
                units=(
                    Unit(
                        name="hello.service",
                        file="hello.service",
                        start_timeout_ms=10_000,
                        stop_timeout_ms=5_000,
                        soak_ms=2_000,
                        probe=Probe(http="http://127.0.0.1:@{node.port}/", timeout_ms=5_000),
                    ),
                ),
                guarded_steps=(("bin/migrate", "--check"),),
            ),
        ),
        budgets=Budgets(),
    )


def make_policy() -> Policy:
    """Return a policy with one release owner, one route owner and one trust owner."""
    keys = {
        key.public.keyid: PolicyKey(key=key.public, owner=owner, counter_from=1, counter_to=None)
        for key, owner in (
            (RELEASE_KEY, "ci"),
            (SECOND_RELEASE_KEY, "qa"),
            (ROUTE_KEY, "ops"),
            (TRUST_KEY, "root"),
        )
    }
    return Policy(
        product="acme/hello",
        version=1,
        keys=keys,
        release=AuthorityRule(
            keys=(RELEASE_KEY.public.keyid, SECOND_RELEASE_KEY.public.keyid), threshold=1
        ),
        route=AuthorityRule(keys=(ROUTE_KEY.public.keyid,), threshold=1),
        trust=AuthorityRule(keys=(TRUST_KEY.public.keyid,), threshold=1),
        release_counter_floor=1,
        revoked_capsules=frozenset(),
        revoked_keys=frozenset(),
    )


def make_full_policy() -> Policy:
    """Return a policy in which every optional part is used."""
    return replace(
        make_policy(),
        identities={
            "build": Identity(
                owner="build",
                san="https://git.example/acme/hello/.github/workflows/release.yml@refs/heads/main",
                issuer="https://issuer.example",
                counter_from=3,
                counter_to=9,
                claims={"repository_id": "42"},
            )
        },
        trusted_root=sha256_text(b"root"),
        revoked_certificates=frozenset({sha256_text(b"certificate")}),
        revoked_capsules=frozenset({CapsuleId(sha256_text(b"bad"))}),
        revoked_keys=frozenset({STRANGER_KEY.public.keyid}),
        downgrades=(Downgrade(capsule=CAPSULE, reason="the newest one loses mail"),),
        issued_s=1_700_000_000,
        max_age_s=90 * 86_400,
    )


def make_route() -> Route:
    """Return a route of one folder host and one SSH host."""
    return Route(
        product="acme/hello",
        nodes={
            "n1": RouteNode(
                role="web",
                platform="bookworm",
                domain="rack1",
                lane="a",
                endpoint=Endpoint(kind="local", root="/srv/hosts/n1"),
                node_key=NODE_KEY.public.keyid,
                vars={"port": "8101"},
            ),
            "n2": RouteNode(
                role="web",
                platform="bookworm",
                domain="rack2",
                lane="a",
                endpoint=Endpoint(
                    kind="ssh",
                    address="192.0.2.7",
                    name="n2.example",
                    user="root",
                    host_key="ssh-ed25519 AAAA",
                    jump=(
                        Hop(address="192.0.2.1", port=22, user="jump", host_key="ssh-ed25519 BBBB"),
                    ),
                ),
                node_key=None,
                vars={},
            ),
        },
        max_unavailable=1,
        floor=1,
        guard_min="L2",
        hub=None,
        policy=sha256_text(b"policy"),
        controllers=(CONTROLLER_KEY.public,),
        waivers=(
            Waiver(node="n1", rule="guard-level", value="L0", reason="a folder has no namespace"),
        ),
    )


def make_order() -> Order:
    """Return an order to install generation 7 over generation 6 on n1."""
    return Order(
        op_id=OP_ID,
        verb="install",
        node="n1",
        node_key=NODE_KEY.public.keyid,
        capsule=CAPSULE,
        release_counter=7,
        generation="7-01234567",
        prior="6-89abcdef",
        route=sha256_text(b"route"),
        epoch="e1",
        fence=3,
        nonce="nonce",
        boot_id="boot",
        valid_ms=60_000,
        confirm="controller",
        d1_ms=120_000,
        d2_ms=120_000,
        guard_level="L0",
        guard_policy="fail",
    )


def make_confirm() -> Confirm:
    """Return a confirm of that order."""
    return Confirm(
        op_id=OP_ID, node="n1", proof=sha256_text(b"proof"), route=sha256_text(b"route"), fence=3
    )


def make_marker() -> Marker:
    """Return a staged marker."""
    return Marker(
        kind="staged",
        node="n1",
        node_key=NODE_KEY.public.keyid,
        capsule=CAPSULE,
        release_counter=7,
        generation="7-01234567",
        previous="absent",
        route=sha256_text(b"route"),
        fence=3,
        op_id="",
        trees={"app": object_id(b"app")},
        derived={"units/hello.service": object_id(b"unit")},
    )


def make_proof() -> Proof:
    """Return a proof of one unit."""
    return Proof(
        op_id=OP_ID,
        node="n1",
        capsule=CAPSULE,
        generation="7-01234567",
        boot_id="boot",
        units=(
            UnitProof(
                unit="hello.service",
                pid=42,
                started_ticks=1000,
                invocation_id="i1",
                restarts=0,
                commit="a" * 40,
                evidence=("cwd /opt/capsule/generations/7-01234567/app",),
            ),
        ),
    )


def make_outcome() -> Outcome:
    """Return a committed outcome."""
    return Outcome(
        op_id=OP_ID,
        result="committed",
        by="confirm",
        proof=sha256_text(b"proof"),
        receipt="cmVjZWlwdA==",
    )


def make_receipt() -> Receipt:
    """Return a second receipt of a chain."""
    return Receipt(
        sequence=2,
        previous=sha256_text(b"first"),
        kind="install",
        node="n1",
        node_key=NODE_KEY.public.keyid,
        op_id=OP_ID,
        epoch="e1",
        fence=3,
        route=sha256_text(b"route"),
        capsule=CAPSULE,
        source="6-89abcdef",
        target="7-01234567",
        result="committed",
        reason="",
        guard="L0: not monitored",
        steps=(Step(name="stop", took_ms=7, limit_ms=5_000),),
        violations=(),
        counts={"objects": 3},
        details={"by": "confirm"},
    )


def make_unit_surface() -> UnitSurface:
    """Return a service that runs what is current."""
    return UnitSurface(
        fragment="same",
        active=True,
        pid=41,
        invocation_id="i" * 32,
        generation="7-01234567",
        commit="c" * 40,
        expected_commit="c" * 40,
        is_service=True,
    )


def make_survey() -> Survey:
    """Return a host on which everything agrees."""
    return Survey(
        installer="0.1.0",
        runtime="0badcafe",
        node="n1",
        node_key=b64encode(NODE_KEY.public.spki),
        machine="x86_64",
        machine_id="d" * 32,
        glibc="2.36",
        pythons={"3.11": "/usr/bin/python3.11"},
        service_manager="systemd",
        guard_levels=("L0",),
        boot_id="b1",
        boot_ms=1_000,
        wall_ms=1_700_000_000_000,
        free_bytes=2**33,
        free_inodes=1_000_000,
        noexec=False,
        ballast=True,
        policy=sha256_text(b"policy"),
        counter_floor=7,
        fence=3,
        route=sha256_text(b"route"),
        staged=("7-01234567",),
        open_op=None,
        hold=None,
        current="7-01234567",
        previous="6-89abcdef",
        marker=MarkerSurface(
            state="signed", generation="7-01234567", previous="6-89abcdef", capsule=CAPSULE
        ),
        generation=GenerationSurface(manifest=CAPSULE, staged=CAPSULE),
        receipt=ReceiptSurface(
            sequence=2, result="committed", current="7-01234567", capsule=CAPSULE, op_id=OP_ID
        ),
        units={"web.service": make_unit_surface()},
        files=(),
        obstacles=(),
        ignored=(),
        unreadable=(),
    )


def make_full_survey() -> Survey:
    """Return a host of which every surface has something to say."""
    return replace(
        make_survey(),
        open_op=OP_ID,
        hold=f"op {OP_ID}",
        marker=MarkerSurface(state="unsafe", why="has 2 names"),
        files=(ChangedFile(target="/etc/x", expected="blake3:" + "0" * 64, got="absent"),),
        obstacles=(Obstacle(generation="43-0a1b2c3d", target="/etc/web.conf"),),
        ignored=(Setting(unit="web.service", setting="OLD"),),
        unreadable=(Unreadable(surface="fence", why="state-malformed"),),
    )


def release_bundle(manifest: bytes, key: FixedSigner, **changes: object) -> bytes:
    """Return a bundle in which `key` signs a claim about `manifest`."""
    claim = {
        "capsule": CapsuleId(sha256_text(manifest)),
        "product": "acme/hello",
        "version": "1.2.3",
        "release_counter": 7,
    } | changes
    payload = release_statement(ReleaseClaim(**claim))  # type: ignore[arg-type]
    return encode_bundle(sign(payload, payload_type=IN_TOTO, signer=key))


def _component(name: str, kind: ComponentKind, platforms: tuple[str, ...] = ()) -> Component:
    return Component(
        name=name,
        kind=kind,
        platforms=platforms,
        tree=object_id(name.encode()),
        entries=2,
        content_bytes=20,
        external=(External(type="git-commit", name=name, digest="sha1:" + "a" * 40),),
    )
