"""skopeo and a real registry on loopback: what a name means, and what is fetched by digest."""

import shutil
import socket
import subprocess
import threading
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from capsule.builder.images.documents import is_index
from capsule.builder.images.registry import Skopeo
from capsule.builder.images.source import ImageOrigin, ImageStore
from support.failures import fails_with
from support.images import ImageFile, digest_of, layer_of, write_layout
from support.indexes import NoImages, cache_of

_PROGRAMS = ("skopeo", "docker-registry")
pytestmark = pytest.mark.skipif(
    any(shutil.which(name) is None for name in _PROGRAMS),
    reason=f"needs {' and '.join(_PROGRAMS)}",
)
_CONFIG = """\
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def wait_for(port, process):
    for _ in range(200):
        assert process.poll() is None, "the registry ended"
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("the registry does not listen")


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("registry")
    port = free_port()
    config = folder / "config.yml"
    config.write_text(_CONFIG.format(root=folder / "data", port=port))
    process = subprocess.Popen(
        ["docker-registry", "serve", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(port, process)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=10)


@pytest.fixture
def push(registry, tmp_path):
    def call(tag, *images):
        folder = tmp_path / f"push-{tag}"
        write_layout(folder, *images)
        if len(images) > 1:
            # A layout whose only entry is the index, so that the name means the index.
            index = (folder / "index.json").read_bytes()
            (folder / "index.json").write_text(
                '{"schemaVersion":2,"manifests":[{"mediaType":'
                '"application/vnd.oci.image.index.v1+json",'
                f'"digest":"{digest_of(index)}","size":{len(index)}}}]}}'
            )
        subprocess.run(
            [
                "skopeo", "copy", "--quiet", "--all", "--preserve-digests",
                "--dest-tls-verify=false", f"oci:{folder}", f"docker://{registry}/acme/app:{tag}",
            ],
            check=True,
        )  # fmt: skip
        return f"{registry}/acme/app:{tag}"

    return call


@pytest.fixture
def skopeo(tmp_path):
    return Skopeo({"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, is_tls=False)


def origin(name, digest=None):
    return ImageOrigin(name=name, layout=None, reference=name, digest=digest)


def test_a_tag_is_resolved_once_and_its_digest_fetched_after_it_moved(push, skopeo, tmp_path):
    made = ImageFile(layers=[layer_of(one=b"1")])
    store = ImageStore(cache_of(tmp_path / "cache"), skopeo)
    name = push("1", made)
    digest = store.resolve(origin(name), "x86_64")
    assert digest == made.blobs()[0]
    push("1", ImageFile(layers=[layer_of(two=b"2")]))
    assert store.resolve(origin(name), "x86_64") != digest
    assert store.obtain(origin(name), digest, "x86_64").manifest_digest == digest


def test_an_image_of_several_platforms_is_fetched_for_each(push, skopeo, tmp_path):
    images = (ImageFile(), ImageFile(architecture="arm64"))
    name = push("both", *images)
    assert is_index(skopeo.describe(name), name)
    store = ImageStore(cache_of(tmp_path / "cache"), skopeo)
    for image, machine in zip(images, ("x86_64", "aarch64"), strict=True):
        digest = store.resolve(origin(name), machine)
        assert digest == image.blobs()[0]
        assert store.obtain(origin(name), digest, machine).manifest_digest == digest


def test_a_build_after_the_lock_needs_no_registry(push, skopeo, tmp_path):
    name = push("offline", ImageFile())
    cache = cache_of(tmp_path / "cache")
    store = ImageStore(cache, skopeo)
    digest = store.resolve(origin(name), "x86_64")
    store.obtain(origin(name), digest, "x86_64")
    again = ImageStore(cache, NoImages()).obtain(origin(name), digest, "x86_64")
    assert again.config_digest == store.obtain(origin(name), digest, "x86_64").config_digest


def test_a_name_that_is_not_there_says_what_the_registry_says(registry, skopeo):
    with fails_with("image-fetch-failed") as caught:
        skopeo.describe(f"{registry}/acme/none:1")
    assert "unknown" in str(caught.value)


def test_without_skopeo_the_message_says_so(tmp_path):
    with fails_with("image-fetch-failed") as caught:
        Skopeo({"PATH": str(tmp_path)}).describe("registry.test/app:1")
    assert "skopeo" in str(caught.value)


class Busy(BaseHTTPRequestHandler):
    """Stand before a registry that refuses the first requests for anything but its greeting."""

    def do_GET(self):
        server = self.server
        if self.path != "/v2/" and server.refusals > 0:
            server.refusals -= 1
            self.send_response(429)
            self.send_header("Retry-After", "1")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        connection = HTTPConnection(server.registry)
        headers = {"Accept": self.headers.get("Accept", "*/*")}
        connection.request(self.command, self.path, headers=headers)
        answer = connection.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name in ("Content-Type", "Docker-Content-Digest", "Docker-Distribution-Api-Version"):
            if answer.headers.get(name):
                self.send_header(name, answer.headers[name])
        length = answer.headers.get("Content-Length", str(len(content)))
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(content)
        connection.close()

    def do_HEAD(self):
        self.do_GET()

    def log_message(self, *_arguments):
        """Say nothing."""


@pytest.fixture
def busy(registry):
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as made:
        made.registry, made.refusals = registry, 0
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


def test_a_registry_that_answers_429_is_waited_for(push, busy, skopeo, registry, tmp_path):
    made = ImageFile(layers=[layer_of(one=b"1")])
    name = push("busy", made).replace(registry, f"127.0.0.1:{busy.server_port}")
    store = ImageStore(cache_of(tmp_path / "cache"), skopeo)
    busy.refusals = 2
    digest = store.resolve(origin(name), "x86_64")
    assert busy.refusals == 0
    busy.refusals = 2
    assert store.obtain(origin(name), digest, "x86_64").manifest_digest == made.blobs()[0]
    assert busy.refusals == 0
