"""`python -m trireme_python`: one instance of a model."""

import sys

try:
    import numpy  # noqa: F401
except ImportError as error:
    sys.exit(
        f"{sys.executable} cannot import numpy, which models in Python need ({error}): install it there "
        "(`python -m pip install numpy`), or name another Python with --python or EXECUTION_ENV_PATH"
    )

from trireme_python.host import main

main()
