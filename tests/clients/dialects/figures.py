#!/usr/bin/env python3
"""How many checks of each client pass, as docs/dialects.md has them. `make clients-test` ends at a check that fails, and at a miss that passes.

    tests/clients/dialects/figures.py    (UPDATE_DOCS=1 renews the page)
"""

import ast
import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[2] / "docs/dialects.md"
START, END = "<!-- clients -->\n", "<!-- end of clients -->"

#: By script, the clients in words, and the packages whose versions are named.
CLIENTS = {
    "openai_client": ("OpenAI", ["openai"]),
    "langchain_client": ("LangChain: OpenAI", ["langchain-openai"]),
    "langchain_integrations": ("LangChain: Cohere, Hugging Face", ["langchain-cohere", "langchain-huggingface"]),
    "nvidia_client": ("LangChain: NVIDIA NIM", ["langchain-nvidia-ai-endpoints"]),
    "cohere_client": ("Cohere", ["cohere"]),
    "huggingface_client": ("Hugging Face: TEI", ["huggingface-hub"]),
    "llama_index_client": ("LlamaIndex: OpenAI, TEI", ["llama-index-embeddings-openai-like", "llama-index-embeddings-text-embeddings-inference",
                                                       "llama-index-postprocessor-tei-rerank"]),
    "llama_index_jina": ("LlamaIndex: Jina", ["llama-index-embeddings-jinaai", "llama-index-postprocessor-jinaai-rerank"]),
    "haystack_client": ("Haystack: OpenAI, TEI", ["haystack-ai", "huggingface-api-haystack"]),
    "haystack_cohere": ("Haystack: Cohere", ["cohere-haystack"]),
    "infinity_checks": ("Infinity", ["infinity-client"]),
    "rerankers_client": ("rerankers", ["rerankers"]),
    "ollama_client": ("Ollama", ["ollama"]),
    "baseten_client": ("Baseten", ["baseten-performance-client"]),
    "kserve_client": ("KServe", ["kserve"]),
    "mistral_client": ("Mistral", ["mistralai"]),
    "voyage_client": ("Voyage", ["voyageai"]),
    "together_client": ("Together", ["together"]),
    "litellm_client": ("LiteLLM", ["litellm"]),
    "pydantic_ai_client": ("Pydantic AI: OpenAI, Cohere, Voyage", ["pydantic-ai-slim"]),
    "dspy_client": ("DSPy", ["dspy"]),
    "agno_client": ("Agno: OpenAI, Jina, Cohere, Mistral, Voyage, Together", ["agno"]),
    "chroma_client": ("Chroma: OpenAI, TEI", ["chromadb-client"]),
    "langchain_others": ("LangChain: Mistral, Together, Ollama, Voyage", ["langchain-mistralai", "langchain-together", "langchain-ollama", "langchain-voyageai"]),
    "llama_index_cohere": ("LlamaIndex: Cohere", ["llama-index-postprocessor-cohere-rerank"]),
    "mlserver_codecs": ("MLServer: codecs", ["mlserver"]),
    "base_urls": ("OpenAI, Cohere, Infinity, Ollama behind each name", []),
    "products": ("RAGFlow, Dify, Milvus, Spring AI, Semantic Kernel, txtai: their requests", []),
}
#: By script and check, what the client asks for that is not there.
MISSES = {}


def versions():
    """By package, the version that is installed."""
    lines = "".join((HERE / name).read_text(encoding="utf-8") for name in ("others.in", "integrations.in", "requirements.in"))
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", lines, re.MULTILINE))


def checks(script):
    """How many checks a script runs, and the names of its misses."""
    tree = ast.parse((HERE / f"{script}.py").read_text(encoding="utf-8"))
    calls = [node.value for node in tree.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    (call,) = [call for call in calls if getattr(call.func, "id", "") == "run"]
    lists = {keyword.arg: keyword.value.elts for keyword in call.keywords}
    misses = [element.id for element in lists.pop("misses", [])]
    return sum(map(len, lists.values())), misses


def table():
    known, rows = versions(), "| client | passes | misses |\n|---|---|---|\n"
    for script, (words, packages) in CLIENTS.items():
        passed, misses = checks(script)
        named = ", ".join(f"{package} {known[package]}" for package in packages)
        why = "; ".join(f"1: {MISSES[script, miss]}" for miss in misses) or "—"
        rows += f"| {words}{f' ({named})' if named else ''} | {passed} of {passed + len(misses)} | {why} |\n"
    return rows


def main():
    unnamed = {path.stem for path in HERE.glob("*.py") if "\nrun(" in path.read_text(encoding="utf-8")} - set(CLIENTS)
    if unnamed:
        sys.exit(f"figures.py names no client for {sorted(unnamed)}")
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    now, after = rest.split(END)
    if "UPDATE_DOCS" in os.environ:
        PAGE.write_text(f"{before}{START}{table()}{END}{after}", encoding="utf-8")
    elif now != table():
        sys.exit("docs/dialects.md has other figures of clients: UPDATE_DOCS=1 tests/clients/dialects/figures.py renews them")


if __name__ == "__main__":
    main()
