"""Makes chat.json: rows of chat templates, as transformers' `apply_chat_template` and sentence-transformers make them.

    pip install jinja2 tokenizers transformers
    python chat.py

The tokenizer is that of folder `byte-bpe`. A row that is too long ends as sentence-transformers 6.2 has it: cut to `max_length`, and the
end of the template written over its last tokens (`Transformer._restore_chat_template_suffix`, which needs torch and is done here
likewise). Each case has its template, the parameters (as config.pbtxt would have them), a prompt, texts and rows.
"""

import json
import pathlib

import transformers

HERE = pathlib.Path(__file__).parent
TOKENS = {"pad_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}

CHATML = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
PARTS = """{{- bos_token }}
{%- for message in messages %}
    {%- if message['content'] is string %}
        {{- message['role'].upper() + ': ' + message['content'] | trim }}
    {%- else %}
        {%- for item in message['content'] %}
            {%- if item['type'] == 'text' %}
                {{- '\\n' + item['text'] | trim + '\\n' }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- eos_token }}
{%- endfor %}
"""
JUDGE = """<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("Given a web search query, retrieve relevant passages that answer the query", true) }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>
<|im_start|>assistant
<think>

</think>

"""
TURNS = """{%- set ns = namespace(system='') -%}
{%- for m in messages if m.role == 'system' -%}{%- set ns.system = m.content -%}{%- endfor -%}
{% for m in messages %}
{% if loop.first and ns.system %}
[{{ ns.system.split(' ')[0] | lower }}]
{% endif %}
{% if m.role in ['user', 'query', 'document'] %}
{{ loop.index0 }} {{ m.role }}={{ {'content': m.content, 'n': [1, none]} | tojson }}
{% elif m.role != 'system' %}
{{ raise_exception('unknown role') }}
{% endif %}
{% endfor %}
{% generation %}end{% endgeneration %}
"""

TEXTS = [
    "", "a", "  leading, trailing  ", "The harbour is deep enough for the larger boats.", "line one\nline two\n", "it's \"quoted\" <b>&amp;</b>",
    "naïve café 船は夜に港へ 😀", "<|endoftext|> <|im_end|>", "the harbour " * 30, "船" * 40, "Nobody knew. " * 9,
]
PAIRS = [("What is the depth?", TEXTS[3]), ("", "x"), ("船は?", TEXTS[8]), ("the harbour " * 12, "short"), ("q " * 20, "Nobody knew. " * 20)]


def messages(texts, prompt, structured):
    content = lambda text: [{"type": "text", "text": text}] if structured else text
    roles = ["user"] if len(texts) == 1 else ["query", "document"]
    system = [{"role": "system", "content": content(prompt)}] if prompt else []
    return system + [{"role": role, "content": content(text)} for role, text in zip(roles, texts)]


def rows(tokenizer, case):
    kwargs = json.loads(case["parameters"].get("chat_template_kwargs", "{}"))
    structured = case["parameters"]["message_format"] == "structured"
    longest = int(case["parameters"].get("max_length", 1 << 30))
    render = lambda texts: tokenizer.apply_chat_template(
        messages(texts, case["prompt"], structured), chat_template=case["template"], return_dict=True, **kwargs)["input_ids"]
    for texts in zip(case["texts"], case["pairs"]) if case["pairs"] else zip(case["texts"]):
        ids = render(texts)
        if len(ids) > longest:
            first, second = (render([filler] * len(texts)) for filler in ("0", "1 2 3 4"))
            same = 0
            while same < min(len(first), len(second)) and first[-1 - same] == second[-1 - same]:
                same += 1
            suffix = first[len(first) - same:] if 0 < same < min(len(first), len(second)) else []
            ids = ids[: longest - len(suffix)] + suffix
        yield ids


def main():
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(HERE / "byte-bpe/tokenizer.json"), **TOKENS)
    cases = []
    for name, template, structured, kwargs in [
        ("chatml", CHATML, False, {}), ("chatml, an assistant's turn begun", CHATML, False, {"add_generation_prompt": True}),
        ("parts", PARTS, True, {}), ("flat", PARTS, False, {}), ("turns", TURNS, False, {}),
    ]:
        for prompt in ["", "Represent this text:"]:
            for longest in [None, 100]:
                cases.append((name, template, structured, kwargs, prompt, longest, False))
    for name, template in [("chatml of pairs", CHATML), ("judge", JUDGE), ("turns of pairs", TURNS)]:
        for prompt in ["", "Find the answer"]:
            # Then the first text of a pair may leave no room for the second.
            for longest in [None, 260 if name == "judge" else 100]:
                cases.append((name, template, False, {}, prompt, longest, True))
    out = []
    for name, template, structured, kwargs, prompt, longest, pairs in cases:
        parameters = {"message_format": "structured" if structured else "flat"}
        if kwargs:
            parameters["chat_template_kwargs"] = json.dumps(kwargs)
        if longest:
            parameters["max_length"] = str(longest)
        texts, seconds = ([list(side) for side in zip(*PAIRS)]) if pairs else (TEXTS, None)
        case = {"name": name, "template": template, "parameters": parameters, "prompt": prompt, "texts": texts, "pairs": seconds}
        out.append({**case, "input_ids": list(rows(tokenizer, case))})
    lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in out)
    text = f'{{"tokens":{json.dumps(TOKENS)},"cases":[\n{lines}\n]}}\n'
    (HERE / "chat.json").write_text(text, encoding="utf-8")
    print(len(out), "cases")


if __name__ == "__main__":
    main()
