"""One capsule with source, wheels, a closure of Nix and an image, from real tools to a host.

It is what `./dev lab combined` shows with large inputs and real hosts: here they are small, and the
host is a folder.
"""

import json
import os
import socket
import subprocess
import urllib.request

import pytest

from support.combined import CombinedRelease, locked_wheels
from support.combined_bills import Bills
from support.debian_image import folder_image
from support.greeting import GREETING_PATHS, PACKAGES
from support.nix import IsolatedNix, reason_without_nix
from support.programs import lacking
from support.registry import REGISTRY_PACKAGES, LoopbackRegistry

LACKS = reason_without_nix() or lacking({**PACKAGES, **REGISTRY_PACKAGES, "umoci": "umoci"})
pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.network,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(LACKS), reason=LACKS),
]
WHEELS = ("click", "h11", "uvicorn")
OWN, OTHER = "older", "older-py312"
STATUS = "Package: base-files\nStatus: install ok installed\nArchitecture: amd64\nVersion: 12.4\n"
KEYS = ("--policy", "trust.json", "--controller-key", "controller.key")
FLEET = """\
format = 1
product = "acme/combined"
[fleet]
floor = 0
max_unavailable = 1
[nodes.n1]
local = "n1"
role = "web"
platform = "{own}"
lane = "a"
vars = {{ port = "{port}" }}
[[waivers]]
node = "n1"
rule = "guard-level"
value = "L0"
reason = "a folder has no network namespace of its own"
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Lock with a network, build without one; return the release, its bills and its nix."""
    folder = tmp_path_factory.mktemp("combined")
    nix = IsolatedNix(folder / "nix")
    tree = folder / "tree"
    (tree / "var/lib/dpkg").mkdir(parents=True)
    (tree / "var/lib/dpkg/status").write_text(STATUS)
    folder_image(tree, folder / "layout", "1.0")
    wheels = locked_wheels()
    with LoopbackRegistry(folder / "registry") as registry:
        release = CombinedRelease(
            folder=folder,
            image=registry.push(folder / "layout", "1.0", "acme/base"),
            numbers=100,
            requirements="\n".join(wheels[name] for name in WHEELS) + "\n",
            modules=("h11",),
            targets=(OWN, OTHER),
            greets=False,
        )
        release.environment = {
            **os.environ,
            **nix.environment,
            "HOME": os.environ["HOME"],
            "XDG_CACHE_HOME": str(folder / "cache"),
            "XDG_STATE_HOME": str(folder / "state"),
            "SSL_CERT_FILE": str(registry.certificates),
        }
        release.write()
        release.run("lock", "--release", "release/release.toml")
    release.commit_all()
    command = ("build", "--release", "release/release.toml", "--key", "release.key", "--json")
    done = json.loads(release.run(*command, is_offline=True).stdout)
    release.trust()
    return release, folder / done["folder"], nix


@pytest.fixture(scope="module")
def host(built):
    """Stage and install it on a folder; return the folder of its generation and its port."""
    release, capsule, _ = built
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    root = release.folder / "n1"
    root.mkdir(mode=0o755)
    (release.folder / "fleet.toml").write_text(FLEET.format(own=OWN, port=port))
    release.run("stage", str(capsule), "--lane", "all", *KEYS, "--route-key", "route.key")
    try:
        release.run("install", str(capsule), "--node", "n1", *KEYS)
        (generation,) = (root / "opt/capsule/generations").iterdir()
        yield generation, port
    finally:
        script = root / "var/lib/capsule/recovery/service-process.sh"
        if script.exists():
            argv = ["sh", str(script), str(root), "stop", "web.service", "3000"]
            subprocess.run(argv, check=False)


def test_the_bills_are_valid_and_list_what_is_in_it(built):
    release, capsule, nix = built
    bills = Bills(capsule)
    assert (bills.cyclonedx_problem(), bills.spdx_problem()) == ("", "")
    assert bills.provenance_problem(release.git(release.project, "rev-parse", "HEAD")) == ""
    for target in (OWN, OTHER):
        assert bills.wheels("deps", target) == release.required_on(target)
    assert bills.os_packages() == {"base-files 12.4 amd64"}
    paths = nix.run("nix-store", "-qR", f"/nix/store/{bills.closure_root()}").split()
    assert len(paths) == GREETING_PATHS
    assert {line.split()[0] for line in bills.store_paths()} == {p.split("/")[3] for p in paths}


def test_its_service_answers_from_its_wheels(host):
    _, port = host
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as got:
        told = json.load(got)
    assert (told["wheels"], told["imported"]) == (sorted(WHEELS), ["h11"])


def test_a_host_has_only_what_is_for_its_platform(built, host):
    _, capsule, _ = built
    generation, _ = host
    components = Bills(capsule).release["components"]
    mine = {item["name"] for item in components if OWN in (item["platforms"] or [OWN])}
    others = {tuple(item["platforms"]) for item in components if item["platforms"] == [OTHER]}
    assert others == {(OTHER,)}
    assert not (generation / "deps/lib/python3.12").exists()
    assert {path.name for path in generation.iterdir()} >= mine - {"web", f"runtime-{OWN}"}


def test_the_image_is_read_in_place(built, host):
    _, capsule, _ = built
    generation, _ = host
    argv = ["skopeo", "inspect", "--raw", f"oci:{generation}/base"]
    raw = subprocess.run(argv, check=True, capture_output=True).stdout
    assert json.loads(raw)["config"]["digest"] == Bills(capsule).image_config()


def test_the_closure_runs_where_it_is_seen_as_the_store(host):
    generation, _ = host
    store = generation / "greet/nix/store"
    (shell,) = store.glob("*-shell-1.0")
    seen = f"mount -t tmpfs none /nix && mkdir /nix/store && mount --bind {store} /nix/store"
    run = f"{seen} && exec /nix/store/{shell.name}/bin/sh -c 'echo greets'"
    done = subprocess.run(["unshare", "-mn", "sh", "-c", run], check=True, capture_output=True)
    assert done.stdout == b"greets\n"
