"""`python -m trireme_python`: one instance of a model."""

import sys

# The worker's folder, which `-m` has put first: a module of the model must not be looked for there. A Python that is told not to does not
# put it there.
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
