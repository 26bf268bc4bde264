"""One loopback Sigstore for all tests of keyless signatures, and worlds signed by it."""

import pytest

from support.keyless_world import KeylessWorld
from support.sigstore_instance import running_instance


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    with running_instance(tmp_path_factory.mktemp("sigstore")) as running:
        yield running


@pytest.fixture
def instance(served):
    """The instance, without faults before and after."""
    served.faults.clear()
    served.job.clear()
    yield served
    served.faults.clear()
    served.job.clear()


@pytest.fixture(autouse=True)
def nobody_has_a_token(monkeypatch):
    """Tests run in CI systems, which offer tokens of their own."""
    for name in ("GITHUB_ACTIONS", "SIGSTORE_ID_TOKEN", "CAPSULE_IDENTITY_TOKEN", "GITLAB_CI"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session", params=[1, 2], ids=["rekor1", "rekor2"])
def signed_once(request, served, tmp_path_factory):
    """A capsule that a CI job signed, for each version of the log."""
    folder = tmp_path_factory.mktemp("signed") / "world"
    made = KeylessWorld(folder=folder, instance=served, rekor=request.param).prepare()
    made.sign_by_hand()
    return made


@pytest.fixture
def signed(signed_once, tmp_path):
    """A copy of a signed world, to be spoiled."""
    return signed_once.copy(tmp_path / "world")


@pytest.fixture
def world(instance, tmp_path):
    """A job that has not signed yet."""
    return KeylessWorld(folder=tmp_path / "world", instance=instance).prepare()
