"""A plugin of pytest for vLLM's tests: their `RemoteOpenAIServer` is `trireme serve` with a small model of the same name. All else is theirs.

`TRIREME` names the program and `CONTRACTS_HUB` the hub's cache of the models.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import models
import openai
import vllm.platforms
from server import Server
from vllm.platforms.cpu import CpuPlatform

# The sources are there without an installation, by which vLLM would find its platform.
vllm.platforms._current_platform = CpuPlatform()

import tests.utils

HUB = Path(os.environ["CONTRACTS_HUB"])


def pytest_sessionstart(session):
    """Makes all models: tests ask the libraries for some before they start their server."""
    for name in models.MADE:
        models.make(HUB, name)


class RemoteOpenAIServer:
    """A server of one model, with vLLM's flags in Trireme's words."""

    def __init__(self, model, vllm_serve_args, **_):
        flags = dict(zip(vllm_serve_args, [*vllm_serve_args[1:], ""]))
        chunks = json.loads(flags.get("--pooler-config", "{}")).get("enable_chunked_processing")
        folder = models.make(HUB, model, flags.get("--pooler-config.task"))
        self.work = Path(tempfile.mkdtemp(prefix="contracts-"))
        try:
            words = [f"--model={model}={self._changed(folder, flags)}", "--dialect=vllm", *(["--long-texts=windows"] if chunks else [])]
            server = Server(os.environ["TRIREME"], self.work, *words)
            self.server = server.__enter__()
        except BaseException:
            self.__exit__()
            raise
        self.url_root = f"{server.url}/vllm"

    def _changed(self, folder, flags):
        """A copy of the folder with the longest row and the chat template of the flags."""
        copy = self.work / "model"
        shutil.copytree(folder, copy)
        longest = flags.get("--max-model-len")
        for name, field in [("tokenizer_config.json", "model_max_length"), ("sentence_bert_config.json", "max_seq_length")]:
            file = copy / name
            if longest and file.exists():
                file.write_text(json.dumps(json.loads(file.read_text()) | {field: int(longest)}))
        if template := flags.get("--chat-template"):
            (copy / "chat_template.jinja").write_text(template)
        return copy

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if hasattr(self, "server"):
            self.server.__exit__()
        shutil.rmtree(self.work, ignore_errors=True)

    def url_for(self, *parts):
        return "/".join([self.url_root, *(part.lstrip("/") for part in parts)])

    def get_client(self, **kwargs):
        kwargs.setdefault("timeout", 600)
        return openai.OpenAI(base_url=self.url_for("v1"), api_key="none", max_retries=0, **kwargs)

    def get_async_client(self, **kwargs):
        kwargs.setdefault("timeout", 600)
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key="none", max_retries=0, **kwargs)


tests.utils.RemoteOpenAIServer = RemoteOpenAIServer
