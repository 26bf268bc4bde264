import json

import pytest

from capsule.inventory import fleet_schema, load_fleet, read_fleet
from capsule_manifest.errors import Refused
from capsule_manifest.route import Hop
from support.formats import refused

TEXT = """\
format = 1
product = "acme/hello"

[fleet]
floor = 1
max_unavailable = 1

[jumps.bastion]
address = "bastion.example"
host_ca = "ssh-ed25519 BBBB the authority"

[nodes.n1]
local = "hosts/n1"
role = "web"
platform = "bookworm"
lane = "a"
vars = { port = "8101" }

[nodes.n2]
address = "192.0.2.7"
port = 2222
user = "deploy"
host_key = "ssh-ed25519 AAAA"
jump = ["bastion"]
role = "web"
platform = "bookworm"
domain = "rack2"
lane = "b"

[[waivers]]
node = "n1"
rule = "guard-level"
value = "L0"
reason = "a folder has no network namespace"
"""


def read(text, tmp_path):
    return read_fleet(text.encode(), folder=tmp_path, where="fleet.toml")


def problems(text, tmp_path):
    """Return every problem that is reported for `text`."""
    with pytest.raises(Refused) as caught:
        read(text, tmp_path)
    found, error = [], caught.value
    while error is not None:
        found.append(str(error))
        error = error.__cause__
    return found


def test_an_inventory_is_read_into_values(tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text(TEXT)
    fleet = load_fleet(path)
    assert (fleet.product, fleet.floor, fleet.max_unavailable) == ("acme/hello", 1, 1)
    assert fleet.guard_min == "L2"
    assert fleet.nodes["n1"].endpoint.kind == "local"
    assert fleet.nodes["n1"].vars == {"port": "8101"}
    assert fleet.nodes["n1"].domain == "default"
    ssh = fleet.nodes["n2"].endpoint
    assert (ssh.address, ssh.port, ssh.user) == ("192.0.2.7", 2222, "deploy")
    assert ssh.host_key == "ssh-ed25519 AAAA"
    assert ssh.jump == (
        Hop(
            address="bastion.example",
            port=22,
            user="root",
            host_key="@cert-authority ssh-ed25519 BBBB",
        ),
    )
    assert fleet.waivers[0].value == "L0"


def test_a_folder_host_is_relative_to_the_inventory_and_not_to_where_one_stands(
    tmp_path, monkeypatch
):
    path = tmp_path / "fleet.toml"
    path.write_text(TEXT)
    monkeypatch.chdir("/")
    assert load_fleet(path).nodes["n1"].endpoint.root == str(tmp_path / "hosts" / "n1")


@pytest.mark.parametrize(
    ("floor", "nodes"), [('"50%"', 1), ('"34%"', 1), ('"0%"', 0), ("0", 0), ('"1%"', 1)]
)
def test_a_floor_in_percent_is_rounded_up(tmp_path, floor, nodes):
    fleet = read(TEXT.replace("floor = 1", f"floor = {floor}"), tmp_path)
    assert fleet.floor == nodes


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("format = 1", "format = 2", "format"),
        ("floor = 1", "floor = -1", "fleet.floor"),
        ("floor = 1", "floor = true", "fleet.floor"),
        ("floor = 1", 'floor = "many"', "fleet.floor"),
        ("floor = 1", "floor = 2", "fleet.floor"),
        ("max_unavailable = 1", "max_unavailable = 0", "fleet.max_unavailable"),
        ("max_unavailable = 1", 'max_unavailable = "1"', "fleet.max_unavailable"),
        ("max_unavailable = 1", "max_unavailable = 1\nspeed = 3", "fleet.speed"),
        ('local = "hosts/n1"', 'address = "x"', "nodes.n1"),
        ('local = "hosts/n1"', 'local = "h"\naddress = "x"', "nodes.n1"),
        ('port = "8101"', "port = 8101", "nodes.n1.vars.port"),
        ('port = "8101"', 'port = "81\\n01"', "nodes.n1.vars.port"),
        ('port = "8101"', 'id = "x"', "nodes.n1"),
        ("port = 2222", "port = 70000", "nodes.n2.port"),
        ('lane = "b"', 'lane = "../b"', "nodes.n2.lane"),
        ("[nodes.n2]", "[nodes.N2]", "nodes.N2"),
        ('node = "n1"', 'node = "n9"', "waivers[0].node"),
        ('value = "L0"', 'value = "L9"', "waivers[0].value"),
        ('value = "L0"', 'value = "report"', "waivers[0]"),
        ('rule = "guard-level"', 'rule = "guard-policy"', "waivers[0]"),
        ('reason = "a folder has no network namespace"', 'reason = ""', "waivers[0].reason"),
        ('product = "acme/hello"', 'product = "hello"', "product"),
        ('jump = ["bastion"]', 'jump = ["bastions"]', "nodes.n2.jump"),
        ('jump = ["bastion"]', 'jump = "bastion"', "nodes.n2.jump"),
        ('host_key = "ssh-ed25519 AAAA"', 'host_key = "AAAA"', "nodes.n2.host_key"),
        ('host_key = "ssh-ed25519 AAAA"', "", "nodes.n2"),
        ('user = "deploy"', 'host_ca = "ssh-ed25519 CCCC"', "nodes.n2"),
        ('user = "deploy"', 'user = "-l x"', "nodes.n2.user"),
        ('address = "192.0.2.7"', 'address = "-oProxyCommand=x"', "nodes.n2.address"),
        ('address = "bastion.example"', 'address = "a b"', "jumps.bastion.address"),
        ("host_ca =", "host_kay =", "jumps.bastion"),
    ],
)
def test_a_wrong_value_is_named_by_its_path(tmp_path, old, new, place):
    assert old in TEXT
    found = problems(TEXT.replace(old, new), tmp_path)
    assert any(place in problem for problem in found), found
    assert all(problem.startswith("fleet-invalid") for problem in found)


def test_all_problems_are_reported_at_once(tmp_path):
    text = TEXT.replace("format = 1", "format = 2").replace("port = 2222", "port = 0")
    assert len(problems(text, tmp_path)) == 2


def test_a_lane_of_nine_nodes_is_refused(tmp_path):
    nodes = "".join(
        f'[nodes.m{index}]\nlocal = "h{index}"\nrole = "r"\nplatform = "p"\nlane = "a"\n'
        for index in range(8)
    )
    found = problems(TEXT + nodes, tmp_path)
    assert "at most 8 nodes in lane 'a', there are 9" in found[0]


def test_lanes_that_are_not_given_follow_from_the_failure_domains(tmp_path):
    nodes = "".join(
        f'[nodes.{domain}{index:02}]\nlocal = "{domain}{index}"\nrole = "r"\nplatform = "p"\n'
        f'domain = "{domain}"\n'
        for domain, count in (("east", 17), ("west", 3))
        for index in reversed(range(count))
    )
    fleet = read(TEXT + nodes, tmp_path)
    assert fleet.selected(lane="east-1", nodes=()) == tuple(f"east{i:02}" for i in range(8))
    assert fleet.selected(lane="east-2", nodes=()) == tuple(f"east{i:02}" for i in range(8, 16))
    assert fleet.selected(lane="east-3", nodes=()) == ("east16",)
    assert fleet.selected(lane="west-1", nodes=()) == ("west00", "west01", "west02")
    assert fleet.nodes["n1"].lane == "a"


def test_a_derived_lane_never_mixes_with_a_given_one(tmp_path):
    text = TEXT.replace('lane = "b"', "").replace('lane = "a"', 'lane = "rack2-1"')
    assert "nodes.n2.lane" in problems(text, tmp_path)[0]


def test_two_nodes_in_one_folder_are_refused(tmp_path):
    text = TEXT + '[nodes.n3]\nlocal = "hosts/./n1"\nrole = "r"\nplatform = "p"\nlane = "c"\n'
    assert "nodes.n3.local" in problems(text, tmp_path)[0]


@pytest.mark.parametrize("raw", [b"format = ", b"\xff", b"[nodes\n"])
def test_what_is_not_toml_is_refused(tmp_path, raw):
    with refused("fleet-invalid"):
        read_fleet(raw, folder=tmp_path, where="fleet.toml")


def test_an_inventory_that_is_not_there_is_refused(tmp_path):
    with refused("fleet-invalid"):
        load_fleet(tmp_path / "fleet.toml")


def test_nodes_are_selected_by_lane_or_name(tmp_path):
    fleet = read(TEXT, tmp_path)
    assert fleet.selected(lane="all", nodes=()) == ("n1", "n2")
    assert fleet.selected(lane="b", nodes=()) == ("n2",)
    assert fleet.selected(lane=None, nodes=("n2", "n1", "n2")) == ("n2", "n1")
    for lane, nodes in (("c", ()), (None, ("n9",))):
        with refused("node-unknown"):
            fleet.selected(lane=lane, nodes=nodes)


def test_the_schema_of_the_inventory_is_json_and_closed():
    schema = json.loads(json.dumps(fleet_schema()))
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == {"format", "product", "fleet", "nodes"}
