"""The launcher: whatever surrounds it, the same program starts in the same way."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import capsule_installer
from capsule_manifest.wire import RecordReader
from support.capsules import real_runtime

RUNTIME = "01234567"
LAUNCHER = Path(capsule_installer.__file__).parent / "bin_capsule.sh"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    root = tmp_path / "host"
    runtime = root / "opt/capsule/runtime" / RUNTIME
    for path, content in real_runtime().items():
        (runtime / path).parent.mkdir(parents=True, exist_ok=True)
        (runtime / path).write_bytes(content)
    put_launcher(root, sys.executable)
    return root


def put_launcher(root: Path, python: str) -> None:
    folder = root / "opt/capsule/bin"
    folder.mkdir(parents=True, exist_ok=True)
    text = LAUNCHER.read_text().replace("@RUNTIME@", RUNTIME).replace("@PYTHON@", python)
    (folder / "capsule").write_text(text)
    (folder / "capsule").chmod(0o755)


def run(host: Path, *arguments: str, cwd: str = "/", **environment: str):
    return subprocess.run(
        [host / "opt/capsule/bin/capsule", *arguments],
        capture_output=True,
        env=environment,
        cwd=cwd,
        check=False,
        timeout=60,
    )


def hello(host: Path, **how: str) -> dict[str, object]:
    done = run(host, "hello", **how)
    assert done.returncode == 0, done.stderr
    (record,) = RecordReader().feed(done.stdout)
    return dict(record)


def test_the_launcher_finds_its_root_and_runtime(host):
    said = hello(host)
    assert said["runtime"] == RUNTIME
    assert (host / "var/lib/capsule/state").is_dir()


def test_a_hostile_environment_changes_nothing(host, tmp_path):
    evil = tmp_path / "evil"
    evil.mkdir()
    for name in ("sitecustomize", "usercustomize", "click", "capsule_installer", "json"):
        (evil / f"{name}.py").write_text("raise SystemExit('hijacked')\n")
    before = os.umask(0o077)
    try:
        said = hello(
            host,
            cwd=str(evil),
            PYTHONPATH=str(evil),
            PYTHONHOME=str(evil),
            PYTHONSTARTUP=str(evil / "json.py"),
            PYTHONWARNINGS="error",
            PYTHONOPTIMIZE="2",
            PIP_INDEX_URL="http://127.0.0.1:1/",
            HTTP_PROXY="http://127.0.0.1:1",
            HTTPS_PROXY="http://127.0.0.1:1",
            LC_ALL="C",
            LANG="tr_TR.UTF-8",
            TMPDIR="/nowhere",
            OPENSSL_CONF=str(evil / "openssl.cnf"),
            PATH=str(evil),
        )
    finally:
        os.umask(before)
    assert said["runtime"] == RUNTIME
    assert (host / "opt/capsule/generations").stat().st_mode & 0o777 == 0o755


def test_starting_writes_no_bytecode_into_the_runtime(host):
    hello(host)
    assert list((host / "opt/capsule/runtime").rglob("__pycache__")) == []


def test_the_launcher_works_through_a_link(host, tmp_path):
    (tmp_path / "capsule").symlink_to(host / "opt/capsule/bin/capsule")
    done = subprocess.run([tmp_path / "capsule", "hello"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_interpreter_that_is_gone_is_replaced_by_one_that_fits(host):
    if not Path("/usr/bin/python3.11").exists():
        pytest.skip("the machine has no Python of the same version elsewhere")
    put_launcher(host, "/gone/python3.11")
    assert hello(host)["runtime"] == RUNTIME


def test_an_incomplete_runtime_ends_with_words(host):
    shutil.rmtree(host / "opt/capsule/runtime" / RUNTIME / "site")
    done = run(host, "hello")
    assert done.returncode == 21
    assert b"stage the capsule again" in done.stderr


def test_an_unknown_verb_is_a_usage_error_without_a_traceback(host):
    done = run(host, "explode")
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


def test_a_failure_is_the_last_record_and_the_exit_code(host):
    done = run(host, "enrol")
    (record,) = RecordReader().feed(done.stdout)
    assert record["record"] == "error"
    assert done.returncode == record["exit_code"] == 10
    assert b"Traceback" not in done.stderr


def test_every_verb_has_a_help_with_an_example(host):
    from capsule_installer.cli import VERBS

    for verb, row in VERBS.items():
        if row[2]:
            done = run(host, verb, "--help")
            assert done.returncode == 0, verb
            assert b"Example" in done.stdout, verb


def test_the_program_ends_with_its_answer_delivered_and_its_code_to_a_file_and_a_pipe(
    host, tmp_path
):
    program = host / "opt/capsule/bin/capsule"
    with (tmp_path / "out").open("wb") as file:
        done = subprocess.run([program, "hello"], stdout=file, check=False)
    assert done.returncode == 0
    assert len(RecordReader().feed((tmp_path / "out").read_bytes())) == 1
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([program, "status"], stdout=full, stderr=full, check=False)
    assert done.returncode != 0


def test_the_program_ends_by_itself_without_any_output_to_write_to(host):
    line = f"exec '{host}/opt/capsule/bin/capsule' enrol >&- 2>&-"
    assert subprocess.run(["/bin/sh", "-c", line], check=False, timeout=60).returncode != 0


def test_a_controllers_words_for_an_op_need_no_command_line(host):
    shutil.rmtree(host / "opt/capsule/runtime" / RUNTIME / "site/click")
    done = run(host, "install", "--hello", "--follow", "14")
    assert done.returncode == 0, done.stderr
    (record,) = RecordReader().feed(done.stdout)
    assert record["record"] == "hello"
    for words in (("confirm",), ("supervise", "op"), ("follow", "op", "--timeout", "14")):
        (record,) = RecordReader().feed(run(host, *words).stdout)
        assert record["error"] == "host-not-enrolled"


def test_other_spellings_of_an_ops_words_say_the_same(host):
    short = run(host, "install", "--hello", "--follow", "14")
    long = run(host, "install", "--follow=14", "--hello")
    assert (short.returncode, long.returncode) == (0, 0)
    (first,), (second,) = (RecordReader().feed(done.stdout) for done in (short, long))
    assert first.keys() == second.keys()
    assert run(host, "install", "--hello", "--follow", "-1").returncode == 2
