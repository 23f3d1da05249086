//! One pass, many outputs: a model that runs once, and branches behind it that make dense, sparse and multi-vector embeddings of
//! its hidden states, as BGE-M3 has them.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use trireme_e2e::{Mode, ModelFolder, Sandbox, Setup, answer, golden, in_one_mode, numbers, texts_repository};
use trireme_testkit::assert_close;

in_one_mode!(one_request_gives_dense_sparse_and_multi_vector_embeddings, each_dialects_route_gives_its_own_output);

/// The weights of tokens are the first numbers of their hidden states.
const LEXICAL: &str = "backend: 'postprocess'
    input [
      { name: 'last_hidden_state' data_type: TYPE_FP32 dims: [ -1, -1, 8 ] },
      { name: 'attention_mask' data_type: TYPE_INT64 dims: [ -1, -1 ] },
      { name: 'input_ids' data_type: TYPE_INT64 dims: [ -1, -1 ] }
    ]
    output [
      { name: 'sparse_indices' data_type: TYPE_INT64 dims: [ -1, -1 ] },
      { name: 'sparse_values' data_type: TYPE_FP32 dims: [ -1, -1 ] }
    ]
    parameters { key: 'ops' value { string_value: 'slice:1, lexical' } }";

const TOKENS: &str = "backend: 'postprocess'
    input [
      { name: 'last_hidden_state' data_type: TYPE_FP32 dims: [ -1, -1, 8 ] },
      { name: 'attention_mask' data_type: TYPE_INT64 dims: [ -1, -1 ] }
    ]
    output [
      { name: 'token_embeddings' data_type: TYPE_FP32 dims: [ -1, -1, 8 ] },
      { name: 'token_mask' data_type: TYPE_INT64 dims: [ -1, -1 ] }
    ]
    parameters { key: 'ops' value { string_value: 'normalize, mask' } }";

/// A model `everything`, whose one run gives all three.
pub fn models() -> ModelFolder {
    let map = |kind: &str, pairs: &[(&str, &str)]| -> String {
        pairs.iter().map(|(key, value)| format!("{kind} {{ key: '{key}' value: '{value}' }} ")).collect()
    };
    let step = |model: &str, inputs: &[(&str, &str)], outputs: &[(&str, &str)]| {
        let (inputs, outputs) = (map("input_map", inputs), map("output_map", outputs));
        format!("step {{ model_name: '{model}' model_version: -1 {inputs} {outputs} }}")
    };
    let states = [("last_hidden_state", "states"), ("attention_mask", "mask")];
    let with_ids = [states[0], states[1], ("input_ids", "ids")];
    let same = |names: [&'static str; 2]| names.map(|name| (name, name));
    let steps = [
        step("words", &[("TEXT", "TEXT")], &[("input_ids", "ids"), ("attention_mask", "mask")]),
        step("encoder", &[("input_ids", "ids"), ("attention_mask", "mask")], &[("last_hidden_state", "states")]),
        step("mean", &states, &[("sentence_embedding", "sentence_embedding")]),
        step("lexical", &with_ids, &same(["sparse_indices", "sparse_values"])),
        step("tokens", &states, &same(["token_embeddings", "token_mask"])),
    ];
    let config = format!(
        "platform: 'ensemble'
         input [ {{ name: 'TEXT' data_type: TYPE_STRING dims: [ -1 ] }} ]
         output [
           {{ name: 'sentence_embedding' data_type: TYPE_FP32 dims: [ -1, 8 ] }},
           {{ name: 'sparse_indices' data_type: TYPE_INT64 dims: [ -1, -1 ] }},
           {{ name: 'sparse_values' data_type: TYPE_FP32 dims: [ -1, -1 ] }},
           {{ name: 'token_embeddings' data_type: TYPE_FP32 dims: [ -1, -1, 8 ] }},
           {{ name: 'token_mask' data_type: TYPE_INT64 dims: [ -1, -1 ] }}
         ]
         parameters {{ key: 'task' value {{ string_value: 'embed, sparse, multi_vector' }} }}
         ensemble_scheduling {{ {} }}",
        steps.join(" ")
    );
    let models = ModelFolder::copy_of(&texts_repository());
    models.model("lexical", LEXICAL).model("tokens", TOKENS).model("everything", &config)
}

fn start(mode: Mode, models: &ModelFolder) -> Sandbox {
    Setup::new(mode).repository(models.path()).start()
}

/// How often a model was executed.
fn executions(sandbox: &Sandbox, model: &str) -> u64 {
    let stats = sandbox.get(&format!("/v2/models/{model}/stats")).json();
    stats["model_stats"][0]["execution_count"].as_u64().expect("a number")
}

/// By token id the highest of the first numbers of its hidden states that are above 0, as FlagEmbedding computes it.
fn lexical(ids: &[u64], states: &[Vec<f32>]) -> BTreeMap<u64, f32> {
    let mut weights = BTreeMap::new();
    for (&id, state) in ids.iter().zip(states).filter(|(_, state)| state[0] > 0.0) {
        let heaviest = weights.entry(id).or_insert(0.0f32);
        *heaviest = heaviest.max(state[0]);
    }
    weights
}

/// The ids and the hidden states of a text's tokens, each by a model of its own.
fn tokens(sandbox: &Sandbox, text: &str) -> (Vec<u64>, Vec<Vec<f32>>) {
    let ids = answer(sandbox, "/tei/words/tokenize", json!({"inputs": text}));
    let ids = ids[0].as_array().expect("a list").iter().map(|token| token["id"].as_u64().expect("an id")).collect();
    let states = answer(sandbox, "/tei/token_vectors/embed_all", json!({"inputs": text}));
    (ids, states[0].as_array().expect("a list").iter().map(numbers).collect())
}

fn unit(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    vector.iter().map(|x| x / length).collect()
}

fn one_request_gives_dense_sparse_and_multi_vector_embeddings(mode: Mode) {
    let models = models();
    let sandbox = start(mode, &models);
    let golden = golden();
    let texts = [&golden[0].text, &golden[1].text];
    let parts: Vec<_> = texts.iter().map(|text| tokens(&sandbox, text)).collect();
    let before = executions(&sandbox, "encoder");
    let input = json!({"name": "TEXT", "datatype": "BYTES", "shape": [2], "data": texts});
    let response = sandbox.infer("everything", &json!({"inputs": [input]}));
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(executions(&sandbox, "encoder") - before, 1, "the encoder runs once for all outputs");

    let dense = response.numbers("sentence_embedding");
    assert_close(&dense, &[golden[0].embedding.clone(), golden[1].embedding.clone()].concat(), 1e-5);
    let (indices, values) = (response.output("sparse_indices"), response.numbers("sparse_values"));
    let width = indices["shape"][1].as_u64().expect("a width") as usize;
    let (vectors, mask) = (response.numbers("token_embeddings"), response.numbers("token_mask"));
    let length = mask.len() / texts.len();
    for (row, (ids, states)) in parts.iter().enumerate() {
        let expected = lexical(ids, states);
        assert!(!expected.is_empty(), "text {row} has tokens with weights");
        let range = row * width..(row + 1) * width;
        let found = numbers(&Value::Array(indices["data"].as_array().expect("a list")[range.clone()].to_vec()));
        let filled = found.iter().take_while(|&&id| id >= 0.0).count();
        assert_eq!(
            found[..filled].iter().map(|&id| id as u64).collect::<Vec<_>>(),
            expected.keys().copied().collect::<Vec<_>>()
        );
        assert_close(&values[range][..filled], &expected.values().copied().collect::<Vec<_>>(), 1e-5);

        for (token, state) in states.iter().enumerate() {
            assert_eq!(mask[row * length + token], 1.0);
            let place = (row * length + token) * 8;
            assert_close(&vectors[place..place + 8], &unit(state), 1e-5);
        }
        assert!(mask[row * length + states.len()..(row + 1) * length].iter().all(|&mask| mask == 0.0));
    }
}

fn each_dialects_route_gives_its_own_output(mode: Mode) {
    let models = models();
    let sandbox = start(mode, &models);
    let golden = golden();
    let text = &golden[0].text;
    let (ids, states) = tokens(&sandbox, text);
    let embedded = answer(&sandbox, "/v1/embeddings", json!({"model": "everything", "input": text}));
    assert_close(&numbers(&embedded["data"][0]["embedding"]), &golden[0].embedding, 1e-5);
    let sparse = answer(&sandbox, "/tei/everything/embed_sparse", json!({"inputs": text}));
    let entries = sparse[0].as_array().expect("a list").iter();
    let found: BTreeMap<u64, f32> = entries
        .map(|entry| (entry["index"].as_u64().expect("an index"), entry["value"].as_f64().expect("a value") as f32))
        .collect();
    let expected = lexical(&ids, &states);
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    assert_close(&found.into_values().collect::<Vec<_>>(), &expected.into_values().collect::<Vec<_>>(), 1e-5);
    let body = json!({"model": "everything", "input": [text]});
    let rows = answer(&sandbox, "/v1/multi-vector", &body)["data"][0]["embeddings"].clone();
    let rows: Vec<Vec<f32>> = rows.as_array().expect("a list").iter().map(numbers).collect();
    assert_eq!(rows.len(), states.len());
    rows.iter().zip(&states).for_each(|(row, state)| assert_close(row, &unit(state), 1e-5));
}
