"""Object stores to test against, all on the loopback: a real S3-protocol server, Azurite, and a small fake with faults."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hmac
import http.server
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

REPO = Path(__file__).parents[2]
AZURITE = REPO / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
# The published key pair of every Azurite and of the emulators before it.
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
# moto looks whether a key exists and then writes it, without a lock between: two conditional creations may both succeed.
MOTO_ONE_AT_A_TIME = """
import sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
lock, moto = threading.Lock(), DomainDispatcherApplication(create_backend_app)
def one_at_a_time(environ, start_response):
    with lock:
        return list(moto(environ, start_response))
run_simple("127.0.0.1", int(sys.argv[1]), one_at_a_time, threaded=True)
"""
START_LIMIT_S = 20.0


def free_port() -> int:
    """A port of the loopback that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _running(command: list[str], port: int, log: Path) -> Iterator[None]:
    """A server process that answers on `port` for the block."""
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            deadline = time.monotonic() + START_LIMIT_S
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, f"{command[0]} does not answer: {log.read_text()}"
                time.sleep(0.02)
            yield
        finally:
            process.kill()


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[dict[str, str]]:
    """A moto server with the bucket `lab`; yields the environment that leads to it."""
    port = free_port()
    with _running([sys.executable, "-c", MOTO_ONE_AT_A_TIME, str(port)], port, folder / "moto.log"):
        endpoint = f"http://127.0.0.1:{port}"
        request = urllib.request.Request(f"{endpoint}/lab", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()
        yield s3_environment(endpoint)


def s3_environment(endpoint: str, secret: str = "a-secret-key") -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "an-access-key",
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REGION": "us-east-1",
    }


def google_environment(endpoint: str) -> dict[str, str]:
    account = {
        "gcs_base_url": endpoint,
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    return {"GOOGLE_BASE_URL": endpoint, "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account)}


def no_azurite() -> str | None:
    """Why Azurite cannot be started here, None if it can."""
    if shutil.which("node") is None:
        return "Azurite needs node, which is not on the path"
    return None if AZURITE.exists() else "Azurite is not installed: run `npm ci`"


@contextlib.contextmanager
def azure_server(folder: Path) -> Iterator[dict[str, str]]:
    """An Azurite with the container `lab`; yields the environment that leads to it."""
    port = free_port()
    command = ["node", str(AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    command += ["--location", str(folder / "azurite"), "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    with _running(command, port, folder / "azurite.log"):
        environment = {
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}",
            "AZURE_STORAGE_ACCOUNT_NAME": AZURITE_ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": AZURITE_KEY,
        }
        _make_container(environment)
        yield environment


def _make_container(environment: dict[str, str]) -> None:
    """Create the container by one request signed with the account's key, as the protocol's documentation says."""
    date = email.utils.formatdate(usegmt=True)
    headers = f"x-ms-date:{date}\nx-ms-version:2021-12-02\n"
    resource = f"/{AZURITE_ACCOUNT}/{AZURITE_ACCOUNT}/lab\nrestype:container"
    signed = hmac.digest(base64.b64decode(AZURITE_KEY), ("PUT" + "\n" * 12 + headers + resource).encode(), "sha256")
    request = urllib.request.Request(
        f"{environment['AZURE_STORAGE_ENDPOINT']}/lab?restype=container",
        method="PUT",
        headers={
            "x-ms-date": date,
            "x-ms-version": "2021-12-02",
            "Authorization": f"SharedKey {AZURITE_ACCOUNT}:{base64.b64encode(signed).decode()}",
        },
    )
    urllib.request.urlopen(request, timeout=10).close()


@dataclass
class Bucket:
    """What the fake holds and how it misbehaves."""

    objects: dict[str, bytes] = field(default_factory=dict)
    honest: bool = True
    """Whether conditions of creations are kept."""
    denies: bool = False
    full: bool = False
    failures: int = 0
    """So many of the next requests are answered 503."""
    lost_replies: int = 0
    """So many of the next writes are carried out and their connections closed without a word."""
    requests: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextlib.contextmanager
def fake_bucket() -> Iterator[tuple[str, Bucket]]:
    """A server of one bucket that speaks enough of the XML dialects of S3 and Google; yields its address and contents."""
    bucket = Bucket()
    handler = type("Handler", (_FakeHandler,), {"bucket": bucket})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", bucket
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _FakeHandler(http.server.BaseHTTPRequestHandler):
    bucket: Bucket
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Tests read `Bucket.requests` instead."""

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2]

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", headers.pop("length", str(len(body))))
        for name, value in {"ETag": '"0"', "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refused(self) -> bool:
        """Read no further than the headers: count the request and answer it if it is to fail."""
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.bucket.lock:
            self.bucket.requests.append(f"{self.command} {self.path}")
            fails = self.bucket.failures > 0
            self.bucket.failures -= fails
        if fails:
            self._answer(503, b"<Error><Code>SlowDown</Code></Error>")
        elif self.bucket.denies:
            self._answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        elif self.bucket.full and self.command == "PUT":
            self._answer(507, b"<Error><Code>InsufficientStorage</Code></Error>")
        else:
            return False
        return True

    def do_PUT(self) -> None:
        if self._refused():
            return
        conditional = self.headers.get("If-None-Match") == "*" or self.headers.get("x-goog-if-generation-match") == "0"
        with self.bucket.lock:
            exists = conditional and self.bucket.honest and self._key() in self.bucket.objects
            if not exists:
                self.bucket.objects[self._key()] = self.body
            lost = self.bucket.lost_replies > 0
            self.bucket.lost_replies -= lost
        if lost:
            self.close_connection = True
        elif exists:
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        else:
            self._answer(200, **{"x-goog-generation": "1"})

    def do_GET(self) -> None:
        if self._refused():
            return
        query = parse_qs(urlsplit(self.path).query)
        if not self._key() and "list-type" in query:
            self._list(query.get("prefix", [""])[0])
        elif self._key() in self.bucket.objects:
            content = self.bucket.objects[self._key()]
            self._answer(200, content, length=str(len(content)), **{"x-goog-generation": "1"})
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        if not self._refused():
            self._answer(204 if self.bucket.objects.pop(self._key(), None) is not None else 404)

    def _list(self, prefix: str) -> None:
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size><ETag>0</ETag>"
            "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, content in sorted(self.bucket.objects.items())
            if key.startswith(prefix)
        )
        self._answer(200, f"<ListBucketResult>{entries}<IsTruncated>false</IsTruncated></ListBucketResult>".encode())
