#!/usr/bin/env python3
"""Makes PyTorch's CUDA build work on CPUs without CUDA's libraries, which are 2 to 3 GB: `torch-without-cuda.py ENVIRONMENT`.

The package index has PyTorch for Linux on x86-64 with CUDA only. Its CPU code needs nothing of CUDA, but the program loader insists that
each library exists that a library of PyTorch names. The script puts a library in the place of each missing one, whose functions all
return an error. PyTorch finds no GPU and calls none of them.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

CUDA = re.compile(r"(cu[a-zA-Z]*|nccl|nvrtc|nvshmem[a-z]*|nvJitLink|nvtx[a-zA-Z]*)[_A-Z]\w*|(nccl|nvshmem|cu|nv)[A-Za-z]\w*")
LIBRARY = re.compile(r"lib(cu|nccl|nv)\w*\.so\.\d+")
ERROR = 100  # cudaErrorNoDevice; not a success for any of the libraries


def output(*argv):
    return subprocess.run([str(word) for word in argv], check=True, capture_output=True, text=True).stdout


def needed(library):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "--dynamic", "--wide", library))


def undefined(library):
    """The functions that the library takes from others, each with its version or an empty one."""
    names = [line.split()[-1] for line in output("nm", "--dynamic", "--undefined-only", library).splitlines() if line.strip()]
    return {(name, version.lstrip("@")) for name, _, version in (name.partition("@") for name in names)}


def versions(library):
    """The versions that the library wants, as (library they are of, version)."""
    file, found = None, set()
    for line in output("readelf", "--version-info", "--wide", library).splitlines():
        if match := re.search(r"File: (\S+)", line):
            file = match[1]
        elif match := re.search(r"Name: (\S+)\s+Flags", line):
            found.add((file, match[1]))
    return found


def missing(libraries, packages):
    """Names of CUDA's libraries that the libraries need, and no package has."""
    present = {path.name for path in packages.glob("nvidia/**/lib/*.so*")} | {path.name for path in libraries[0].parent.iterdir()}
    wanted = {name for library in libraries for name in needed(library)}
    # A machine has the driver's library or has no GPU. PyTorch loads it when it needs it.
    return sorted(name for name in wanted - present if LIBRARY.fullmatch(name) and name != "libcuda.so.1")


def compiler(name, functions, own, work):
    """The command that compiles a library of functions that fail. `own` are the versions that it has to define."""
    source, script = work / "absent.c", work / "absent.map"
    names = sorted({function for function, version in functions if version in own or (not version and CUDA.fullmatch(function))})
    source.write_text("".join(f"int {function}() {{ return {ERROR}; }}\n" for function in names))
    listed = {version: sorted(function for function, wanted in functions if wanted == version) for version in own}
    nodes = (f"{version} {{ {'global: ' + '; '.join(names) + ';' if names else ''} }};\n" for version, names in listed.items())
    script.write_text("".join(nodes))
    versioned = [f"-Wl,--version-script={script}"] if own else []
    return ["cc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{name}", *versioned, source]


def main():
    [packages] = Path(sys.argv[1]).glob("lib/python3*/site-packages")
    libraries = sorted((packages / "torch/lib").glob("*.so"))
    names = missing(libraries, packages)
    functions = {function for library in libraries for function in undefined(library)}
    wanted = {version for library in libraries for version in versions(library)}
    with tempfile.TemporaryDirectory() as work:
        for name in names:
            own = sorted(version for file, version in wanted if file == name)
            command = compiler(name, functions, own, Path(work))
            subprocess.run([*command, "-o", packages / "torch/lib" / name], check=True)
    print(f"{len(names)} libraries of CUDA are replaced by empty ones: {' '.join(names)}")


if __name__ == "__main__":
    main()
