"""HTTP over TLS: the certificate is of the name, the connection goes to the judged address."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from agentbus.jobs.http import NoAnswerError, exchange, parse_url, refuse_metadata
from tests.jobs.test_callback import lead_to

JUDGE = refuse_metadata(())


def certificate(folder: Path, name: str) -> Path:
    """Of its own authority; key and certificate in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


@contextmanager
def served(pem: Path) -> Iterator[tuple[int, list[str | None]]]:
    """A TLS server that answers every request; its port, and the names it was asked for."""
    names: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    context.sni_callback = lambda _socket, name, _context: names.append(name)

    def serve(listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return  # closed: the test is over
            try:
                with context.wrap_socket(connection, server_side=True) as secured:
                    request = b""
                    while not request.endswith(b"{}"):
                        request += secured.recv(65536)
                    secured.sendall(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")
            except OSError:
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        yield int(listening.getsockname()[1]), names
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_the_certificate_must_be_of_the_name_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead_to(monkeypatch, ["127.0.0.1"])
    for name, is_right in (("parent.test", True), ("other.test", False)):
        pem = certificate(tmp_path, name)
        with served(pem) as (port, names):
            target = parse_url(f"https://parent.test:{port}/jobs/j")
            trusting = ssl.create_default_context(cafile=str(pem))
            if is_right:
                with exchange("POST", target, JUDGE, body=b"{}", tls=trusting) as answer:
                    assert answer.status == 202
                assert names == ["parent.test"]
            else:
                with (
                    pytest.raises(NoAnswerError, match="certificate"),
                    exchange("POST", target, JUDGE, body=b"{}", tls=trusting),
                ):
                    raise AssertionError


def test_a_certificate_that_nobody_vouches_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead_to(monkeypatch, ["127.0.0.1"])
    with served(certificate(tmp_path, "parent.test")) as (port, _):
        target = parse_url(f"https://parent.test:{port}/")
        with pytest.raises(NoAnswerError, match="certificate"), exchange("POST", target, JUDGE):
            raise AssertionError


def test_a_server_that_never_finishes_its_handshake_ends_with_the_connect_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = parse_url(f"https://127.0.0.1:{silent.getsockname()[1]}/")
        with (
            pytest.raises(NoAnswerError, match="no connection"),
            exchange("POST", target, JUDGE, connect_s=0.3, total_s=60),
        ):
            raise AssertionError
