"""Makers of files that mean harm: each says what it would do to a reader that trusts it."""

import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from worstclass.errors import UserError


def one_line(work: Callable[[], object]) -> str:
    """The clean error that this must end in."""
    with pytest.raises(UserError) as caught:
        work()
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 1000
    return text


class Payload:
    """An object that leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def pickled(mark: Path) -> bytes:
    return pickle.dumps(Payload(mark))


def torch_file(mark: Path) -> bytes:
    """What `torch.save` writes: a zip archive with a pickle in it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickled(mark))
        archive.writestr("archive/version", "3\n")
    return buffer.getvalue()


def object_array(mark: Path) -> bytes:
    """An .npy file whose array is a pickle."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([Payload(mark)], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def npy(descr: object, shape: object, content: bytes = b"", version: int = 1) -> bytes:
    """An .npy file whose header says what it is told to."""
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + content


def archive(path: Path, members: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def zeros_bomb(path: Path, size: int) -> Path:
    """An .npz whose x_train is `size` zero bytes, truly, packed 1:1000: one packed megabyte, repeated."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        file.writestr("y_train.npy", npy("<i8", (2,), np.arange(2).tobytes()))
        with file.open("x_train.npy", "w", force_zip64=True) as entry:
            entry.write(npy("|u1", (size // 2**20, 2**10, 2**10)))
            for _ in range(size // 2**20):
                entry.write(bytes(2**20))
    return path


def claim_size(path: Path, size: int) -> None:
    """Make the directory of a zip file say that its last member unpacks to `size` bytes."""
    content = bytearray(path.read_bytes())
    place = content.rindex(b"PK\x01\x02")
    content[place + 24 : place + 28] = struct.pack("<I", size)
    path.write_bytes(bytes(content))


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file whose header says what it is told to."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def png(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims to be as large as told, and unpacks to one row of zeros."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(x) print\n%%EOF\n"


def tar_members(archive: Path, members: list[tuple[str, bytes, bytes]]) -> None:
    """A .tar.gz of (name, type, content or target of the link)."""
    with tarfile.open(archive, "w:gz") as tar:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            if kind == tarfile.REGTYPE:
                member.size = len(content)
            else:
                member.linkname = content.decode()
            tar.addfile(member, io.BytesIO(content) if kind == tarfile.REGTYPE else None)


DEEP = "[" * 100_000 + "]" * 100_000
TEXTS: dict[str, bytes] = {
    "empty": b"",
    "a NUL": b"\0",
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "a byte-order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "deep": DEEP.encode(),
    "a deep object": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "endless digits": b'{"epoch": ' + b"1" * 10_000 + b"}",
    "a long line": b'{"' + b"x" * 5_000_000 + b'": 1}',
    "half a surrogate pair": b'{"class_names": ["\\ud800", "b"]}',
    "a list": b"[]",
    "a number": b"3",
    "a string": b'"x"',
    "nothing": b"null",
    "not a number": b"NaN",
    "infinite": b'{"about": 1e999}',
    "a pickle": b"cos\nmkdir\n(S'marked'\ntR.",
}
"""What may stand where JSON is expected."""

RECIPES: dict[str, bytes] = {
    "a NUL": b'method = "\0"',
    "not UTF-8": b'method = "\xff"',
    "a byte-order mark": b'\xef\xbb\xbfmethod = "wat"',
    "deep": b"lr_milestones = " + b"[" * 15_000 + b"]" * 15_000,
    "deep tables": b"a = " + b"{a=" * 7_000 + b"1" + b"}" * 7_000,
    "dotted for ever": b"a" + b".a" * 16_000 + b" = 1",
    "dotted for long, often": b"\n".join(b"a%d" % i + b".a" * 2_000 + b" = 1" for i in range(8)),
    "endless digits": b"seed = " + b"1" * 10_000,
    "endless hex digits": b"seed = 0x" + b"f" * 10_000,
    "endless hex digits for a number": b"lr = 0x" + b"f" * 10_000,
    "endless hex digits for a word": b"method = 0x" + b"f" * 10_000,
    "a date": b"epochs = 1979-05-27T07:32:00Z",
    "a table": b"[method]\nname = 'wat'",
    "a list of tables": b"[[method]]\nname = 'wat'",
    "too long": b"#" * 2**17,
    "a long key": b"x" * 30_000 + b" = 1",
    "a long word": b'method = "' + b"x" * 30_000 + b'"',
    "a huge network": b'model = "wrn' + b"4" * 5000 + b'-1"',
    "a huge crop": b"crop_padding = 1000000000",
    "JSON": b'{"method": "wat"}',
}

CLIMBING = ["../../climbed", "/tmp/climbed-by-worstclass", "..\\climbed", "a/../../climbed", "x_train/../../climbed"]
