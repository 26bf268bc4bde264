"""What an operator reads of a preflight."""

from capsule.cli.preflight import print_preflight
from capsule.rollout.coherence import Coherence
from capsule.rollout.preflight import Finding, Preflight

DIGEST = "sha256:" + "1" * 64


def finding(**changes):
    values = {
        "coherence": Coherence.COHERENT, "serving": True, "current": "1-aa", "fence": 1,
        "disagreements": (), "problems": (), "notes": (),
    }  # fmt: skip
    return Finding(**(values | changes))


def test_what_a_host_says_of_itself_moves_no_cursor_and_forges_no_line(capsys):
    evil = "is a link\x1b[2J\nn2: coherent"
    nodes = {
        "n1": finding(
            coherence=Coherence.CONTRADICTORY, current=f"{evil}!", disagreements=(evil,),
            problems=(evil,), notes=(evil,),
        )
    }  # fmt: skip
    print_preflight(Preflight(route=DIGEST, capsule=DIGEST, made_ms=1, nodes=nodes))
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert len(said.err.splitlines()) == 3
    assert all(line.startswith("n1: ") for line in said.err.splitlines())
    assert sum("n2: coherent" in line for line in said.out.splitlines()) == 1


def test_each_node_has_a_row_and_each_problem_a_line(capsys):
    nodes = {
        "n1": finding(),
        "n2": finding(coherence=Coherence.UNREACHABLE, problems=("unreachable: why: do this",)),
    }
    print_preflight(Preflight(route=DIGEST, capsule=DIGEST, made_ms=1, nodes=nodes))
    said = capsys.readouterr()
    assert "1 of 2" in said.out
    assert [line.split()[:2] for line in said.out.splitlines()[-2:]] == [
        ["n1", "coherent"], ["n2", "unreachable"],
    ]  # fmt: skip
    assert said.err == "n2: unreachable: why: do this\n"
