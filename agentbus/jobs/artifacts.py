"""What is too large or too binary for an event: stored beside it, referred to by hash.

Owns the ways to store and to fetch: a local folder, an S3-compatible store with the parent's own
client, a pre-signed URL. Whatever is fetched is compared with the hash in its reference before
anybody sees it; whatever is stored is hashed while it is read. Blocks the caller's thread.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from agentbus.errors import NotFoundError, ValidationError
from agentbus.jobs.errors import DeliveryRefusedError, IntegrityError, SinkError
from agentbus.jobs.events import ArtifactRef, artifact_data, check_content_type, parse_artifact
from agentbus.jobs.http import Judge, NoAnswerError, exchange, parse_url, refuse_metadata

BLOCK_BYTES: Final = 256 * 1024
TRANSFER_S: Final = 600.0
"""Of one upload or download over HTTP, whatever its size."""

DEFAULT_TYPE: Final = "application/octet-stream"


class ArtifactStore(Protocol):
    """Where artifacts are kept."""

    def put(self, source: Path, content_type: str = DEFAULT_TYPE) -> ArtifactRef:
        """Store the file's bytes. Returns when the store has them."""
        ...

    def get(self, ref: ArtifactRef, destination: Path) -> None:
        """Fetch to a file that is there only when it is whole and right.

        Raises IntegrityError for other bytes than the reference's, NotFoundError for none.
        """
        ...


class LocalStore:
    """A folder; each file is named by its hash, so the same bytes are stored once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._folder.mkdir(parents=True, exist_ok=True)

    def put(self, source: Path, content_type: str = DEFAULT_TYPE) -> ArtifactRef:
        with _NewFile(self._folder) as new:
            for block in _blocks(source):
                new.write(block)
            path = self._folder / new.sha256
            new.keep(path)
        return _checked(ArtifactRef(path.as_uri(), new.sha256, new.size_bytes, content_type))

    def get(self, ref: ArtifactRef, destination: Path) -> None:
        path = self._path(ref.uri)
        try:
            _receive(_blocks(path), ref, destination)
        except FileNotFoundError:
            raise NotFoundError(f"there is no artifact {ref.uri}") from None

    def _path(self, uri: str) -> Path:
        """Only files of this folder: a reference is what a tool wrote."""
        parts = urlsplit(uri)
        path = Path(unquote(parts.path))
        if parts.scheme != "file" or parts.netloc or path.parent != self._folder:
            raise ValidationError(f"{uri} is not in the store {self._folder}")
        return path


class S3Store:
    """A bucket of an S3-compatible store, with a `boto3` client that the caller configured."""

    def __init__(self, client: Any, bucket: str, prefix: str = "") -> None:
        """`prefix` goes before every key, for example `jobs/`."""
        self._client = client
        self._bucket = bucket
        self._prefix = prefix

    def put(self, source: Path, content_type: str = DEFAULT_TYPE) -> ArtifactRef:
        sha256, _, size_bytes = _hashes(source)
        key = self._prefix + sha256
        with source.open("rb") as body, _store_errors(f"store {key}"):
            self._client.put_object(
                Bucket=self._bucket,
                Key=key,
                Body=body,
                ContentType=content_type,
                # The store compares the bytes with it, and keeps nothing else.
                ChecksumSHA256=base64.b64encode(bytes.fromhex(sha256)).decode(),
            )
        return _checked(ArtifactRef(f"s3://{self._bucket}/{key}", sha256, size_bytes, content_type))

    def get(self, ref: ArtifactRef, destination: Path) -> None:
        parts = urlsplit(ref.uri)
        key = parts.path.removeprefix("/")
        if (parts.scheme, parts.netloc) != ("s3", self._bucket) or not key.startswith(self._prefix):
            raise ValidationError(f"{ref.uri} is not in s3://{self._bucket}/{self._prefix}")
        with _store_errors(f"fetch {key}"):
            body = self._client.get_object(Bucket=self._bucket, Key=key)["Body"]
            with body:
                _receive(body.iter_chunks(BLOCK_BYTES), ref, destination)


def upload(
    put_url: str,
    source: Path,
    content_type: str = DEFAULT_TYPE,
    *,
    uri: str | None = None,
    judge: Judge | None = None,
) -> ArtifactRef:
    """Put the file to a pre-signed URL that the parent gave: a tool needs no credentials for it.

    The reference's `uri` is the URL without its query, which holds the signature, unless the parent
    said another one. Raises SinkError.
    """
    target = parse_url(put_url, "the upload URL")
    check_content_type(content_type)
    sha256, md5, size_bytes = _hashes(source)
    headers = {
        "content-type": content_type,
        "content-length": str(size_bytes),
        "content-md5": base64.b64encode(md5).decode(),
    }
    with exchange(
        "PUT",
        target,
        judge or refuse_metadata(()),
        headers=headers,
        body=_blocks(source),
        total_s=TRANSFER_S,
    ) as answer:
        if not 200 <= answer.status < 300:
            kind = SinkError if answer.status >= 500 else DeliveryRefusedError
            raise kind(f"{target.authority} answered {answer.status} to the upload")
        stored = answer.headers.get("etag", "").strip('"')
    if _is_md5(stored) and stored != md5.hex():
        raise IntegrityError(f"{target.authority} has stored other bytes than were sent")
    return _checked(ArtifactRef(uri or put_url.partition("?")[0], sha256, size_bytes, content_type))


def download(get_url: str, ref: ArtifactRef, destination: Path, judge: Judge | None = None) -> None:
    """Fetch from an http(s) URL, for example a pre-signed one. Redirects are not followed."""
    target = parse_url(get_url, "the download URL")
    with exchange("GET", target, judge or refuse_metadata(()), total_s=TRANSFER_S) as answer:
        if answer.status == 404:
            raise NotFoundError(f"there is no artifact at {target.authority}")
        if answer.status != 200:
            raise NoAnswerError(f"{target.authority} answered {answer.status} to the download")
        _receive(answer.chunks, ref, destination)


def _receive(blocks: Iterator[bytes], ref: ArtifactRef, destination: Path) -> None:
    """Write, compare, then put in place. Stops at the first byte too many."""
    with _NewFile(destination.absolute().parent) as new:
        for block in blocks:
            new.write(block)
            if new.size_bytes > ref.bytes:
                raise IntegrityError(f"{ref.uri} has more than its {ref.bytes} bytes")
        if new.size_bytes != ref.bytes:
            raise IntegrityError(f"{ref.uri} has {new.size_bytes} bytes, not {ref.bytes}")
        if new.sha256 != ref.sha256:
            raise IntegrityError(f"{ref.uri} has the hash {new.sha256}, not {ref.sha256}")
        new.keep(destination)


class _NewFile:
    """A file that nobody sees until it is kept; hashed while it is written."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.NamedTemporaryFile(  # noqa: SIM115  # closed by __exit__
            dir=folder, prefix=".artifact-", delete=False
        )
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    def __enter__(self) -> _NewFile:
        return self

    def write(self, block: bytes) -> None:
        self._file.write(block)
        self._hash.update(block)
        self.size_bytes += len(block)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def keep(self, path: Path) -> None:
        """On the disk, then under its name."""
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self._file.name, path)

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # of a full disk; what is kept was written before
            self._file.close()
        with suppress(FileNotFoundError):  # as it is when it was kept
            os.unlink(self._file.name)


@contextmanager
def _store_errors(what: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        is_missing = error.response.get("Error", {}).get("Code") in ("NoSuchKey", "404")
        kind = NotFoundError if is_missing else SinkError
        raise kind(f"the store did not {what}: {error}") from None
    except BotoCoreError as error:
        raise SinkError(f"the store did not {what}: {error}") from None


def _blocks(source: Path) -> Iterator[bytes]:
    with source.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            yield block


def _hashes(source: Path) -> tuple[str, bytes, int]:
    """SHA-256, MD5 (which S3 compares, no more) and size."""
    sha256, md5, size_bytes = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
    for block in _blocks(source):
        sha256.update(block)
        md5.update(block)
        size_bytes += len(block)
    return sha256.hexdigest(), md5.digest(), size_bytes


def _is_md5(text: str) -> bool:
    return len(text) == 32 and set(text) <= set("0123456789abcdef")


def _checked(ref: ArtifactRef) -> ArtifactRef:
    return parse_artifact(artifact_data(ref))
