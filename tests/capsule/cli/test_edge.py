"""The edge of the process: what is printed where, and with which code it ends."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from capsule.__main__ import main
from capsule.cli import COMMANDS, program

# Modules that make a start slow; the help needs none of them.
HEAVY = {"pydantic", "cryptography", "sqlalchemy", "rich", "zstandard", "packaging", "blake3"}


def test_every_row_of_the_table_leads_to_a_command_of_that_name():
    names = {}
    for name in COMMANDS:
        command = program.get_command(click.Context(program), name)
        assert isinstance(command, click.Command)
        names[name] = command.name
    assert names == {name: name for name in COMMANDS}


def test_every_help_has_an_example(capsys):
    def walk(words, command):
        yield words
        if isinstance(command, click.Group) and command is not program:
            for name, child in command.commands.items():
                yield from walk([*words, name], child)

    context = click.Context(program)
    for name in COMMANDS:
        for words in walk([name], program.get_command(context, name)):
            assert main([*words, "--help"]) == 0
            shown = capsys.readouterr().out
            assert "Example" in shown, words
            assert "\\b" not in shown, words


def test_the_help_imports_nothing_heavy():
    script = (
        "import sys\nfrom capsule.__main__ import main\nassert main(['--help']) == 0\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert HEAVY & {name.partition(".")[0] for name in done.stderr.split()} == set()
    assert [name for name in COMMANDS if f"\n  {name} " not in done.stdout] == []


def test_the_connections_of_a_staging_begin_before_the_command_line_is_imported():
    script = (
        "import sys\nfrom capsule.early import streams_for\nstreams_for(['--lane', 'all'])\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert ((HEAVY - {"blake3"}) | {"click", "fabric"}) & loaded == set()


def test_names_are_completed_from_the_table():
    complete = ShellComplete(program, {}, "capsule", "_CAPSULE_COMPLETE")
    found = {item.value: item.help for item in complete.get_completions([], "in")}
    assert found == {name: COMMANDS[name].help for name in ("init", "inspect", "install")}


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["verify"], ["verify", "--nonsense"], ["key", "generate"]]
)
def test_a_wrong_use_ends_with_2_and_says_how_to_use_it(capsys, arguments):
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Usage: capsule" in shown.err


def test_a_refusal_is_text_on_stderr_with_what_to_do_next(capsys, tmp_path):
    assert main(["build", "--release", str(tmp_path / "release.toml")]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: release-missing: ")
    assert "\n  next: " in shown.err
    assert "Traceback" not in shown.err


def test_a_refusal_is_also_json_on_stdout_when_asked(capsys, tmp_path):
    assert main(["build", "--json", "--release", str(tmp_path / "release.toml")]) == 2
    shown = json.loads(capsys.readouterr().out)
    assert (shown["schema"], shown["error"], shown["exit_code"]) == (1, "release-missing", 2)
    assert shown["next"]


def test_a_wrong_use_is_also_json_on_stdout_when_asked(capsys):
    assert main(["verify", "--json"]) == 2
    shown = json.loads(capsys.readouterr().out)
    assert (shown["schema"], shown["error"], shown["exit_code"]) == (1, "usage", 2)


def test_a_name_from_outside_cannot_move_the_cursor(capsys, tmp_path):
    assert main(["build", "--release", str(tmp_path / "a\x1b[2Jb\nnext: rm -rf")]) == 2
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert "\nnext: rm" not in shown


def test_a_reader_that_goes_away_ends_it_quietly():
    script = "import sys\nfrom capsule.__main__ import main\nsys.exit(main(['--help']))"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    shown = process.stderr.read().decode()
    process.stderr.close()
    process.wait(timeout=30)
    assert "Traceback" not in shown


@pytest.mark.parametrize("word", ["--version", "-h", "--help"])
def test_asking_for_help_or_version_ends_with_0(capsys, word):
    assert main([word]) == 0
    assert capsys.readouterr().out.startswith(("capsule 0.", "Usage: capsule"))


def test_output_that_does_not_fit_on_the_disk_is_no_success():
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "capsule", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 20
    assert "disk-full" in done.stderr


def test_a_program_without_an_output_ends_well():
    line = f"exec '{sys.executable}' -m capsule --help >&-"
    assert subprocess.run(["/bin/sh", "-c", line], check=False).returncode == 0


def test_what_was_registered_for_the_end_is_done():
    script = (
        "import atexit, sys\nfrom capsule.__main__ import run\nsys.argv[1:] = ['--version']\n"
        "atexit.register(lambda: print('at the end', flush=True))\nrun()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "at the end")
