"""The shared memory objects of themes: files in /dev/shm, as `shm_open` creates them."""

import contextlib
import fcntl
import os
from pathlib import Path

from exchange import part

FOLDER = Path("/dev/shm")


@contextlib.contextmanager
def objects(themes):
    """Creates the objects of these themes for the duration of a `with` block. Other runs on this host, which use the same
    objects, wait until it ends."""
    made = {FOLDER / name: parts for theme in themes for name, parts in theme.objects.items()}
    if not made:
        yield
        return
    folder = os.open(FOLDER, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        for path, parts in made.items():
            path.write_bytes(b"".join(part(piece) for piece in parts))
        yield
    finally:
        for path in made:
            path.unlink(missing_ok=True)
        os.close(folder)
