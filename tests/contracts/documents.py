"""schemathesis with the OpenAPI documents of TEI and Infinity: whether each answer is one that the document has.

The documents are fetched; where they cannot be had, the figures of before stay."""

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

from server import Server

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = {
    "tei": "https://raw.githubusercontent.com/huggingface/text-embeddings-inference/v1.8.3/docs/openapi.json",
    "infinity": "https://raw.githubusercontent.com/michaelfeil/infinity/fcb951cb679d0de185bf254600d9b7d2cd3a263a/docs/assets/openapi.json",
}
# TEI serves one model.
BASES = {"tei": "tei/embedding", "infinity": "infinity"}
# Paths that are not there, or not for texts, with the reason.
LEFT_OUT = {
    "tei": {"/metrics": "metrics are on a port of their own", "/vertex": "`/vertex` does not exist"},
    "infinity": {
        "/metrics": "metrics are on a port of their own", "/embeddings_image": "images", "/embeddings_audio": "audio",
    },
}
# Operations that fail, with the reason.
MISSES = {
    "infinity": {
        "POST /embeddings": "`modality` of images and audio is 400",
        "POST /rerank": "a model that does not do it is 400, as in Infinity's program; its document has 422 alone",
        "POST /classify": "a model that does not do it is 400, as in Infinity's program; its document has 422 alone",
    },
}
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def document(name, cache):
    """The document without the paths that are left out, and those; `None` where it cannot be had."""
    kept = cache / f"{name}.json"
    if not kept.exists():
        try:
            with urllib.request.urlopen(DOCUMENTS[name], timeout=30) as body:
                kept.write_bytes(body.read())
        except OSError as error:
            print(f"left out: {DOCUMENTS[name]} cannot be had ({error}); its figures stay as they are", file=sys.stderr)
            return None
    whole = json.loads(kept.read_text(encoding="utf-8"))
    left = [{"tests": 1, "why": why} for path, why in LEFT_OUT[name].items() if path in whole["paths"]]
    whole["paths"] = {path: item for path, item in whole["paths"].items() if path not in LEFT_OUT[name]}
    return whole, left


def run(name, cache, trireme, work):
    """Runs schemathesis. Gives its figures by operation, the operations that fail, and the log."""
    found = document(name, cache)
    if found is None:
        return None
    whole, left = found
    own, log = work / f"{name}.json", work / f"{name}.log"
    own.write_text(json.dumps(whole), encoding="utf-8")
    with Server(trireme, work, "--model-repository", str(ROOT / "tests/repositories/texts")) as server:
        command = [
            str(ROOT / ".cache/schemathesis/bin/schemathesis"), "run", str(own), "--url", f"{server.url}/{BASES[name]}", "--checks", CHECKS,
            "--phases", "coverage,fuzzing", "--seed", "1", "--max-time", "30", "--warnings", "off", "--continue-on-failure", "--no-color",
            "--suppress-health-check", "all",
        ]
        told = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False).stdout
    log.write_text(told, encoding="utf-8")
    operations = [f"{verb.upper()} {path}" for path, item in whole["paths"].items() for verb in item if verb in ("get", "post", "delete")]
    failed = sorted(set(re.findall(r"^_+ ((?:GET|POST|DELETE) \S+) _+$", told, re.MULTILINE)) & set(operations))
    why = MISSES.get(name, {})
    wrong = [(operation, told[told.find(f" {operation} "):][:1500]) for operation in failed if operation not in why]
    reasons = [why[operation] for operation in failed if operation in why]
    misses = [{"tests": reasons.count(reason), "why": reason} for reason in sorted(set(reasons))]
    return {"passed": len(operations) - len(failed), "of": len(operations), "misses": misses, "left_out": left}, wrong, log
