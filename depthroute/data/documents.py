"""Documents: which files a corpus consists of, and which split each belongs to."""

import fnmatch
import glob
import hashlib
import itertools
import os
import platform
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from depthroute.errors import UserError

SPLITS = ("train", "tune", "val")
# Tests and bundled tools are not library source; files that the build writes differ from machine to machine.
NOT_LIBRARY = ("test", "tests", "idlelib", "ensurepip", "site-packages", "dist-packages", "__pycache__", "config-*")
NOT_SOURCE = "_sysconfigdata*"


@dataclass(frozen=True)
class Document:
    """A file of text. Its `name`, relative to the corpus, decides its split; its content is bytes, decoded nowhere."""

    name: str
    path: Path

    @property
    def split(self) -> str:
        """train (90 %), tune (5 %) or val (5 %), by a hash of the name, so that other documents do not matter."""
        bucket = int.from_bytes(hashlib.sha256(os.fsencode(self.name)).digest()[:8], "big") % 100
        return "train" if bucket < 90 else "tune" if bucket < 95 else "val"

    def read(self) -> bytes:
        """The content."""
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise self._unreadable(error) from error

    def digest(self) -> str:
        """sha256 of the content, computed as a stream."""
        try:
            with open(self.path, "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> UserError:
        return UserError(f"document {str(self.path)!r} cannot be read ({error.strerror}); mend it or change data.files")


def embedded() -> list[Document]:
    """The Python standard library's own source as installed, without tests: about 670 documents, 11 MB."""
    root = Path(sysconfig.get_paths()["stdlib"])
    documents = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if not any(fnmatch.fnmatch(name, no) for no in NOT_LIBRARY)]
        for name in files:
            if name.endswith(".py") and not fnmatch.fnmatch(name, NOT_SOURCE):
                path = Path(folder, name)
                documents.append(Document(path.relative_to(root).as_posix(), path))
    if not documents:
        raise UserError(f"the Python standard library at {str(root)!r} has no source files; set data.source to text or bin")
    return sorted(documents, key=lambda document: document.name)


def matching(pattern: str) -> list[Document]:
    """The files that match a glob (`**` crosses folders), in order of their names.

    Names are relative to the part of the glob before its first wildcard, so a corpus may move without changing its splits.
    """
    root, below = _split_glob(pattern)
    names = glob.glob(below, root_dir=root, recursive=True)
    documents = [Document(Path(name).as_posix(), root / name) for name in names if (root / name).is_file()]
    if not documents:
        raise UserError(f"no file matches {pattern!r}; allowed: a path or glob of existing files; set it in data.files")
    return sorted(documents, key=lambda document: document.name)


def _split_glob(pattern: str) -> tuple[Path, str]:
    parts = Path(pattern).expanduser().parts
    fixed = tuple(itertools.takewhile(lambda part: not any(letter in part for letter in "*?["), parts[:-1]))
    return Path(*fixed), str(Path(*parts[len(fixed) :]))


def find(source: str, files: str) -> tuple[list[Document], str]:
    """The documents of `source`, embedded or text (glob `files`), with a description. Every split has at least one."""
    if source == "embedded":
        documents, what = embedded(), f"source of the Python {platform.python_version()} standard library"
    else:
        documents, what = matching(files), f"text files {files}"
    _check_splits(documents, what)
    return documents, f"{what}, {len(documents)} documents"


def _check_splits(documents: Sequence[Document], what: str) -> None:
    present = {document.split for document in documents}
    for split in SPLITS:
        if split not in present:
            raise UserError(
                f"split {split!r} of {what} is empty: {len(documents)} documents are too few, since a hash of its name puts "
                "each into train (90 %), tune (5 %) or val (5 %); allowed: some 100 documents or more; set data.files"
            )
