"""`python -m trireme_python`: one instance of a model."""

import sys

# `-m` has put the worker's folder first. Python must not look for modules of the model there, so the folder is removed. A Python that runs
# with `-P` (`safe_path`) has not put it there.
if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]

try:
    import numpy  # noqa: F401
except ImportError as error:
    sys.exit(
        f"{sys.executable} cannot import numpy, which models in Python need ({error}): install it there "
        "(`python -m pip install numpy`), or name another Python with --python or EXECUTION_ENV_PATH"
    )

from trireme_python.host import main

main()
