"""Whether the table of fields (docs/model-folders.md, made of crates/model-repository/src/folder/fields.rs) has every field that the
installed libraries know: their next release shows here what it has added."""

import inspect
import re
from fnmatch import fnmatchcase
from pathlib import Path

import transformers
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs" / "model-folders.md"
MODULES = [Dense, Normalize, LogitScore, MultiVectorMask, Dropout, LayerNorm, Pooling, SpladePooling, SparseStaticEmbedding]
# Arguments of a tokenizer's constructor that no file has: objects, and how it is called.
NOT_IN_FILES = {
    "files_loaded", "gguf_file", "merges", "post_processor", "tokenizer", "tokenizer_object", "tokenizer_padding", "tokenizer_truncation",
    "verbose", "vocab",
}
# Within `__version__`.
VERSIONS = {"pytorch", "sentence_transformers", "transformers"}
# Arguments of apply_chat_template that are no variables of a template, and that sentence-transformers gives itself.
NOT_OF_FOLDERS = {"self", "conversation", "kwargs", "return_assistant_tokens_mask", "sanitize_control_tokens", "tokenizer_kwargs"}


def table():
    """For each file or module the patterns of its fields."""
    known = {}
    text = DOCUMENT.read_text(encoding="utf-8").split("<!-- fields -->")[1].split("<!-- end of fields -->")[0]
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 3 and "`" in cells[1]:
            known.setdefault(cells[0], []).extend(re.findall(r"`([^`]+)`", cells[1]))
    return known


def keywords(*functions):
    """The names that constructors take out of their keyword arguments."""
    source = "".join(inspect.getsource(function) for function in functions)
    return set(re.findall(r'kwargs\.(?:pop|get)\(\s*"(\w+)"', source)) | set(re.findall(r'kwargs\["(\w+)"\]', source))


def libraries():
    """For each file or module the fields that the libraries know."""
    known = {module.__name__: set(module.config_keys) for module in MODULES}
    known["sentence_bert_config.json"] = set(Transformer.config_keys)
    known["router_config.json"] = {f"parameters.{name}" for name in Router.config_keys}
    template = inspect.signature(transformers.PreTrainedTokenizerBase.apply_chat_template).parameters
    known["sentence_bert_config.json"] |= {f"processing_kwargs.chat_template.{name}" for name in set(template) - NOT_OF_FOLDERS}
    own = "".join(inspect.getsource(kind._get_model_config) for kind in [CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder])
    own += inspect.getsource(SentenceTransformer.__mro__[1]._get_model_config)
    own = set(re.findall(r'"(\w+)":', own)) | set(re.findall(r'config\["(\w+)"\]', own))
    known["config_sentence_transformers.json"] = own - VERSIONS
    tokenizer = keywords(transformers.PreTrainedTokenizerBase.__init__, transformers.TokenizersBackend.__init__)
    known["tokenizer_config.json"] = {name for name in tokenizer if not name.startswith("_")} - NOT_IN_FILES
    return known


def check():
    """The fields that no row has are an error."""
    rows, missing, count = table(), [], 0
    for file, names in libraries().items():
        if not names:
            raise AssertionError(f"the library names no field of {file}, so that nothing is compared")
        inner = {name.split(".")[0] for name in rows.get(file, []) if "." in name}
        for name in sorted(names):
            count += 1
            if name not in inner and not any(fnmatchcase(name, pattern) for pattern in rows.get(file, [])):
                missing.append(f"{file}: {name}")
    if missing:
        raise AssertionError(f"no row of crates/model-repository/src/folder/fields.rs has {', '.join(missing)}")
    return f"{count} fields of the libraries, each in a row"
