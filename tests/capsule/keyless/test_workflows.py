"""The page about signing in CI: its commands are ours, its workflows ask for what signing needs."""

import json
import re
import shlex
import subprocess

import click
import pytest
import yaml

from capsule.cli import COMMANDS, program
from capsule_manifest.error_table import ROWS
from support.foreign import npm_packages
from support.sources import ROOT

PAGE = (ROOT / "docs" / "how-to" / "sign-in-ci.md").read_text()
LINES = re.findall(
    r"^\s*(?:- |- run: |run: )?(capsule [a-z].*)$", PAGE.replace("\\\n", " "), re.MULTILINE
)
GITHUB, GITLAB = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("line", sorted(set(LINES)))
def test_a_command_of_the_page_has_options_that_exist(line):
    _, name, *arguments = shlex.split(line)
    assert name in COMMANDS
    command = program.get_command(None, name)
    if isinstance(command, click.Group):
        command = command.get_command(None, arguments.pop(0))
    known = {option for parameter in command.params for option in parameter.opts}
    used = {word for word in arguments if word.startswith("-")}
    assert used <= known


def test_both_workflows_build_sign_and_verify_in_this_order():
    assert len(LINES) >= 8, "the search itself found too little"
    for workflow in (GITHUB, GITLAB):
        steps = [line.split()[1] for line in LINES if line in workflow]
        assert steps[:3] == ["build", "sign", "verify"]
        assert "--keyless --policy" in workflow


def test_each_workflow_asks_for_an_identity_and_for_no_more():
    assert "permissions: {}" in GITHUB
    granted = re.search(r"    permissions:\n((?:      .*\n)+?)    steps", GITHUB).group(1)
    assert [line.split(":")[0].strip() for line in granted.splitlines()] == ["contents", "id-token"]
    assert "contents: read" in granted
    assert "pull_request" not in GITHUB
    assert re.search(r"id_tokens:\n +SIGSTORE_ID_TOKEN:\n +aud: sigstore\n", GITLAB)


def test_every_refusal_of_the_page_exists():
    named = re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE)
    assert len(named) >= 8
    assert set(named) <= set(ROWS)


# --- the files themselves ------------------------------------------------------------------------
VALIDATOR = ("@action-validator/core@0.6.0", "@action-validator/cli@0.6.0")
# Of GitLab's keywords, those that a job of this kind may have.
GITLAB_JOB = {
    "stage", "image", "timeout", "resource_group", "rules", "id_tokens", "script", "artifacts",
}  # fmt: skip


def validated(folder, text):
    """Return the exit code of a checker that knows the schema of GitHub's workflows."""
    path = folder / "workflow.yml"
    path.write_text(text)
    program = npm_packages(*VALIDATOR) / "node_modules/.bin/action-validator"
    done = subprocess.run(["node", program, path], capture_output=True, timeout=60, check=False)
    return done.returncode


def test_the_workflow_of_github_is_one_by_githubs_own_schema(tmp_path):
    assert validated(tmp_path, GITHUB) == 0
    for right, wrong in (("runs-on", "run-on"), ("id-token: write", "id-token: all")):
        assert right in GITHUB
        assert validated(tmp_path, GITHUB.replace(right, wrong)) != 0


def test_the_file_of_gitlab_has_keywords_of_gitlab_only():
    document = yaml.safe_load(GITLAB)
    assert set(document) == {"stages", "release"}
    job = document["release"]
    assert set(job) == GITLAB_JOB
    assert job["stage"] in document["stages"]
    assert all(isinstance(line, str) for line in job["script"])
    assert set(job["artifacts"]) == {"paths", "expire_in"}
    assert [set(rule) for rule in job["rules"]] == [{"if", "changes"}]


def test_both_lists_of_commands_are_the_same():
    """One page, two systems, one way to release."""
    steps = yaml.safe_load(GITHUB)["jobs"]["release"]["steps"]
    github = [line for step in steps if "run" in step for line in step["run"].splitlines()]
    gitlab = yaml.safe_load(GITLAB)["release"]["script"]
    assert github == gitlab
    assert json.dumps(github).count("--require-hashes") == 1
