"""openai-python's own tests of batches, embeddings, files, models and uploads, its strict mode among them, against `trireme serve`: its files
as they are, with objects that exist for those that the tests name."""

import os
import re
import subprocess
import xml.etree.ElementTree as xml
from pathlib import Path

from openai_objects import proxy
from server import Server

HERE = Path(__file__).resolve().parent
FILES = [f"tests/api_resources/{name}" for name in ("test_batches.py", "test_embeddings.py", "test_files.py", "test_models.py", "test_uploads.py", "uploads")]
# By patterns of the names of tests, why they do not pass.
MISSES = {
    r"test_models\..*_delete\[": "models are removed by `/v2/repository/models/{model}/unload`, not by `DELETE /v1/models/{model}`",
    r"test_embeddings\..*_create\[(strict|aiohttp)\]": "the client asks for base64, and its strict mode takes lists of numbers alone",
}
# As its pyproject.toml has them, which is not unpacked.
ASYNC = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=session"]


def run(source, python, trireme, work):
    """Runs the suite in the folder `source`. Gives its figures, the tests that fail without a reason, and the log."""
    make = "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import models; print(models.make(pathlib.Path(sys.argv[2]), sys.argv[3]))"
    words = [str(python), "-c", make, str(HERE / "vllm_pooling"), str(HERE.parents[1] / ".cache/contracts/hub"), "sentence-transformers/all-MiniLM-L12-v2"]
    folder = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    report, log = work / "openai.xml", work / "openai.log"
    names = ["--model", f"text-embedding-3-small={folder}", "--data-dir", str(work / "data")]
    with Server(trireme, work, *names) as server, proxy(server.url) as between, log.open("wb") as out:
        command = [str(python), "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *ASYNC, f"--junitxml={report}", "-W", "ignore", *FILES]
        environment = {**os.environ, "TEST_API_BASE_URL": f"http://127.0.0.1:{between.server_port}/openai/v1", "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run(command, cwd=source, env=environment, stdout=out, stderr=subprocess.STDOUT, check=False)
    passed, misses, wrong = 0, {}, []
    for case in xml.parse(report).getroot().iter("testcase"):
        # The library skips tests of mocked downloads with the client that its mocks do not reach.
        if case.find("skipped") is not None:
            continue
        fault = next((child for child in case if child.tag in ("failure", "error")), None)
        if fault is None:
            passed += 1
            continue
        name = f"{case.get('classname')}::{case.get('name')}"
        reason = next((reason for pattern, reason in MISSES.items() if re.search(pattern, name)), None)
        misses[reason] = misses.get(reason, 0) + 1
        if reason is None:
            wrong.append((name, (fault.text or fault.get("message") or "")[-1500:]))
    figures = {"passed": passed, "of": passed + sum(misses.values()), "misses": [{"tests": count, "why": why} for why, count in misses.items()]}
    return figures, wrong, log
