"""Damage what carries trust, and see that only typed refusals leave."""

import random
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from capsule.clock import utc_now
from capsule.trust.medium import Medium
from capsule_manifest.digest import sha256_text
from capsule_manifest.envelope import decode_record, encode_record, sign
from capsule_manifest.errors import CapsuleError, render
from capsule_manifest.orders import CONFIRM_TYPE, ORDER_TYPE, encode_confirm, encode_order
from capsule_manifest.policy import POLICY_TYPE, encode_policy
from capsule_manifest.policy_update import (
    decode_policy_update,
    encode_policy_update,
    next_policy,
)
from capsule_manifest.release import encode_release
from capsule_manifest.route import ROUTE_TYPE, encode_route
from capsule_manifest.trust import verify_release
from capsule_manifest.trust_orders import VerifiedRoute, verify_confirm, verify_order, verify_route
from support import documents
from support.insider_fuzzing import insider_targets
from support.mutation import mutate_bytes, mutate_json
from support.trust_media import pinned, policy, write

__all__ = ["TrustFuzzer"]

_MUTATORS = (mutate_bytes, mutate_json)


class TrustFuzzer:
    """Cases by number: a target, damage, and how it ended. Keeps the first failure."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.cases = 0
        self.ended: Counter[tuple[str, str]] = Counter()
        self.failure = ""
        # The metadata must be fresh by the clock of the machine that fuzzes.
        self._now = utc_now().replace(microsecond=0)
        self.targets: dict[str, Callable[[random.Random], object]] = {
            "medium": self._medium,
            "update": self._update,
            "route": self._record(_ROUTE, _take_route),
            "order": self._record(_ORDER, _take_order),
            "confirm": self._record(_CONFIRM, _take_confirm),
            "bundle": self._bundle,
            **insider_targets(self._now),
        }

    def run(self, seconds: float) -> None:
        """Run cases until time is up or one fails."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.failure:
            self.case(self.cases)

    def case(self, number: int) -> None:
        """Run one case."""
        rng = random.Random(f"{self.seed}/{number}")
        name = rng.choice(sorted(self.targets))
        self.cases += 1
        try:
            self.targets[name](rng)
        except CapsuleError as error:
            render(error)
            self.ended[name, error.error_id] += 1
        except Exception:  # noqa: BLE001 - what a fuzzer is for
            again = f"--seed {self.seed} --case {number}"
            self.failure = f"{name}, {again}\n{traceback.format_exc()}"
        else:
            self.ended[name, "taken"] += 1

    def _medium(self, rng: random.Random) -> None:
        with tempfile.TemporaryDirectory(prefix="capsule-fuzz-") as name:
            folder = Path(name)
            trust = pinned(folder / "trust", policy(1))
            write(folder / "medium", policy(2), now=self._now)
            if rng.random() < 0.5:
                trust.update(Medium(folder / "medium"), now=self._now)
                write(folder / "medium", policy(3), now=self._now)
            files = sorted(p for p in (folder / "medium").rglob("*") if p.is_file())
            victim = rng.choice(files)
            if rng.random() < 0.1:
                victim.unlink()
            elif rng.random() < 0.1:
                victim.write_bytes(rng.choice(files).read_bytes())
            else:
                victim.write_bytes(rng.choice(_MUTATORS)(rng, victim.read_bytes()))
            taken = trust.update(Medium(folder / "medium"), now=self._now)
            assert taken.policy in {2: (policy(2),), 3: (policy(3),)}[taken.policy.version]

    def _update(self, rng: random.Random) -> None:
        following = [replace(documents.make_policy(), version=version) for version in (2, 3)]
        records = [
            sign(encode_policy(item), payload_type=POLICY_TYPE, signer=documents.TRUST_KEY)
            for item in following
        ]
        raw = rng.choice(_MUTATORS)(rng, encode_policy_update(records))
        taken = next_policy(documents.make_policy(), decode_policy_update(raw), where="update")
        assert taken in following, "a policy that nobody signed was taken"

    def _record(
        self, raw: bytes, take: Callable[[bytes], object]
    ) -> Callable[[random.Random], object]:
        def run(rng: random.Random) -> None:
            genuine = take(raw)
            damaged = take(rng.choice(_MUTATORS)(rng, raw))
            assert damaged == genuine, "what nobody signed was taken"

        return run

    def _bundle(self, rng: random.Random) -> None:
        raw = rng.choice(_MUTATORS)(rng, _BUNDLE)
        found = verify_release(
            documents.make_policy(), _MANIFEST, {"release-a": raw}, counter_floor=0
        )
        assert found.owners == ("ci",), "somebody else's voice was counted"


_ROUTE = encode_record(
    sign(encode_route(documents.make_route()), payload_type=ROUTE_TYPE, signer=documents.ROUTE_KEY)
)
_VERIFIED = VerifiedRoute(
    route=documents.make_route(), digest=sha256_text(encode_route(documents.make_route()))
)
_ORDER = encode_record(
    sign(
        encode_order(replace(documents.make_order(), route=_VERIFIED.digest)),
        payload_type=ORDER_TYPE,
        signer=documents.CONTROLLER_KEY,
    )
)
_CONFIRM = encode_record(
    sign(
        encode_confirm(replace(documents.make_confirm(), route=_VERIFIED.digest)),
        payload_type=CONFIRM_TYPE,
        signer=documents.CONTROLLER_KEY,
    )
)
_MANIFEST = encode_release(documents.make_release())
_BUNDLE = documents.release_bundle(_MANIFEST, documents.RELEASE_KEY)


def _take_route(raw: bytes) -> object:
    return verify_route(documents.make_policy(), decode_record(raw, where="route"))


def _take_order(raw: bytes) -> object:
    return verify_order(documents.make_policy(), _VERIFIED, decode_record(raw, where="order"))


def _take_confirm(raw: bytes) -> object:
    return verify_confirm(documents.make_policy(), _VERIFIED, decode_record(raw, where="confirm"))
