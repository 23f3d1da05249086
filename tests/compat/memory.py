"""The memory objects that themes have: files of /dev/shm, as `shm_open` makes them."""

import contextlib
import fcntl
import os
from pathlib import Path

from exchange import part

FOLDER = Path("/dev/shm")


@contextlib.contextmanager
def objects(themes):
    """Makes the objects of these themes; they are there for the length of a `with` block. Others on this host, who have
    the same ones, wait for it to end."""
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
