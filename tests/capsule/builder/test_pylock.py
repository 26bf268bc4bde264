"""`pylock.toml`: the wheel is chosen here; addresses in it decide nothing."""

import pytest

from capsule.builder.pylock import parse_pylock
from capsule_manifest.errors import Refused
from support.wheels import target

A, B, C = "a" * 64, "b" * 64, "c" * 64
HEAD = 'lock-version = "1.0"\ncreated-by = "test"\n'


def package(*lines, name="demo", version="1.0"):
    return f'[[packages]]\nname = "{name}"\nversion = "{version}"\n' + "\n".join(lines) + "\n"


def wheel(tag, sha256=A, name="demo-1.0", where='url = "https://index.example/{file}"'):
    file = f"{name}-{tag}.whl"
    place = where.format(file=file)
    return f'[[packages.wheels]]\nname = "{file}"\n{place}\nhashes = {{ sha256 = "{sha256}" }}'


def parse(text, **changes):
    return parse_pylock((HEAD + text).encode(), target(**changes), where="pylock.toml")


def refusal(text):
    with pytest.raises(Refused) as caught:
        parse(text)
    return caught.value


def test_the_best_wheel_for_the_target_is_chosen():
    text = package(
        wheel("py3-none-any", A),
        wheel("cp311-cp311-manylinux_2_17_x86_64", B),
        wheel("cp311-cp311-manylinux_2_39_x86_64", C),
    )
    (found,) = parse(text)
    assert (found.sha256, found.file) == ({B}, "demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl")
    (found,) = parse(text, glibc="2.39")
    assert found.sha256 == {C}
    (found,) = parse(text, python="3.12")
    assert found.sha256 == {A}


def test_a_path_is_kept_and_an_address_is_not():
    (found,) = parse(package(wheel("py3-none-any", where='path = "wheels/{file}"')))
    assert found.path == "wheels/demo-1.0-py3-none-any.whl"
    (found,) = parse(package(wheel("py3-none-any")))
    assert found.path is None


def test_packages_for_other_machines_are_left_out():
    other = package("marker = \"sys_platform == 'win32'\"", wheel("py3-none-any"))
    assert parse(other) == ()


def test_groups_are_taken_by_default_only():
    text = package("marker = \"'dev' in dependency_groups\"", wheel("py3-none-any"))
    assert parse(text) == ()
    (found,) = parse('dependency-groups = ["dev"]\ndefault-groups = ["dev"]\n' + text)
    assert found.name == "demo"


@pytest.mark.parametrize(
    ("text", "error_id"),
    [
        (package('[packages.sdist]\nname = "demo-1.0.tar.gz"\npath = "x/demo-1.0.tar.gz"\n'
                 f'hashes = {{ sha256 = "{A}" }}'), "wheel-is-sdist"),
        (package(wheel("cp311-cp311-win_amd64")), "wheel-unfit"),
        (package(wheel("cp311-cp311-manylinux_2_39_x86_64")), "wheel-unfit"),
        (package(wheel("py3-none-any", name="other-1.0")), "requirements-invalid"),
        (package(wheel("py3-none-any").replace("sha256", "md5")), "requirement-without-hash"),
        (package(wheel("py3-none-any", "A" * 64)), "requirement-without-hash"),
        (package('[packages.directory]\npath = "."\neditable = true'), "requirement-editable"),
        (package('[packages.directory]\npath = "."'), "requirements-invalid"),
        (package('[packages.vcs]\ntype = "git"\npath = "."\ncommit-id = "x"'),
         "requirements-invalid"),
        (package(wheel("py3-none-any")) + package(wheel("py3-none-any")), "requirements-invalid"),
        (package('requires-python = ">=3.12"', wheel("py3-none-any")), "requirements-invalid"),
        ('requires-python = ">=3.12"\n' + package(wheel("py3-none-any")), "requirements-invalid"),
        ("environments = [\"sys_platform == 'win32'\"]\n" + package(wheel("py3-none-any")),
         "requirements-invalid"),
        ("packages = 1\n", "requirements-invalid"),
        ("nonsense", "requirements-invalid"),
    ],
)  # fmt: skip
def test_what_can_not_be_used_is_refused(text, error_id):
    error = refusal(text)
    assert error.error_id == error_id
    assert "index.example" not in str(error)


def test_a_newer_version_of_the_format_is_refused():
    with pytest.raises(Refused) as caught:
        parse_pylock(b'lock-version = "2.0"\ncreated-by = "x"\npackages = []\n', target(), where="")
    assert caught.value.error_id == "requirements-invalid"
