"""The files that a new release begins with: small, complete, and right as they stand.

They build and install as they are, so that the first change is made to something that works.
"""

from collections.abc import Mapping

from capsule.schemas import SCHEMAS, schema_text

__all__ = ["IGNORED", "schema_files", "starter_files"]

IGNORED = ("dist/", "hosts/", "keys/", "*.key", "*.key.pub", "trust.json")
"""What lies beside a release and is no part of it; else the work tree would never be clean."""

_RELEASE = """\
#:schema schemas/release.schema.json
# What a release is made of. Every path is relative to this file, and comes from the git commit.
format = 1
product = "{product}"
version = "0.1.0"
release_counter = 1  # grows with every release; hosts never go back by themselves

[installer]
min_version = "0.1.0"
reason = "the first version that installs"

# A kind of host. Wheels are chosen for it, never for the machine that builds.
[platforms.linux]
machine = "{machine}"
glibc = "2.28"
python = "{python}"

[components.code]
kind = "source"
path = "."
include = ["public"]

# Wheels, locked with digests (`uv pip compile --generate-hashes`, `pip-compile`):
# [components.deps]
# kind = "wheels"
# requirements = "requirements.lock"

[components.service]
kind = "service"

[[components.service.units]]
file = "units/{name}.service"
soak_s = 2.0
probe = {{ http = "http://127.0.0.1:@{{node.port}}/", timeout_s = 5.0 }}

# What one kind of node receives.
[roles.web]
components = ["code", "service"]

# stop 5 + start 10 + soak 2 + reserve 10 = 27 s must fit into d1_s.
[budgets]
d1_s = 40
d2_s = 60
ttl_s = 1800
"""

_FLEET = """\
#:schema schemas/fleet.schema.json
# Where releases go: the single inventory.
format = 1
product = "{product}"

[fleet]
floor = 0  # how many nodes must stay healthy during a rollout
max_unavailable = 1
guard_min = "L2"

# A host that is a folder of this machine, to try things out.
[nodes.n1]
local = "hosts/n1"
role = "web"
platform = "linux"
lane = "a"
vars = {{ port = "8101" }}

[[waivers]]
node = "n1"
rule = "guard-level"
value = "L0"
reason = "a folder has no network namespace of its own"
"""

# Every host that has the platform has this interpreter, so the first release needs no wheels.
_UNIT = """\
[Unit]
Description={product}

[Service]
Type=simple
WorkingDirectory=@{{generation}}/code/public
ExecStart=/usr/bin/env python{python} -m http.server --bind 127.0.0.1 @{{node.port}}
Restart=on-failure
RestartSec=1
TimeoutStartSec=10
TimeoutStopSec=5

[Install]
WantedBy=multi-user.target
"""

_PAGE = "<!doctype html><title>{product}</title><p>Replace me, and release again.</p>\n"


def starter_files(product: str, *, machine: str, python: str) -> Mapping[str, bytes]:
    """Return the first files of a release by their paths, the schemas for editors included."""
    values = {
        "product": product,
        "name": product.rpartition("/")[2],
        "machine": machine,
        "python": python,
    }
    texts = {
        "release.toml": _RELEASE.format(**values),
        "fleet.toml": _FLEET.format(**values),
        f"units/{values['name']}.service": _UNIT.format(**values),
        "public/index.html": _PAGE.format(**values),
    }
    return {**{path: text.encode() for path, text in texts.items()}, **schema_files()}


def schema_files() -> Mapping[str, bytes]:
    """Return the JSON Schemas of all documents, which editors understand."""
    return {f"schemas/{name}.schema.json": schema_text(name).encode() for name in SCHEMAS}
