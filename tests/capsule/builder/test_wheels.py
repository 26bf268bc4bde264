"""Locked requirements: what is taken for a target, and what is refused by name."""

import pytest

from capsule.builder.lockfile import WheelPin, WheelSet
from capsule.builder.wheels import check_file, check_pins, parse_requirements, unfit
from capsule_manifest.errors import Refused
from support.wheels import target

A, B, C = "a" * 64, "b" * 64, "c" * 64


def parse(text, **changes):
    return parse_requirements(text.encode(), target(**changes), where="requirements.lock")


def refusal(text):
    with pytest.raises(Refused) as caught:
        parse(text)
    return caught.value


def test_requirements_as_tools_write_them_are_read():
    found = parse(
        "# a comment\n"
        "Click==8.1.7 \\\n"
        f"    --hash=sha256:{A} \\\n"
        f"    --hash=sha256:{B}\n"
        "    # via uvicorn\n"
        f"uvicorn[standard]==0.30 ; python_version >= '3.8' --hash=sha256:{C}  # why\n"
        "\n"
    )
    assert [(item.name, item.version, item.sha256) for item in found] == [
        ("click", "8.1.7", {A, B}),
        ("uvicorn", "0.30", {C}),
    ]
    assert [item.where for item in found] == ["requirements.lock:2", "requirements.lock:6"]


def test_requirements_for_other_machines_are_left_out():
    text = (
        f'colorama==0.4 ; sys_platform == "win32" --hash=sha256:{A}\n'
        f'uvloop==0.20 ; platform_machine == "aarch64" --hash=sha256:{B}\n'
    )
    assert parse(text) == ()
    assert [item.name for item in parse(text, machine="aarch64")] == ["uvloop"]


def test_one_version_for_each_python_is_chosen_by_marker():
    text = (
        f'numpy==1.26 ; python_version < "3.12" --hash=sha256:{A}\n'
        f'numpy==2.1 ; python_version >= "3.12" --hash=sha256:{B}\n'
    )
    assert [item.version for item in parse(text)] == ["1.26"]
    assert [item.version for item in parse(text, python="3.13")] == ["2.1"]


def test_two_versions_that_hold_on_one_target_are_refused():
    error = refusal(f"a==1 --hash=sha256:{A}\na==2 --hash=sha256:{B}\n")
    assert (error.error_id, error.got) == ("requirements-invalid", "1 and 2")


@pytest.mark.parametrize(
    "text",
    ["click==8.1.7\n", f"click==8.1.7 --hash=md5:{'a' * 32}\n", "click==8 --hash=sha256:short\n"],
    ids=["none", "weak", "malformed"],
)
def test_a_lock_without_hashes_is_refused(text):
    assert refusal(text).error_id == "requirement-without-hash"


@pytest.mark.parametrize("specifier", [">=8", "==8.*", "~=8.1", "", "==8,!=9"])
def test_a_requirement_without_one_version_is_refused(specifier):
    assert refusal(f"click{specifier} --hash=sha256:{A}\n").error_id == "requirement-not-pinned"


@pytest.mark.parametrize(
    "line",
    ["./demo-1.0.tar.gz", "demo-1.0.zip", "demo @ file:///x/demo-1.0.tar.gz", "../x/demo.tgz"],
)
def test_a_requirement_that_is_an_sdist_is_refused_by_name(line):
    error = refusal(f"{line} --hash=sha256:{A}\n")
    assert error.error_id == "wheel-is-sdist"
    assert "demo" in error.got


@pytest.mark.parametrize("line", ["-e .", "-e ./lib", "--editable lib"])
def test_editable_installs_are_refused_with_the_path(line):
    error = refusal(f"{line}\n")
    assert (error.error_id, error.got) == ("requirement-editable", line)


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://user:secret@index.example/simple",
        "-i https://user:secret@index.example/simple",
        "--extra-index-url=https://user:secret@index.example/simple",
        "-r other.txt",
        "-c constraints.txt",
        "--no-binary :all:",
        "demo @ https://user:secret@index.example/demo-1.0-py3-none-any.whl",
        "./demo-1.0-py3-none-any.whl",
        "git+https://user:secret@index.example/demo",
        "demo ==",
    ],
)
def test_an_option_or_an_address_is_refused_without_repeating_a_password(line):
    error = refusal(f"{line}\n")
    assert error.error_id == "requirements-invalid"
    assert "secret" not in str(error)


def test_a_file_that_is_not_text_is_refused():
    with pytest.raises(Refused) as caught:
        parse_requirements(b"\xff\xfe", target(), where="x")
    assert caught.value.error_id == "requirements-invalid"


@pytest.mark.parametrize(
    ("file", "error_id"),
    [
        ("demo-1.0.tar.gz", "wheel-is-sdist"),
        ("demo-1.0.zip", "wheel-is-sdist"),
        ("demo-1.1-py3-none-any.whl", "wheel-name-invalid"),
        ("other-1.0-py3-none-any.whl", "wheel-name-invalid"),
        ("demo.whl", "wheel-name-invalid"),
        ("demo-1.0-cp311-cp311-manylinux_2_40_x86_64.whl", "wheel-unfit"),
        ("demo-1.0-cp311-cp311-win_amd64.whl", "wheel-unfit"),
    ],
)
def test_a_file_that_is_no_wheel_for_the_target_is_refused(file, error_id):
    with pytest.raises(Refused) as caught:
        check_file(file, "demo", "1.0", target(), where="x")
    assert caught.value.error_id == error_id


def test_a_wheel_tag_newer_than_the_hosts_glibc_is_refused_with_both():
    with pytest.raises(Refused) as caught:
        check_file(
            "demo-1.0-cp311-cp311-manylinux_2_40_x86_64.whl", "demo", "1", target(), where=""
        )
    assert "2.36" in caught.value.expected
    assert "2.40" in caught.value.got


def test_a_local_version_answers_the_public_one_and_not_the_other_way_round():
    check_file("demo-1.0+cpu-py3-none-any.whl", "demo", "1.0", target(), where="")
    check_file("demo-1.0+cpu-py3-none-any.whl", "demo", "1.0+cpu", target(), where="")
    for file, version in (("demo-1.0", "1.0+cpu"), ("demo-1.0+cpu", "1.0+cuda")):
        with pytest.raises(Refused) as caught:
            check_file(f"{file}-py3-none-any.whl", "demo", version, target(), where="")
        assert caught.value.error_id == "wheel-name-invalid"


@pytest.mark.parametrize(
    ("files", "error_id", "shown"),
    [
        (["demo-1.0.tar.gz"], "wheel-is-sdist", "demo-1.0.tar.gz"),
        (["demo-0.9-py3-none-any.whl", "demo-1.0.tar.gz"], "wheel-is-sdist", "demo-1.0.tar.gz"),
        (["demo-1.0-cp311-cp311-win_amd64.whl", "demo-1.0.tar.gz"], "wheel-unfit", "win_amd64"),
        (
            [
                "demo-1.0-cp311-cp311-manylinux_2_39_x86_64.whl",
                "demo-1.0-cp311-cp311-win_amd64.whl",
            ],
            "wheel-unfit",
            "2.39",
        ),
        (["demo-1.0-py3-none-any.whl"], "wheel-not-found", "demo-1.0-py3-none-any.whl"),
        ([], "wheel-not-found", "no file"),
    ],
)
def test_why_no_file_can_be_used_is_said(files, error_id, shown):
    (wanted,) = parse(f"demo==1.0 --hash=sha256:{A}\n")
    error = unfit(wanted, files, target())
    assert error.error_id == error_id
    assert shown in error.got


def pins(**changes):
    pin = {
        "name": "demo",
        "version": "1.0",
        "file": "demo-1.0-py3-none-any.whl",
        "sha256": A,
        "size_bytes": 1,
    }
    return WheelSet(
        input_sha256="i", target=target().description, wheels=(WheelPin(**(pin | changes)),)
    )


def check(wheel_set, **changes):
    wanted = parse(f"demo==1.0 --hash=sha256:{A}\n")
    check_pins(wanted, wheel_set, target(**changes), input_sha256="i", where="release.lock")


def test_pins_that_answer_the_requirements_are_accepted():
    check(pins())


@pytest.mark.parametrize(
    ("wheel_set", "changes"),
    [
        (pins(sha256=B), {}),
        (pins(name="other"), {}),
        (WheelSet(input_sha256="i", target=target().description, wheels=()), {}),
        (WheelSet(input_sha256="j", target=target().description, wheels=pins().wheels), {}),
        (pins(), {"glibc": "2.31"}),
        (pins(), {"python": "3.12"}),
    ],
    ids=["digest", "name", "none", "input", "glibc", "python"],
)
def test_pins_that_answer_another_question_are_stale(wheel_set, changes):
    with pytest.raises(Refused) as caught:
        check(wheel_set, **changes)
    assert caught.value.error_id == "lock-stale"
