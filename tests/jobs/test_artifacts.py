"""Artifacts in a folder, in S3, and by pre-signed URLs; hashes checked on both ways."""

from __future__ import annotations

import base64
import hashlib
import os
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from agentbus.errors import NotFoundError, ValidationError
from agentbus.jobs import ArtifactRef, DeliveryRefusedError, IntegrityError, SinkError
from agentbus.jobs.artifacts import (
    BLOCK_BYTES,
    ArtifactStore,
    LocalStore,
    S3Store,
    download,
    upload,
)
from tests.jobs.servers import Answer, ScriptedServer, Server

CONTENT = os.urandom(2 * BLOCK_BYTES + 17)
BUCKET = "artifacts"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.bin"
    path.write_bytes(CONTENT)
    return path


def client(server: Server) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0}),
    )


@pytest.fixture
def bucket(s3: Server) -> Any:
    """A client of a store that has the bucket."""
    made = client(s3)
    made.create_bucket(Bucket=BUCKET)
    return made


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    if request.param == "local":
        return LocalStore(tmp_path / "store")
    return S3Store(request.getfixturevalue("bucket"), BUCKET, "jobs/")


def spoil(store: ArtifactStore, ref: ArtifactRef, content: bytes) -> None:
    """Change what the store has, behind its back."""
    if isinstance(store, LocalStore):
        Path(ref.uri.removeprefix("file://")).write_bytes(content)
    else:
        assert isinstance(store, S3Store)
        key = ref.uri.removeprefix(f"s3://{BUCKET}/")
        store._client.put_object(Bucket=BUCKET, Key=key, Body=content)


def test_what_is_stored_comes_back(store: ArtifactStore, source: Path, tmp_path: Path) -> None:
    ref = store.put(source, "image/png")
    assert ref.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert (ref.bytes, ref.content_type) == (len(CONTENT), "image/png")
    store.get(ref, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT
    assert store.put(source, "image/png") == ref


def test_an_empty_file_is_an_artifact_too(store: ArtifactStore, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    ref = store.put(tmp_path / "empty")
    store.get(ref, tmp_path / "copy")
    assert ref.bytes == 0
    assert (tmp_path / "copy").read_bytes() == b""


@pytest.mark.parametrize(
    "spoiled",
    [CONTENT[:-1], CONTENT + b"x", CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]), b""],
    ids=["shorter", "longer", "another bit", "empty"],
)
def test_other_bytes_than_the_references_are_never_put_in_place(
    store: ArtifactStore, source: Path, tmp_path: Path, spoiled: bytes
) -> None:
    ref = store.put(source)
    spoil(store, ref, spoiled)
    (tmp_path / "copies").mkdir()
    with pytest.raises(IntegrityError):
        store.get(ref, tmp_path / "copies" / "copy")
    assert list((tmp_path / "copies").iterdir()) == []


def test_what_is_not_there_is_said(store: ArtifactStore, source: Path, tmp_path: Path) -> None:
    ref = store.put(source)
    missing = replace(ref, uri=ref.uri.replace(ref.sha256, "0" * 64))
    with pytest.raises(NotFoundError):
        store.get(missing, tmp_path / "copy")


@pytest.mark.parametrize("size_bytes", [5000, 50_000], ids=["within a buffer", "beyond it"])
def test_a_disk_that_takes_no_more_keeps_nothing_of_it(tmp_path: Path, size_bytes: int) -> None:
    source, store = tmp_path / "source", LocalStore(tmp_path / "store")
    source.write_bytes(b"x" * size_bytes)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    try:
        with pytest.raises(OSError):
            store.put(source)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.parametrize(
    "uri",
    [
        "file:///etc/passwd",
        "file://host/x",
        "s3://other/key",
        f"s3://{BUCKET}/elsewhere",
        "https://example.com/",
        "passwd",
    ],
)
def test_a_reference_to_elsewhere_is_refused(
    store: ArtifactStore, source: Path, tmp_path: Path, uri: str
) -> None:
    with pytest.raises(ValidationError):
        store.get(replace(store.put(source), uri=uri), tmp_path / "copy")


def test_a_reference_does_not_climb_out_of_the_folder(tmp_path: Path, source: Path) -> None:
    store = LocalStore(tmp_path / "store")
    ref = store.put(source)
    for path in ("../source.bin", "%2e%2e/source.bin", "sub/../../source.bin"):
        uri = (tmp_path / "store").as_uri() + "/" + path
        with pytest.raises(ValidationError):
            store.get(replace(ref, uri=uri), tmp_path / "copy")


def test_a_pre_signed_url_takes_the_file_and_another_gives_it_back(
    bucket: Any, source: Path, tmp_path: Path
) -> None:
    signed = sign(bucket, "put_object", "by-url")
    ref = upload(signed, source, "application/pdf", uri=f"s3://{BUCKET}/by-url")
    assert ref.uri == f"s3://{BUCKET}/by-url"
    head = bucket.head_object(Bucket=BUCKET, Key="by-url")
    assert (head["ContentLength"], head["ContentType"]) == (len(CONTENT), "application/pdf")
    download(sign(bucket, "get_object", "by-url"), ref, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT
    with pytest.raises(IntegrityError):
        download(
            sign(bucket, "get_object", "by-url"), replace(ref, sha256="0" * 64), tmp_path / "x"
        )
    with pytest.raises(NotFoundError):
        download(sign(bucket, "get_object", "nothing"), ref, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def sign(bucket: Any, method: str, key: str) -> str:
    url: str = bucket.generate_presigned_url(method, {"Bucket": BUCKET, "Key": key})
    return url


def test_a_reference_never_holds_the_signature_of_its_url(source: Path) -> None:
    with ScriptedServer() as server:
        ref = upload(server.url + "/bucket/key?X-Amz-Signature=secret", source)
    assert ref.uri == server.url + "/bucket/key"
    (got,) = server.got
    assert got.method == "PUT"
    assert got.path == "/bucket/key?X-Amz-Signature=secret"
    assert got.body == CONTENT
    assert got.headers["content-md5"] == base64.b64encode(hashlib.md5(CONTENT).digest()).decode()
    assert "transfer-encoding" not in got.headers


@pytest.mark.parametrize("content_type", ["", "a\r\nx: y", "é", "x" * 129])
def test_a_content_type_that_is_no_header_is_refused_before_anything_is_sent(
    source: Path, content_type: str
) -> None:
    with ScriptedServer() as server, pytest.raises(ValidationError):
        upload(server.url, source, content_type)
    assert server.got == []


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(403), DeliveryRefusedError),
        (Answer(307, {"location": "http://169.254.169.254/"}), DeliveryRefusedError),
        (Answer(503), SinkError),
        (Answer(None), SinkError),
        (Answer(200, {"etag": f'"{"0" * 32}"'}), IntegrityError),
    ],
)
def test_an_upload_that_was_not_taken_is_an_error(
    source: Path, answer: Answer, error: type[Exception]
) -> None:
    with ScriptedServer(answer) as server, pytest.raises(error):
        upload(server.url, source)


def test_a_download_stops_at_the_first_byte_too_many(source: Path, tmp_path: Path) -> None:
    ref = LocalStore(tmp_path / "store").put(source)
    with ScriptedServer(Answer(200, body=CONTENT + CONTENT)) as server:
        with pytest.raises(IntegrityError, match="more than"):
            download(server.url, ref, tmp_path / "copy")
        redirect = Answer(302, {"location": server.url})
        with ScriptedServer(redirect) as redirecting, pytest.raises(SinkError, match="302"):
            download(redirecting.url, ref, tmp_path / "copy")
    assert len(server.got) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda path: upload("http://169.254.169.254/latest", path),
        lambda path: download("http://[fe80::1]/", REF, path),
    ],
)
def test_metadata_addresses_are_no_stores(call: Callable[[Path], object], source: Path) -> None:
    with pytest.raises(DeliveryRefusedError):
        call(source)


REF = ArtifactRef("u", "0" * 64, 1, "t")


def test_a_store_that_does_not_answer_is_an_error(s3: Server, source: Path, tmp_path: Path) -> None:
    gone = S3Store(client(replace(s3, url="http://127.0.0.1:9")), BUCKET)
    with pytest.raises(SinkError):
        gone.put(source)
