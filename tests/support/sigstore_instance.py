"""A Sigstore instance on loopback: OIDC issuer, CA, certificate log, Rekor v1 and v2, TSA.

Real cryptography, a real Merkle tree, faults on demand; its keys live in memory and nobody trusts
it. Its answers are those that the stock client asks for.

Source: Fulcio API v2; Rekor API v1; rekor-tiles API v2; RFC 3161; Sigstore trusted root v0.1.
"""

import base64
import json
import secrets
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jwt
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from capsule_manifest.canonical import JsonValue, encode
from support.sigstore_log import Log, b64, sha256
from support.sigstore_pki import issue_leaf, make_authority, make_tsa, new_key, spki

__all__ = ["ISSUER", "RUNNER_SECRET", "SUBJECT", "Fault", "SigstoreInstance", "running_instance"]

ISSUER = "https://token.actions.githubusercontent.com"
SUBJECT = "https://github.com/acme/hello/.github/workflows/release.yml@refs/heads/main"
RUNNER_SECRET = "the runner's"
_ORIGIN = "rekor.capsule.test"
_TRUSTED_ROOT = "application/vnd.dev.sigstore.trustedroot+json;version=0.1"
_SIGNING_CONFIG = "application/vnd.dev.sigstore.signingconfig.v0.2+json"
_TRUST_CONFIG = "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json"
_SHA256 = ECDSA(hashes.SHA256())
_PREHASHED = ECDSA(Prehashed(hashes.SHA256()))
Answer = tuple[int, bytes, str]


class Fault(StrEnum):
    """What the instance does wrong from now on."""

    CA_DOWN = "the CA answers 503"
    CA_GARBAGE = "the CA answers with no JSON"
    NO_SCT = "certificates carry no proof of their log"
    OTHER_CT_KEY = "the certificate log signs with a key that nobody knows"
    OTHER_CA = "certificates are of a CA that nobody knows"
    TWO_NAMES = "certificates carry a second name"
    LOG_DOWN = "Rekor answers 503"
    LOG_GARBAGE = "Rekor answers with no JSON"
    OTHER_LOG_KEY = "Rekor signs with a key that nobody knows"
    LATE_LOG = "Rekor's clock is an hour ahead, after the certificate's end"
    TSA_DOWN = "the TSA answers 503"
    TSA_GARBAGE = "the TSA answers with no time stamp"
    OTHER_TSA = "the TSA is one that nobody knows"


class SigstoreInstance:
    """One instance. `faults` may be changed between requests; `requests` lists the paths seen.

    `job` is what the runner says of the job that asks it for a token, as for `token`.
    """

    def __init__(self, folder: Path, *, age: timedelta = timedelta(days=1)) -> None:
        self.start = (datetime.now(tz=UTC) - age).replace(microsecond=0)
        self.faults: set[Fault] = set()
        self.requests: list[str] = []
        self.job: dict[str, str] = {}
        self.url = ""
        self._folder = folder
        self._lock = threading.Lock()
        self._issuer_key = new_key()
        code_signing = ExtendedKeyUsageOID.CODE_SIGNING
        self._ca = make_authority("capsule-test", start=self.start, usage=code_signing)
        self._other_ca = make_authority("capsule-test", start=self.start, usage=code_signing)
        self._ct_key, self._stranger = new_key(), new_key()
        self._rekor_key, self._rekor2_key = new_key(), Ed25519PrivateKey.generate()
        self._log = Log(
            _ORIGIN,
            sha256(spki(self._rekor_key.public_key())),
            lambda note: self._log_key().sign(note, _SHA256),
        )
        raw = self._rekor2_key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self._log2 = Log(_ORIGIN, sha256(_ORIGIN.encode() + b"\n\x01" + raw), self._rekor2_key.sign)
        self._tsa_chain = self._make_tsa("tsa")
        self._make_tsa("other-tsa")

    # --- what a test asks for ------------------------------------------------------------------
    def token(self, *, subject: str = SUBJECT, issuer: str = ISSUER, **claims: object) -> str:
        """Return an identity token, valid for five minutes unless the claims say otherwise."""
        now = int(datetime.now(tz=UTC).timestamp())
        standard = {
            "iss": issuer, "sub": subject, "aud": "sigstore",
            "iat": now, "nbf": now - 5, "exp": now + 300,
        }  # fmt: skip
        return jwt.encode({**standard, **claims}, self._issuer_key, algorithm="ES256")

    def trusted_root(self, **ends: datetime) -> dict[str, object]:
        """Return the root; `ends` gives the last moment of `rekor`, `ca`, `ct` or `tsa`."""

        def period(part: str) -> dict[str, object]:
            dates = {"start": _text(self.start)}
            if part in ends:
                dates["end"] = _text(ends[part])
            return {"validFor": dates}

        def log(der: bytes, details: str, key_id: bytes, part: str) -> dict[str, object]:
            return {
                # The name that checkpoints are signed with: other clients compare it.
                "baseUrl": f"https://{_ORIGIN}",
                "hashAlgorithm": "SHA2_256",
                "publicKey": {"rawBytes": b64(der), "keyDetails": details, **period(part)},
                "logId": {"keyId": b64(key_id)},
            }

        def authority(chain: tuple[x509.Certificate, ...], part: str) -> dict[str, object]:
            certificates = [{"rawBytes": b64(item.public_bytes(Encoding.DER))} for item in chain]
            return {
                "subject": {"organization": "capsule.test", "commonName": part},
                "uri": self.url,
                "certChain": {"certificates": certificates},
                **period(part),
            }

        p256 = "PKIX_ECDSA_P256_SHA_256"
        rekor, ct = spki(self._rekor_key.public_key()), spki(self._ct_key.public_key())
        rekor2 = spki(self._rekor2_key.public_key())
        return {
            "mediaType": _TRUSTED_ROOT,
            "tlogs": [
                log(rekor, p256, self._log.key_id, "rekor"),
                log(rekor2, "PKIX_ED25519", self._log2.key_id, "rekor"),
            ],
            "certificateAuthorities": [authority((self._ca.intermediate, self._ca.root), "ca")],
            "ctlogs": [log(ct, p256, sha256(ct), "ct")],
            "timestampAuthorities": [authority(self._tsa_chain, "tsa")],
        }

    def trust_config(self, *, rekor: int = 1, tsa: bool = True) -> dict[str, object]:
        """Return root and addresses in one, as clients that sign want it."""

        def service(url: str, version: int) -> list[dict[str, object]]:
            valid = {"start": _text(self.start)}
            return [{"url": url, "majorApiVersion": version, "operator": "test", "validFor": valid}]

        config = {
            "mediaType": _SIGNING_CONFIG,
            "caUrls": service(self.url, 1),
            "oidcUrls": service(self.url, 1),
            "rekorTlogUrls": service(self.url, rekor),
            "tsaUrls": service(f"{self.url}/api/v1/timestamp", 1) if tsa else [],
            "rekorTlogConfig": {"selector": "ANY"},
            "tsaConfig": {"selector": "ANY"},
        }
        return {
            "mediaType": _TRUST_CONFIG,
            "trustedRoot": self.trusted_root(),
            "signingConfig": config,
        }

    def write(self, folder: Path, *, rekor: int = 1, tsa: bool = True) -> tuple[Path, Path]:
        """Write the trust configuration and the trusted root; return both paths."""
        config, root = folder / "trust-config.json", folder / "trusted_root.json"
        config.write_text(json.dumps(self.trust_config(rekor=rekor, tsa=tsa)))
        root.write_text(json.dumps(self.trusted_root()))
        return config, root

    # --- services ------------------------------------------------------------------------------
    def answer(self, path: str, body: bytes, authorization: str) -> Answer:
        """Answer one request; whatever is wrong with it is a 400 with the reason."""
        self.requests.append(path)
        services = {
            "/api/v2/signingCert": (Fault.CA_DOWN, Fault.CA_GARBAGE),
            "/api/v1/log/entries": (Fault.LOG_DOWN, Fault.LOG_GARBAGE),
            "/api/v2/log/entries": (Fault.LOG_DOWN, Fault.LOG_GARBAGE),
            "/api/v1/timestamp": (Fault.TSA_DOWN, Fault.TSA_GARBAGE),
        }
        if path not in services:
            return _json(404, {"message": "no such path"})
        down, garbage = services[path]
        if down in self.faults:
            return _json(503, {"message": "out of order"})
        if garbage in self.faults:
            return 201, b"<html>\x1b[2J not what you asked for", "text/html"
        try:
            if path == "/api/v2/signingCert":
                return self._certify(body, authorization)
            if path == "/api/v1/timestamp":
                return self._stamp(body)
            return self._enter_v1(body) if "v1" in path else self._enter_v2(body)
        except (ValueError, KeyError, jwt.PyJWTError, InvalidSignature) as error:
            return _json(400, {"message": f"{type(error).__name__}: {error}"})

    def hand_out(self, path: str, authorization: str) -> Answer:
        """Give a CI job its token, as the service beside a runner of GitHub Actions does."""
        self.requests.append(path)
        if authorization != f"bearer {RUNNER_SECRET}" or "audience=sigstore" not in path:
            return _json(403, {"message": "not for this job"})
        return _json(200, {"value": self.token(**self.job)})

    def _certify(self, body: bytes, authorization: str) -> Answer:
        token = authorization.removeprefix("Bearer ")
        claims = jwt.decode(
            token, self._issuer_key.public_key(), algorithms=["ES256"], audience="sigstore"
        )
        pem = base64.b64decode(json.loads(body)["certificateSigningRequest"])
        request = x509.load_pem_x509_csr(pem)
        public = request.public_key()
        if not request.is_signature_valid or not isinstance(public, EllipticCurvePublicKey):
            raise ValueError("the request is not signed by its key")
        ca = self._other_ca if Fault.OTHER_CA in self.faults else self._ca
        ct_key = self._stranger if Fault.OTHER_CT_KEY in self.faults else self._ct_key
        leaf = issue_leaf(
            ca,
            public,
            claims,
            now=datetime.now(tz=UTC),
            ct_key=None if Fault.NO_SCT in self.faults else ct_key,
            more_names=("https://example.org/second",) if Fault.TWO_NAMES in self.faults else (),
        )
        chain = [
            item.public_bytes(Encoding.PEM).decode() for item in (leaf, ca.intermediate, ca.root)
        ]
        return _json(201, {"signedCertificateEmbeddedSct": {"chain": {"certificates": chain}}})

    def _enter_v1(self, body: bytes) -> Answer:
        request = json.loads(body)
        kind, spec = request["kind"], request["spec"]
        entered = _dsse_v1(spec) if kind == "dsse" else _hashedrekord_v1(spec)
        entry_body = encode({"apiVersion": "0.0.1", "kind": kind, "spec": entered})
        late = timedelta(hours=1) if Fault.LATE_LOG in self.faults else timedelta()
        with self._lock:
            log = self._log
            index = log.add(entry_body)
            entry: dict[str, JsonValue] = {
                "body": b64(entry_body),
                "integratedTime": int((datetime.now(tz=UTC) + late).timestamp()),
                "logID": log.key_id.hex(),
                "logIndex": index,
            }
            proof = {
                "logIndex": index,
                "treeSize": log.size,
                "rootHash": log.root.hex(),
                "hashes": [digest.hex() for digest in log.path(index)],
                "checkpoint": log.checkpoint(),
            }
        promise = b64(log.sign(encode(entry)))
        verification = {"inclusionProof": proof, "signedEntryTimestamp": promise}
        return _json(201, {secrets.token_hex(40): {**entry, "verification": verification}})

    def _enter_v2(self, body: bytes) -> Answer:
        request = json.loads(body)["hashedRekordRequestV002"]
        signature, verifier = request["signature"], request["signature"]["verifier"]
        raw = base64.b64decode(verifier["x509Certificate"]["rawBytes"])
        _verify(
            x509.load_der_x509_certificate(raw),
            base64.b64decode(signature["content"]),
            base64.b64decode(request["digest"]),
        )
        entered: JsonValue = {
            "data": {"algorithm": "SHA2_256", "digest": request["digest"]},
            "signature": {
                "content": signature["content"],
                "verifier": {
                    "keyDetails": verifier["keyDetails"],
                    "x509Certificate": {"rawBytes": verifier["x509Certificate"]["rawBytes"]},
                },
            },
        }
        spec = {"hashedRekordV002": entered}
        entry = encode({"apiVersion": "0.0.2", "kind": "hashedrekord", "spec": spec})
        with self._lock:
            log = self._log2
            index = log.add(entry)
            return _json(
                201,
                {
                    "logIndex": str(index),
                    "logId": {"keyId": b64(log.key_id)},
                    "kindVersion": {"kind": "hashedrekord", "version": "0.0.2"},
                    "integratedTime": "0",
                    "inclusionProof": {
                        "logIndex": str(index),
                        "rootHash": b64(log.root),
                        "treeSize": str(log.size),
                        "hashes": [b64(digest) for digest in log.path(index)],
                        "checkpoint": {"envelope": log.checkpoint()},
                    },
                    "canonicalizedBody": b64(entry),
                },
            )

    def _stamp(self, body: bytes) -> Answer:
        folder = self._folder / ("other-tsa" if Fault.OTHER_TSA in self.faults else "tsa")
        with self._lock, tempfile.TemporaryDirectory(dir=folder) as work:
            query, reply = Path(work, "query"), Path(work, "reply")
            query.write_bytes(body)
            arguments = [
                "openssl", "ts", "-reply", "-config", str(folder / "config"),
                "-queryfile", str(query), "-signer", str(folder / "certificate.pem"),
                "-inkey", str(folder / "key.pem"), "-out", str(reply),
            ]  # fmt: skip
            subprocess.run(arguments, check=True, capture_output=True)
            return 201, reply.read_bytes(), "application/timestamp-reply"

    def _make_tsa(self, name: str) -> tuple[x509.Certificate, x509.Certificate]:
        authority = make_authority(
            "capsule-test-tsa", start=self.start, usage=ExtendedKeyUsageOID.TIME_STAMPING
        )
        key = new_key()
        certificate = make_tsa(authority, key, self.start)
        folder = self._folder / name
        folder.mkdir(parents=True)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / "key.pem").write_bytes(pem)
        (folder / "certificate.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
        (folder / "serial").write_text("01")
        (folder / "config").write_text(
            f"[tsa]\ndefault_tsa = t\n[t]\nserial = {folder}/serial\n"
            "default_policy = 1.3.6.1.4.1.57264.2\ndigests = sha256, sha384, sha512\n"
            "signer_digest = sha256\nordering = no\ness_cert_id_alg = sha256\n"
        )
        return certificate, authority.root

    def _log_key(self) -> EllipticCurvePrivateKey:
        return self._stranger if Fault.OTHER_LOG_KEY in self.faults else self._rekor_key


@contextmanager
def running_instance(folder: Path) -> Iterator[SigstoreInstance]:
    """Serve an instance on loopback for as long as the context lasts."""
    instance = SigstoreInstance(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_arguments: object) -> None:
            """Stay silent: requests are listed in the instance."""

        def do_GET(self) -> None:
            self._send(*instance.hand_out(self.path, self.headers.get("Authorization", "")))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._send(*instance.answer(self.path, body, self.headers.get("Authorization", "")))

        def _send(self, code: int, answer: bytes, kind: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        instance.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield instance
        finally:
            server.shutdown()
            thread.join()


def _dsse_v1(spec: Mapping[str, dict[str, object]]) -> JsonValue:
    proposed = spec["proposedContent"]
    text, verifiers = proposed["envelope"], proposed["verifiers"]
    assert isinstance(text, str)
    assert isinstance(verifiers, list)
    envelope = json.loads(text)
    payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"].encode()
    message = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    certificate = x509.load_pem_x509_certificate(base64.b64decode(verifiers[0]))
    _verify(certificate, base64.b64decode(envelope["signatures"][0]["sig"]), sha256(message))
    return {
        "envelopeHash": {"algorithm": "sha256", "value": sha256(text.encode()).hex()},
        "payloadHash": {"algorithm": "sha256", "value": sha256(payload).hex()},
        "signatures": [
            {"signature": item["sig"], "verifier": verifiers[0]} for item in envelope["signatures"]
        ],
    }


def _hashedrekord_v1(spec: Mapping[str, dict[str, dict[str, str]]]) -> JsonValue:
    signature = spec["signature"]
    content, key = str(signature["content"]), signature["publicKey"]["content"]
    digest = spec["data"]["hash"]["value"]
    certificate = x509.load_pem_x509_certificate(base64.b64decode(key))
    _verify(certificate, base64.b64decode(content), bytes.fromhex(digest))
    return {
        "data": {"hash": {"algorithm": "sha256", "value": digest}},
        "signature": {"content": content, "publicKey": {"content": key}},
    }


def _verify(certificate: x509.Certificate, signature: bytes, digest: bytes) -> None:
    public = certificate.public_key()
    assert isinstance(public, EllipticCurvePublicKey)
    public.verify(signature, digest, _PREHASHED)


def _json(code: int, value: object) -> Answer:
    return code, json.dumps(value).encode(), "application/json"


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
