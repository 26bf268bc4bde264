import pytest

from capsule.transport.ssh_failures import RETRYABLE, start_failure


@pytest.mark.parametrize(
    ("said", "error_id"),
    [
        ("sudo: a password is required\n", "sudo-refused"),
        ("sudo: a terminal is required to read the password\n", "sudo-refused"),
        ("ssh: connect to host h port 22: No route to host\r\n", "host-unreachable"),
        ("ssh: Could not resolve hostname h: Name or service not known\r\n", "host-unreachable"),
        ("ssh: connect to host h port 22: Connection timed out\r\n", "ssh-connect-deadline"),
        ("Connection timed out during banner exchange\r\n", "ssh-connect-deadline"),
        ("root@h: Permission denied (publickey).\r\n", "ssh-auth-refused"),
        # The pipe's end comes after the reason: the reason counts.
        (
            (
                "ssh: connect to host jump port 22: Connection refused\r\n"
                "kex_exchange_identification: Connection closed by remote host\r\n"
            ),
            "host-unreachable",
        ),
        ("kex_exchange_identification: read: Connection reset by peer\r\n", "ssh-throttled"),
        ("", "ssh-start-failed"),
    ],
)
def test_what_was_said_becomes_one_error(said, error_id):
    error = start_failure(said, noise="", exit_code=255, place="root@h:22")
    assert error.error_id == error_id
    assert error.retryable == (error_id in RETRYABLE)
    assert error.where == "root@h:22"


def test_a_host_that_says_nothing_useful_is_quoted_with_what_it_printed():
    error = start_failure("", noise="This account is locked.\n", exit_code=1, place="h")
    assert "exit code 1; This account is locked." in error.got
