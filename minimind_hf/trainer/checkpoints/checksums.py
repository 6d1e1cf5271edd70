# SPDX-License-Identifier: Apache-2.0
"""A checksum for every file of a checkpoint, so that a changed byte is found before it is trained on.

Weights have no checksum of their own: a flipped bit in a safetensors file would load silently.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

CHECKSUMS = "checksums.json"
_PIECE = 2**22  # bytes


def write_checksums(folder: Path) -> None:
    """Writes the SHA-256 of every file below a folder that is complete."""
    sums = {
        path.relative_to(folder).as_posix(): _sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != CHECKSUMS
    }
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")


def changed_files(folder: Path) -> Iterator[str]:
    """Yields what is wrong with each file that is not as it was written.

    Checkpoints of earlier versions have no checksums, and nothing is found in them.
    """
    path = folder / CHECKSUMS
    if not path.is_file():
        return
    try:
        sums = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        yield f"{path} is not valid JSON ({error})"
        return
    for name, expected in sums.items():
        if (folder / name).is_file() and _sha256(folder / name) != expected:
            yield (
                f"{folder / name} is damaged: its checksum is not the one in {CHECKSUMS} (if you changed the file "
                f"yourself, delete {CHECKSUMS})"
            )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
