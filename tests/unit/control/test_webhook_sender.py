"""One webhook over real sockets: whom it reaches, how long it takes, how much it reads."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from webhook_receiver import Receiver, Reply

from gristmill.control.webhook_addresses import AddressPolicy
from gristmill.control.webhook_sender import MAX_ANSWER_BYTES, WebhookSender
from gristmill.settings import Settings

LOOPBACK = AddressPolicy.of(Settings(webhook_allowed_networks="127.0.0.0/8"))
NAME = "hooks.example.com"


@contextmanager
def rude_server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port behind which `serve` has each connection, once the request has begun."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    try:
                        serve(connection)
                    except OSError:
                        return

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def test_the_body_arrives_byte_for_byte_with_the_name_as_host() -> None:
    with Receiver(lambda call: Reply(202, body=b"thanks")) as receiver:
        url = receiver.url.replace("127.0.0.1", NAME)
        sender = WebhookSender(LOOPBACK, resolve=lambda host, port: ["127.0.0.1"])

        answer = sender.send(f"{url}?a=%20b", {"webhook-id": "evt_1"}, b'{"a":"\xc3\xa9"}')

        (call,) = receiver.calls
        assert answer.is_success and (answer.status_code, answer.body) == (202, "thanks")
        assert (call.path, call.body) == ("/hook?a=%20b", b'{"a":"\xc3\xa9"}')
        assert call.headers["host"] == url.split("/")[2]
        assert not {"cookie", "authorization", "transfer-encoding"} & set(call.headers)


def test_F39_a_name_that_changes_its_address_is_asked_once_and_held_to_it() -> None:
    asked: list[str] = []

    def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["93.184.216.34"] if len(asked) > 1 else ["127.0.0.1"]

    with Receiver() as receiver:
        sender = WebhookSender(LOOPBACK, resolve=rebinding)
        url = receiver.url.replace("127.0.0.1", NAME)
        first, second = sender.send(url, {}, b"{}"), sender.send(url, {}, b"{}")

        assert first.is_success and len(receiver.calls) == 1
        assert second.error == "address_refused"  # of another attempt: looked at anew
        assert asked == [NAME, NAME]


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["93.184.216.34", "127.0.0.1"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["169.254.169.254"],
    ],
)
def test_F14_a_name_that_leads_inside_is_never_connected_to(addresses: list[str]) -> None:
    sender = WebhookSender(AddressPolicy(), resolve=lambda host, port: addresses)

    answer = sender.send(f"https://{NAME}/", {}, b"{}")

    assert (answer.status_code, answer.error) == (None, "address_refused")


def test_F38_a_redirect_is_a_failure_and_is_not_followed() -> None:
    with Receiver() as inside:
        location = {"location": inside.url}
        with Receiver(lambda call: Reply(302, location)) as receiver:
            answer = WebhookSender(LOOPBACK).send(receiver.url, {}, b"{}")

        assert answer.status_code == 302 and not answer.is_success
        assert inside.calls == []


def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with Receiver() as proxy, Receiver() as receiver:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)

        answer = WebhookSender(LOOPBACK).send(receiver.url, {}, b"{}")

        assert answer.is_success and proxy.calls == [] and len(receiver.calls) == 1


def test_F38_a_receiver_that_says_nothing_or_trickles_is_left_at_the_deadline() -> None:
    over = threading.Event()

    def trickle(connection: socket.socket) -> None:
        while not over.wait(0.02):
            connection.sendall(b"H")

    def headers_without_end(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while not over.wait(0.02):
            connection.sendall(b"x: y\r\n")

    for serve in (trickle, headers_without_end, lambda connection: over.wait(30) and None):
        with rude_server(serve) as port:
            answer = WebhookSender(LOOPBACK, timeout_s=0.3).send(
                f"http://127.0.0.1:{port}/", {}, b"{}"
            )

        assert (answer.status_code, answer.error) == (None, "timeout")
        assert 0.2 < answer.duration_s < 25
    over.set()


def test_F38_of_a_body_without_end_only_the_beginning_is_read() -> None:
    num_sent = 0

    def flood(connection: socket.socket) -> None:
        nonlocal num_sent
        connection.sendall(b"HTTP/1.1 500 Oops\r\ncontent-length: 10737418240\r\n\r\n")
        while num_sent < 10 << 30:
            num_sent += connection.send(b"\0\xff" * 32768)

    with rude_server(flood) as port:
        answer = WebhookSender(LOOPBACK).send(f"http://127.0.0.1:{port}/", {}, b"{}")

    assert answer.status_code == 500 and 0 < len(answer.body) <= MAX_ANSWER_BYTES
    assert "\0" not in answer.body and num_sent < 64 << 20


def test_a_status_stands_when_the_body_behind_it_breaks_off() -> None:
    def half(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")

    with rude_server(half) as port:
        answer = WebhookSender(LOOPBACK).send(f"http://127.0.0.1:{port}/", {}, b"{}")

    assert answer.is_success and answer.body == "half"


def test_each_failure_has_a_name_and_none_is_an_exception() -> None:
    def no_name(host: str, port: int) -> list[str]:
        raise socket.gaierror("unknown")

    never = threading.Event()

    def hangs(host: str, port: int) -> list[str]:
        never.wait(60)
        return []

    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = taken.getsockname()[1]
    named = f"http://{NAME}/"
    assert WebhookSender(LOOPBACK, resolve=no_name).send(named, {}, b"").error == "name_not_found"
    slow = WebhookSender(LOOPBACK, resolve=hangs, timeout_s=0.1)
    assert slow.send(named, {}, b"").error == "timeout"
    never.set()
    nothing = WebhookSender(LOOPBACK, resolve=lambda host, port: [])
    assert nothing.send(named, {}, b"").error == "connection_failed"
    sender = WebhookSender(LOOPBACK)
    assert sender.send(f"http://127.0.0.1:{closed}/", {}, b"").error == "connection_failed"
    assert sender.send("gopher://127.0.0.1/", {}, b"").error == "address_refused"
    for text in (b"SSH-2.0-OpenSSH\r\n", b""):
        with rude_server(lambda connection, text=text: connection.sendall(text)) as port:
            answer = sender.send(f"http://127.0.0.1:{port}/", {}, b"{}")
        assert answer.error in ("no_http_answer", "connection_broken")
    with rude_server(lambda connection: connection.sendall(b"no tls")) as port:
        assert sender.send(f"https://127.0.0.1:{port}/", {}, b"{}").error == "tls_failed"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120.0),
        ("Thu, 01 Jan 1970 00:17:40 GMT", 60.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("9" * 400, 999999999.0),
    ],
)
def test_what_a_receiver_says_about_when_is_read(header: str, seconds: float | None) -> None:
    with Receiver(lambda call: Reply(503, {"retry-after": header})) as receiver:
        answer = WebhookSender(LOOPBACK, wall_clock=lambda: 1000.0).send(receiver.url, {}, b"{}")

    assert answer.retry_after_s == seconds


def test_over_tls_the_certificate_is_that_of_the_name_not_of_the_address(tmp_path: Path) -> None:
    path = make_certificate(tmp_path, NAME)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(path)
    shown: list[str | None] = []
    served.sni_callback = lambda connection, name, context: shown.append(name)
    trusted = ssl.create_default_context(cafile=str(path))

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            for _ in range(2):
                connection, _address = listener.accept()
                try:
                    with served.wrap_socket(connection, server_side=True) as secured:
                        while not secured.recv(65536).endswith(b"{}"):
                            pass
                        secured.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
                except (ssl.SSLError, OSError):
                    connection.close()

        threading.Thread(target=accept, daemon=True).start()
        port = listener.getsockname()[1]
        sender = WebhookSender(
            LOOPBACK, resolve=lambda host, port: ["127.0.0.1"], ssl_context=trusted
        )
        right = sender.send(f"https://{NAME}:{port}/", {}, b"{}")
        wrong = sender.send(f"https://other.example.com:{port}/", {}, b"{}")

    assert right.status_code == 204 and wrong.error == "tls_failed"
    assert shown == [NAME, "other.example.com"]


def make_certificate(folder: Path, name: str) -> Path:
    """One that signs itself, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "tls.pem"
    pem = serialization.Encoding.PEM
    path.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(pem)
    )
    return path
