"""Fetches the source distribution of a project from the package index that pip uses, and unpacks its Python files.

    fetch.py PROJECT==VERSION SHA256 FOLDER
"""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import urllib.parse
import urllib.request
from pathlib import Path, PurePosixPath


def index():
    """The address of the index, as pip's environment or configuration names it."""
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True,
    ).stdout.strip()
    return os.environ.get("PIP_INDEX_URL") or configured or "https://pypi.org/simple"


def fetch(project, version, sha256):
    accept = {"Accept": "application/vnd.pypi.simple.v1+json"}
    request = urllib.request.Request(f"{index().rstrip('/')}/{project}/", headers=accept)
    with urllib.request.urlopen(request) as page:
        files, base = json.load(page)["files"], page.url
    (file,) = [file for file in files if file["filename"] == f"{project}-{version}.tar.gz"]
    with urllib.request.urlopen(urllib.parse.urljoin(base, file["url"])) as body:
        content = body.read()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        sys.exit(f"{file['filename']} has the SHA-256 {found}, expected {sha256}")
    return content


def main():
    requirement, sha256, folder = sys.argv[1:]
    project, version = requirement.split("==")
    with tarfile.open(fileobj=io.BytesIO(fetch(project, version, sha256))) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            if member.isfile() and path.suffix == ".py":
                member.name = str(PurePosixPath(*path.parts[1:]))
                archive.extract(member, Path(folder), filter="data")


main()
