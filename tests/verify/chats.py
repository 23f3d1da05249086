"""Model folders whose texts go through a chat template, and those of causal language models that judge pairs by two tokens."""

import json

import transformers
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification, Qwen3Model

import folders
from folders import PLAIN, Folder, eager, export, folder, gpt_tokenizer, normalize, pooling, rewrite

CHATML = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</{{ m['role'] }}>\n{% endfor %}{% if add_generation_prompt %}<assistant>\n{% endif %}"
JUDGE = """<system>Answer yes or no.</system>
<user>{{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("Find it", true) }}: \
{{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }} | \
{{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first | trim }}</user>
"""


def chat_tokenizer(template, longest):
    tokenizer = gpt_tokenizer()
    tokenizer.chat_template, tokenizer.model_max_length = template, longest
    return tokenizer


def qwen3(tokenizer, **options):
    return eager(Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        intermediate_size=64, max_position_embeddings=512, pad_token_id=tokenizer.pad_token_id, tie_word_embeddings=False, use_cache=False,
        **options,
    ))


def embedder(path, template, longest, **options):
    tokenizer = chat_tokenizer(template, longest)
    model = Qwen3Model(qwen3(tokenizer))
    folders.sentence(path, model, tokenizer, [pooling("lasttoken"), normalize()], inputs=PLAIN, **options)
    return tokenizer


@folder
def chat_messages(path):
    # Older folders have no modality_config; the library that applies a template writes what the template is for.
    embedder(path, CHATML, 256, prompts={"query": "Represent the question:"})
    message(path, add_generation_prompt=True)
    return Folder("embed", PLAIN, ops="pool:last, normalize", prompt_names=[None, "query"])


@folder
def chat_messages_cut(path):
    embedder(path, CHATML, 48)
    message(path)
    return Folder("embed", PLAIN, ops="pool:last, normalize")


def message(path, **kwargs):
    """The transformer's file as a folder has it that was trained with messages."""
    how = {"method": "forward", "method_output_name": "last_hidden_state"}
    own = {"modality_config": {"text": how, "message": {**how, "format": "flat"}}, "module_output_name": "token_embeddings"}
    if kwargs:
        own["processing_kwargs"] = {"chat_template": kwargs}
    rewrite(path / "sentence_bert_config.json", lambda old: {**old, **own})


@folder
def rerank_by_yes_and_no(path):
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    tokenizer = chat_tokenizer(JUDGE, 160)
    model = Qwen3ForCausalLM(qwen3(tokenizer)).eval()
    plain = path.with_name(f"{path.name}-transformer")
    model.save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    modules = [Transformer(str(plain), transformer_task="text-generation"), LogitScore(true_token_id=70, false_token_id=71)]
    CrossEncoder(modules=modules, device="cpu").save_pretrained(str(path))
    export(model, path, PLAIN, output="logits")
    return Folder("rerank", PLAIN, output="logits", ops="logit_score:70-71, sigmoid", width=1)


@folder
def rerank_by_chat(path):
    tokenizer = chat_tokenizer(JUDGE, 160)
    model = Qwen3ForSequenceClassification(qwen3(tokenizer, num_labels=1)).eval()
    folders.write(path, model, tokenizer, inputs=PLAIN)
    return Folder("rerank", PLAIN, output="logits", ops="sigmoid", width=1)
