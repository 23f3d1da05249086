"""`python -m trireme_python`: one instance of a model."""

from trireme_python.host import main

main()
