"""What the library that a model folder is made for computes for texts: one JSON object a line, for `trireme verify`.

Standard input is a JSON object: `folder`, `tasks`, `texts`, `pairs` (the second texts), `prompt_name`, `aggregation`. Texts are
computed one by one, so that no padding plays a part.
"""

import json
import os
import sys
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.simplefilter("ignore")


def config_of(folder):
    path = os.path.join(folder, "config.json")
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def numbers(array):
    return [float(value) for value in array]


def embed(ask):
    if config_of(ask["folder"]).get("model_type") == "model2vec":
        from model2vec import StaticModel

        model = StaticModel.from_pretrained(ask["folder"])
        return [{"embedding": numbers(model.encode([text])[0])} for text in ask["texts"]]
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(ask["folder"], device="cpu")
    prompt = {"prompt_name": ask["prompt_name"]} if ask["prompt_name"] else {}
    vectors = [model.encode([text], show_progress_bar=False, **prompt)[0] for text in ask["texts"]]
    return [{"embedding": numbers(vector)} for vector in vectors]


def sparse(ask):
    from sentence_transformers import SparseEncoder

    model = SparseEncoder(ask["folder"], device="cpu")
    prompt = {"prompt_name": ask["prompt_name"]} if ask["prompt_name"] else {}
    found = []
    for text in ask["texts"]:
        vector = model.encode([text], show_progress_bar=False, convert_to_sparse_tensor=False, **prompt)[0]
        indices = [int(index) for index in vector.nonzero().flatten()]
        found.append({"sparse": {"indices": indices, "values": numbers(vector[indices])}})
    return found


def multi_vector(ask):
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(ask["folder"], device="cpu")
    prompt = {"prompt_name": ask["prompt_name"]} if ask["prompt_name"] else {}
    vectors = [model.encode([text], show_progress_bar=False, **prompt)[0] for text in ask["texts"]]
    return [{"token_embeddings": [numbers(token) for token in tokens]} for tokens in vectors]


def rerank(ask):
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(ask["folder"], device="cpu")
    pairs = zip(ask["texts"], ask["pairs"])
    scores = [model.predict([pair], show_progress_bar=False)[0] for pair in pairs]
    return [{"scores": numbers(score) if getattr(score, "ndim", 0) else [float(score)]} for score in scores]


def classify(ask):
    from transformers import pipeline

    model = pipeline("text-classification", model=ask["folder"], device="cpu")
    classes = model.model.config.label2id
    found = []
    for text, pair in zip(ask["texts"], ask["pairs"] or [None] * len(ask["texts"])):
        given = {"text": text} if pair is None else {"text": text, "text_pair": pair}
        scores = model([given], top_k=None, truncation=True)[0]
        found.append({"scores": numbers(s["score"] for s in sorted(scores, key=lambda s: classes[s["label"]]))})
    return found


def token_classify(ask):
    from transformers import pipeline

    model = pipeline("token-classification", model=ask["folder"], device="cpu", aggregation_strategy=ask["aggregation"])
    return [{"entities": [plain(entity) for entity in model(text)] if text.strip() else []} for text in ask["texts"]]


def plain(entity):
    return {key: value if isinstance(value, (int, str)) else float(value) for key, value in entity.items()}


def lines_of(ask):
    lines = [{"text": text} for text in ask["texts"]]
    for index, pair in enumerate(ask["pairs"] or []):
        lines[index]["text_pair"] = pair
    for task in ask["tasks"]:
        for line, found in zip(lines, globals()[task](ask)):
            line.update(found)
    return lines


def main():
    ask = json.load(sys.stdin)
    # Libraries print to standard output; the answer keeps it for itself, and their prints go to standard error.
    answer, sys.stdout = sys.stdout, sys.stderr
    for line in lines_of(ask):
        answer.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
