"""Proving needs a bundle and a pinned root: no network, home, writable disk or right clock."""

import ast
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sigstore._utils

from capsule.builder.signing import sign_directory
from capsule.keyless.verifier import load_verifier
from capsule_manifest.errors import Refused
from support.documents import RELEASE_KEY
from support.keyless_world import IDENTITY
from support.published import PUBLIC, public_root_bytes, published_attestations
from support.sources import imported_names, modules
from support.wrong_clock import WrongClock

CONFINED = str(Path(__file__).with_name("confined_verify.py"))
ONLINE = {"production", "staging", "from_tuf"}


def confined(*prefix, arguments=(), environment=None):
    """Run the command without any variable but PATH; return exit code, stdout and stderr."""
    done = subprocess.run(
        [*prefix, sys.executable, "-B", CONFINED, *map(str, arguments)],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **(environment or {})},
        cwd="/", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_the_hook_itself_ends_a_process_that_connects():
    code = (
        f"import sys; sys.path.insert(0, {str(Path(CONFINED).parent)!r}); import confined_verify;"
        "sys.addaudithook(confined_verify.refuse); import socket;"
        "socket.create_connection(('127.0.0.1', 9))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 99


def check(world, error_id, *prefix, environment=None):
    """Have a good capsule accepted and the same with another payload refused."""
    arguments = ("verify", world.capsule, "--policy", world.policy_path)
    code, out, err = confined(*prefix, arguments=arguments, environment=environment)
    assert code == 0, err
    assert "signed by ci" in out
    world.change_bundle(lambda bundle: bundle["dsseEnvelope"].update(payload="e30="))
    code, _, err = confined(*prefix, arguments=arguments, environment=environment)
    assert code == 10
    assert error_id in err


@pytest.fixture(params=["keyless", "key"])
def checked(request, signed):
    """A signed world, and the id that a changed payload is refused with."""
    if request.param == "keyless":
        return signed, "keyless-unproved"
    for path in (*signed.signatures(), *signed.signatures("packing")):
        path.unlink()
    sign_directory(signed.capsule, RELEASE_KEY)
    return signed, "signature-invalid"


def test_without_home_and_under_a_hook_that_refuses_sockets_the_result_is_the_same(checked):
    check(*checked)


@pytest.mark.parametrize("year", [1970, 2020, 2099])
def test_in_a_process_that_sees_another_year_the_result_is_the_same(checked, year, tmp_path):
    clock = WrongClock(tmp_path / "clock")
    clock.set(datetime(year, 1, 2, tzinfo=UTC))
    check(*checked, environment=clock.environment)


def namespaces():
    """Return a command that runs another without a network and on a read-only root."""
    script = (
        "set -e; mount --make-rprivate /; mount -o bind,ro,remount / 2>/dev/null ||"
        " { mount --bind / /; mount -o bind,ro,remount /; };"
        'if touch /capsule-was-here 2>/dev/null; then exit 98; fi; exec "$@"'
    )
    prefix = ("unshare", "--net", "--mount", "sh", "-c", script, "sh")
    if subprocess.run([*prefix[:3], "true"], check=False, capture_output=True).returncode:
        pytest.skip("this kernel gives no namespaces")
    assert subprocess.run([*prefix, "true"], check=False).returncode == 0, "the root is writable"
    return prefix


@pytest.mark.root
def test_without_a_network_namespace_and_on_a_read_only_root_the_result_is_the_same(checked):
    check(*checked, *namespaces())


PROVE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import confined_verify
sys.addaudithook(confined_verify.refuse)
from capsule.keyless.trusted_root import PinnedRoot
from capsule.keyless.verifier import SigstoreVerifier
from capsule_manifest.policy import Identity
root, bundles = json.load(sys.stdin)
verifier = SigstoreVerifier(PinnedRoot(root.encode(), where="root"))
for bundle, san, issuer in bundles:
    who = Identity(owner="ci", san=san, issuer=issuer, counter_from=1, counter_to=None)
    verifier.verify(json.dumps(bundle).encode(), {"ci": who}, where="bundle")
print(len(bundles))
"""


@pytest.mark.root
def test_bundles_of_the_public_instance_are_proved_without_a_network():
    published = published_attestations()
    root = public_root_bytes("sigstore").decode()
    asked = [root, [[published[name], *who] for name, who in PUBLIC.items()]]
    done = subprocess.run(
        [*namespaces(), sys.executable, "-B", "-c", PROVE, str(Path(CONFINED).parent)],
        input=json.dumps(asked), env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, cwd="/",
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{len(PUBLIC)}\n"), done.stderr


def set_clock(monkeypatch, moment):
    """Let the package see another time; its own check of keys is the only one that asks."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return moment.astimezone(tz)

    monkeypatch.setattr(sigstore._utils, "datetime", Clock)


@pytest.mark.parametrize("year", [1970, 2020, 2099])
def test_this_machines_clock_decides_nothing(signed, monkeypatch, year):
    """With the package alone, a clock before the keys' first day refuses every bundle."""
    from sigstore.models import TrustedRoot

    set_clock(monkeypatch, datetime(year, 1, 2, tzinfo=UTC))
    path = signed.folder / "trusted_root.json"
    if year < 2026:
        with pytest.raises(Exception, match="not found in trusted root"):
            TrustedRoot.from_file(str(path)).get_fulcio_certs()
    raw = signed.signatures()[0].read_bytes()
    assert load_verifier(path).verify(raw, {"ci": IDENTITY}, where="bundle").name == "ci"


@pytest.mark.parametrize("year", [1970, 2099])
def test_a_bad_bundle_is_refused_whatever_the_clock_says(signed, monkeypatch, year):
    set_clock(monkeypatch, datetime(year, 1, 2, tzinfo=UTC))
    signed.change_bundle(lambda bundle: bundle["dsseEnvelope"].update(payload="e30="))
    raw = signed.signatures()[0].read_bytes()
    with pytest.raises(Refused) as refused:
        load_verifier(signed.folder / "trusted_root.json").verify(
            raw, {"ci": IDENTITY}, where="bundle"
        )
    assert refused.value.error_id == "keyless-unproved"


def test_only_signing_may_look_for_the_public_instance():
    """`production`, `staging` and `from_tuf` use a network, or a cache that nobody signed."""
    found = {
        module.name
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr in ONLINE
    }
    assert found == {"capsule/capsule/keyless/signer.py"}


def test_only_the_keyless_package_imports_sigstore():
    """No host carries it, and it costs a quarter of a second."""
    found = {
        module.name
        for module in modules()
        for _, name in imported_names(module)
        if name == "sigstore"
    }
    assert found
    assert all(name.startswith("capsule/capsule/keyless/") for name in found)


def test_what_needs_no_keyless_signature_never_loads_sigstore():
    code = (
        "import sys; from capsule.cli import sign, verify; import capsule.keyless.verifier;"
        "sys.exit('sigstore' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
