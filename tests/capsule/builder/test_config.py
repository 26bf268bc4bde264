"""`release.toml`: every wrong value is named with its path, what was expected, what was got."""

import tomllib

import pytest

from capsule.builder.config import (
    FilesSource,
    GitSource,
    PathOrigin,
    RecoverySource,
    ServiceSource,
    ToolSource,
    UrlOrigin,
    WheelOrigin,
    WheelsSource,
    load_release,
    parse_release,
    release_schema,
)
from capsule_manifest.errors import Refused, render

TEXT = """\
format = 1
product = "acme/hello"
version = "1.0.0"
release_counter = 3
[installer]
min_version = "0.1.0"
reason = "the first release"
[platforms.bookworm]
machine = "x86_64"
glibc = "2.36"
python = "3.11"
interpreter = "/usr/bin/python3.11"
[platforms.trixie]
machine = "aarch64"
glibc = "2.41"
python = "3.13"
[components.app]
kind = "source"
path = "."
include = ["app"]
[components.deps]
kind = "wheels"
requirements = "requirements.lock"
platforms = ["bookworm"]
[components.other]
kind = "wheels"
pylock = "pylock.toml"
[components.linter]
kind = "helper"
wheel = "ruff==0.14.5"
member = "ruff-*.data/scripts/ruff"
[components.node]
kind = "toolchain"
url = "https://example.org/node.tar.xz"
sha256 = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
[components.tool]
kind = "helper"
path = "tools/tool"
[components.web]
kind = "service"
guarded_steps = [["bin/migrate", "--check"]]
[[components.web.units]]
file = "units/hello.service"
soak_s = 2.5
probe = { http = "http://127.0.0.1:@{node.port}/health", timeout_s = 4.0 }
[[components.web.units]]
file = "units/hello.timer"
[components.config]
kind = "files"
[[components.config.files]]
source = "files/hello.toml"
target = "/etc/hello/hello.toml"
mode = "0640"
template = true
[components.recovery]
kind = "recovery"
paths = ["RECOVERY.md"]
[roles.web]
components = ["app", "deps", "web"]
case_collisions = "error"
[budgets]
d1_s = 90
"""


def parse(text, tmp_path):
    return parse_release(text.encode(), folder=tmp_path)


def issues(text, tmp_path):
    """Return all issues of a refused release as (path, expected, got)."""
    with pytest.raises(Refused) as caught:
        parse(text, tmp_path)
    error = caught.value
    found = []
    while error is not None:
        assert error.error_id == "release-invalid"
        found.append((error.where.removeprefix("release.toml: "), error.expected, error.got))
        error = error.__cause__
    return found


def test_a_whole_release_becomes_values(tmp_path):
    release = parse(TEXT, tmp_path)
    assert (release.product, release.version, release.release_counter) == (
        "acme/hello",
        "1.0.0",
        3,
    )
    assert release.platforms["trixie"].interpreter is None
    assert (release.budgets.d1_ms, release.budgets.d2_ms) == (90_000, 120_000)
    assert release.roles["web"].case_collisions == "error"
    assert [type(component) for component in release.components] == [
        GitSource,
        WheelsSource,
        WheelsSource,
        ToolSource,
        ToolSource,
        ToolSource,
        ServiceSource,
        FilesSource,
        RecoverySource,
    ]
    by_name = {component.name: component for component in release.components}
    assert [by_name[n].origin for n in ("linter", "node", "tool")] == [
        WheelOrigin(requirement="ruff==0.14.5", member="ruff-*.data/scripts/ruff"),
        UrlOrigin(url="https://example.org/node.tar.xz", sha256="a" * 64, member=None),
        PathOrigin(path="tools/tool"),
    ]
    assert by_name["web"].units[0].soak_ms == 2500
    assert by_name["web"].units[0].probe.timeout_ms == 4000
    assert by_name["web"].units[1].probe is None
    assert by_name["web"].guarded_steps == (("bin/migrate", "--check"),)
    assert by_name["config"].files[0].mode == 0o640
    assert release.platforms_of(by_name["app"]) == ("bookworm", "trixie")
    assert release.platforms_of(by_name["deps"]) == ("bookworm",)


@pytest.mark.parametrize(
    ("old", "new", "path", "got"),
    [
        ('product = "acme/hello"', 'product = "Acme"', "product", "'Acme'"),
        ("format = 1", "format = 2", "format", "2"),
        ("release_counter = 3", "release_counter = 0", "release_counter", "0"),
        ("release_counter = 3", 'release_counter = "3"', "release_counter", "'3'"),
        ("release_counter = 3", "release_counter = true", "release_counter", "True"),
        ('glibc = "2.36"', "glibc = 2.36", "platforms.bookworm.glibc", "2.36"),
        ('python = "3.11"', 'python = "3.9"', "platforms.bookworm.python", "'3.9'"),
        ('"x86_64"', '"sparc"', "platforms.bookworm.machine", "'sparc'"),
        ('kind = "source"', 'kind = "picture"', "components.app.kind", "'picture'"),
        ('kind = "source"\n', "", "components.app.kind", "'nothing'"),
        ('path = "."', 'path = "/srv"', "components.app.path", "'/srv'"),
        ('path = "."', 'path = "a/../b"', "components.app.path", "'a/../b'"),
        ('pylock = "pylock.toml"', "", "components.other", "dict"),
        ('"ruff==0.14.5"', '"ruff"', "components.linter.wheel", "'ruff'"),
        ('"ruff==0.14.5"', '"ruff==0.*"', "components.linter.wheel", "'ruff==0.*'"),
        ('sha256 = "aaaa', 'sha256 = "zz', "components.node.sha256", None),
        ("https://example.org", "ftp://example.org", "components.node.url", None),
        ('path = "tools/tool"', 'path = "t"\nwheel = "a==1"', "components.tool", "dict"),
        ('path = "tools/tool"', 'path = "t"\nmember = "x"', "components.tool", "dict"),
        ("soak_s = 2.5", "soak_s = -1.0", "components.web.units[0].soak_s", "-1.0"),
        ("soak_s = 2.5", "soak_s = nan", "components.web.units[0].soak_s", "nan"),
        ("hello.timer", "hello.mount", "components.web.units[1].file", "'hello.mount'"),
        ("hello.timer", "hello.service", "components.web.units", "hello.service"),
        ('mode = "0640"', 'mode = "4755"', "components.config.files[0].mode", "'4755'"),
        ('"/etc/hello/', '"etc/', "components.config.files[0].target", "'etc/hello.toml'"),
        ('["RECOVERY.md"]', "[]", "components.recovery.paths", "list"),
        ('"web"]', '"wbe"]', "roles.web.components[2]", "'wbe'"),
        ('"web"]', '"app"]', "roles.web.components", "app"),
        ('["bookworm"]', '["buster"]', "components.deps.platforms[0]", "'buster'"),
        ("d1_s = 90", "d1_s = 0", "budgets.d1_s", "0"),
        ("d1_s = 90", "d1 = 90", "budgets.d1", "'d1'"),
        ("[components.tool]", "[components.units]", "components.units", "'units'"),
        ("[components.tool]", "[components.runtime-x]", "components.runtime-x", "'runtime-x'"),
    ],
)
def test_a_wrong_value_is_named_with_its_path(tmp_path, old, new, path, got):
    assert old in TEXT
    found = issues(TEXT.replace(old, new, 1), tmp_path)
    matching = [issue for issue in found if issue[0] == path]
    assert matching, found
    assert matching[0][1], "an issue says what was expected"
    assert got is None or matching[0][2] == got


def test_all_wrong_values_are_reported_together(tmp_path):
    text = TEXT.replace('"acme/hello"', '"x"').replace("d1_s = 90", "d1_s = -1")
    text = text.replace('mode = "0640"', 'mode = "1"')
    assert [path for path, _, _ in issues(text, tmp_path)] == [
        "product",
        "components.config.files[0].mode",
        "budgets.d1_s",
    ]
    with pytest.raises(Refused) as caught:
        parse(text, tmp_path)
    shown = render(caught.value)
    assert "issue 1 of 3" in shown
    assert "components.config.files[0].mode" in shown


@pytest.mark.parametrize(
    "raw",
    [b"\xff", b"a = ", b"#" * (1024 * 1024 + 1), b"a = " + b"[" * 100_000],
    ids=["encoding", "syntax", "size", "depth"],
)
def test_what_is_not_toml_is_refused(tmp_path, raw):
    with pytest.raises(Refused) as caught:
        parse_release(raw, folder=tmp_path)
    assert caught.value.error_id == "release-invalid"


def test_a_missing_release_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(Refused) as caught:
        load_release(tmp_path / "release.toml")
    assert caught.value.error_id == "release-missing"
    assert "capsule init" in caught.value.advice


def test_paths_are_relative_to_the_folder_of_the_file(tmp_path):
    (tmp_path / "release.toml").write_text(TEXT)
    assert load_release(tmp_path / "release.toml").folder == tmp_path


def test_the_published_schema_describes_the_document():
    schema = release_schema()
    assert set(schema["required"]) <= set(tomllib.loads(TEXT))
    assert schema["additionalProperties"] is False
    kinds = schema["properties"]["components"]
    assert "discriminator" in str(kinds)
