// The code of clients that the console shows: a curl line and a Python snippet for a model, one entry of DIALECTS for each dialect.
"use strict";

// The name of the header with the key, where the server wants one. Code reads the key itself from the environment: a key does not belong into
// what is copied and kept.
let keyHeader = null;
const VARIABLE = "TRIREME_API_KEY";

// By operation: whether a model offers it, as /v2/trireme/status says, and the words of each dialect for it.
const DIALECTS = {
  v2: {
    name: "v2",
    code: (model, url) => ({
      curl: post(`${url}/v2/models/${model.name}/infer`, { inputs: model.inputs.filter((input) => !input.optional).map(sample) }),
      python: [
        ...imports("tritonclient.http as http", "numpy as np"),
        `client = http.InferenceServerClient(${quote(url.replace(/^https?:\/\//, ""))})`,
        "inputs = []",
        ...model.inputs.filter((input) => !input.optional).flatMap((input) => {
          const { data, shape } = sample(input);
          const kind = input.datatype === "BYTES" ? "object" : `http.triton_to_np_dtype(${quote(input.datatype)})`;
          return [`inputs.append(http.InferInput(${quote(input.name)}, ${JSON.stringify(shape)}, ${quote(input.datatype)}))`,
            `inputs[-1].set_data_from_numpy(np.array(${python(data)}, dtype=${kind}).reshape(${JSON.stringify(shape)}))`];
        }),
        `answer = client.infer(${quote(model.name)}, inputs${headersArgument()})`,
        `print(answer.as_numpy(${quote(model.outputs[0]?.name ?? "")}))`,
      ],
    }),
  },
  openai: {
    name: "OpenAI",
    does: ["embed"],
    code: (model, url) => ({
      curl: post(`${url}/v1/embeddings`, { model: model.name, input: TEXTS }),
      python: [...imports("openai"), `client = openai.OpenAI(base_url=${quote(`${url}/v1`)}, api_key=${apiKey()})`,
        `answer = client.embeddings.create(model=${quote(model.name)}, input=${python(TEXTS)})`, "print(answer.data[0].embedding)"],
    }),
  },
  cohere: {
    name: "Cohere",
    does: ["embed", "rerank"],
    code: (model, url, task) => {
      const head = [...imports("cohere"), `client = cohere.ClientV2(base_url=${quote(url)}, api_key=${apiKey()})`];
      const embed = { model: model.name, texts: TEXTS, input_type: "search_document", embedding_types: ["float"] };
      const rerank = { model: model.name, query: QUERY, documents: TEXTS };
      const body = task === "rerank" ? rerank : embed;
      const call = `answer = client.${task}(${Object.entries(body).map(([name, value]) => `${name}=${python(value)}`).join(", ")})`;
      return { curl: post(`${url}/v2/${task}`, body), python: [...head, call, task === "rerank" ? "print(answer.results)" : "print(answer.embeddings.float_)"] };
    },
  },
  jina: {
    name: "Jina",
    does: ["embed", "rerank", "multi_vector"],
    code: (model, url, task) => {
      const [path, body] = {
        embed: ["/jina/v1/embeddings", { model: model.name, input: TEXTS, task: "retrieval.passage" }],
        rerank: ["/jina/v1/rerank", { model: model.name, query: QUERY, documents: TEXTS }],
        multi_vector: ["/jina/v1/multi-vector", { model: model.name, input: TEXTS, input_type: "document" }],
      }[task];
      return { curl: post(url + path, body), python: requests(url + path, body) };
    },
  },
  tei: {
    name: "Text Embeddings Inference",
    does: ["embed", "classify", "rerank", "sparse", "multi_vector", "token_classify"],
    code: (model, url, task) => {
      const place = `${url}/tei/${encodeURIComponent(model.name)}`;
      const path = { embed: "/embed", classify: "/predict", rerank: "/rerank", sparse: "/embed_sparse", multi_vector: "/embed_all", token_classify: "" }[task];
      const body = task === "rerank" ? { query: QUERY, texts: TEXTS } : { inputs: TEXTS[0] };
      const call = { embed: "feature_extraction", classify: "text_classification", token_classify: "token_classification" }[task];
      const token = keyHeader ? `, token=${apiKey()}` : "";
      const hub = [...(keyHeader ? ["import os"] : []), "from huggingface_hub import InferenceClient", "", `client = InferenceClient(model=${quote(place)}${token})`, `print(client.${call}(${quote(TEXTS[0])}))`];
      return { curl: post(place + path, body), python: call ? hub : requests(place + path, body) };
    },
  },
  infinity: {
    name: "Infinity",
    does: ["embed", "rerank", "classify"],
    code: (model, url, task) => {
      const [path, body] = {
        embed: ["/infinity/embeddings", { model: model.name, input: TEXTS }],
        rerank: ["/infinity/rerank", { model: model.name, query: QUERY, documents: TEXTS }],
        classify: ["/infinity/classify", { model: model.name, input: TEXTS }],
      }[task];
      return { curl: post(url + path, body), python: requests(url + path, body) };
    },
  },
  vllm: {
    name: "vLLM",
    does: ["embed", "rerank", "classify", "multi_vector"],
    code: (model, url, task) => {
      const [path, body] = {
        rerank: ["/vllm/score", { model: model.name, text_1: QUERY, text_2: TEXTS }],
        classify: ["/vllm/classify", { model: model.name, input: TEXTS }],
      }[task] ?? ["/vllm/pooling", { model: model.name, input: TEXTS }];
      return { curl: post(url + path, body), python: requests(url + path, body) };
    },
  },
};

const TEXTS = ["one text", "another"];
const QUERY = "a question";

// A word of the shell, whatever is in it.
const shell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
// JSON texts are Python's; true, false and null are not in what is written here.
const quote = (text) => JSON.stringify(text);
const python = (value) => JSON.stringify(value).replaceAll('","', '", "');
const bearer = () => (keyHeader === "Authorization" ? "Bearer " : "");
const post = (url, body) => {
  const key = keyHeader ? ` -H "${keyHeader}: ${bearer()}$${VARIABLE}"` : "";
  return `curl ${shell(url)}${key} -H 'Content-Type: application/json' -d ${shell(JSON.stringify(body))}`;
};
const imports = (...names) => [...(keyHeader ? ["os", ...names] : names).map((name) => `import ${name}`), ""];
const apiKey = () => (keyHeader ? `os.environ[${quote(VARIABLE)}]` : '"none"');
const headersArgument = () => (keyHeader ? `, headers={${quote(keyHeader)}: ${quote(bearer())} + ${apiKey()}}` : "");
const requests = (url, body) => [...imports("requests"), `answer = requests.post(${quote(url)}, json=${python(body)}${headersArgument()})`, "answer.raise_for_status()", "print(answer.json())"];

// An input with two rows, or with the size that it has.
function sample(input) {
  const shape = input.shape.map((size, i) => (size === -1 ? (i === 0 ? 2 : 1) : size));
  const count = shape.reduce((product, size) => product * size, 1);
  const data = Array.from({ length: Math.min(count, 1024) }, (_, i) => (input.datatype === "BYTES" ? TEXTS[i % 2] : input.datatype === "BOOL" ? 1 : i % 2));
  return { name: input.name, datatype: input.datatype, shape, data };
}

// The dialects in which clients may ask this model, with the code for each. `header` has the server's key, or is null.
function clients(model, url, header) {
  keyHeader = header;
  const tasks = model.tasks ?? [];
  return Object.entries(DIALECTS).flatMap(([id, dialect]) => {
    const task = dialect.does?.find((task) => tasks.includes(task));
    if (dialect.does && !task) return [];
    const { curl, python } = dialect.code(model, url, task);
    return [{ id, name: dialect.name, text: `${curl}\n\n${python.join("\n")}` }];
  });
}
