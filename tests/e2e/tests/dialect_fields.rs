//! Each field that a route reads changes its answer: fields of texts, vectors, ranks and classes, on every route of every dialect. Unit tests of
//! `crates/dialects` say which fields of all APIs a route reads, and which it refuses.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use trireme_e2e::{Mode, ModelFolder, Sandbox, Setup, answer, ask, numbers, texts_repository};
use trireme_testkit::assert_close;

/// The models of texts, with prompts for queries and documents.
fn start() -> (Sandbox, ModelFolder) {
    let prompts = r#"parameters { key: "prompts" value { string_value: '{"query": "the ", "document": "storm "}' } }"#;
    let models = ModelFolder::copy_of(&texts_repository());
    let models = models.with_setting("words", prompts).with_setting("embedding", prompts);
    (Setup::new(Mode::AllInOne).repository(models.path()).start(), models)
}

/// A good body of a route: short texts, or some that are longer than the model's longest row.
fn good(path: &str, is_long: bool) -> Value {
    let text = if is_long { "the rower takes the oar ".repeat(9) + "storm" } else { "rower takes oar".to_owned() };
    let route = path.trim_start_matches('/').split_once('/').map_or("", |(_, route)| route);
    match (path, route) {
        ("/tei", _) | (_, "embed" | "embed_all" | "embed_sparse" | "invocations") if path.starts_with("/tei") => {
            json!({"inputs": text, "model": if route == "embed_all" { "token_vectors" } else { "embedding" }})
        }
        ("/tei/rerank", _) => json!({"query": "oar", "texts": [text, "storm"]}),
        ("/tei/predict", _) => json!({"inputs": text, "model": "classifier"}),
        ("/tei/similarity", _) => json!({"inputs": {"source_sentence": text, "sentences": ["b"]}}),
        ("/tei/tokenize", _) => json!({"inputs": text, "model": "embedding"}),
        ("/tei/decode", _) => json!({"ids": [101, 2, 3]}),
        ("/cohere/v1/embed" | "/cohere/v2/embed", _) => {
            json!({"model": "embedding", "texts": [text], "input_type": "search_document"})
        }
        ("/vllm/v2/embed", _) => json!({"model": "embedding", "texts": [text]}),
        ("/cohere/v1/tokenize", _) => json!({"model": "embedding", "text": text}),
        (_, "v1/detokenize" | "detokenize") => json!({"model": "embedding", "tokens": [1]}),
        ("/cohere/v1/rerank" | "/cohere/v2/rerank" | "/together/v1/rerank", _) => {
            let document = |text: &str| json!({"text": text, "title": "the storm"});
            json!({"model": "reranker", "query": "oar", "documents": [document(&text), document("storm")]})
        }
        ("/infinity/rerank" | "/vllm/rerank", _) | (_, "v1/rerank" | "v2/rerank") => {
            json!({"model": "reranker", "query": "the oar", "documents": [text, "storm"]})
        }
        ("/infinity/classify" | "/vllm/classify", _) => json!({"model": "classifier", "input": [text]}),
        ("/mistral/v1/classifications", _) => json!({"model": "classifier", "input": [text]}),
        (_, "score" | "v1/score") => json!({"model": "reranker", "text_1": "the oar", "text_2": text}),
        ("/nim/v1/ranking", _) => json!({"query": {"text": "q"}, "passages": [{"text": text}, {"text": "storm"}]}),
        ("/vllm/tokenize", _) => json!({"model": "embedding", "prompt": text}),
        ("/jina/v1/multi-vector", _) => json!({"model": "token_vectors", "input": [text]}),
        ("/ollama/api/embeddings", _) => json!({"model": "embedding", "prompt": text}),
        ("/ollama/api/show", _) => json!({"model": "embedding"}),
        _ => json!({"model": "embedding", "input": [text]}),
    }
}

/// Values of a field, of which one at least changes an answer; and fields that come with it.
fn values(name: &str) -> (Vec<Value>, Value) {
    let plain = |values: &[Value]| (values.to_vec(), json!({}));
    let either = [json!(true), json!(false)];
    match name {
        "model" => plain(&[json!("nobody")]),
        "dimensions" | "output_dimension" => plain(&[json!(4)]),
        "top_n" | "top_k" => plain(&[json!(1)]),
        "truncate" => plain(&[json!(true), json!(false), json!("NONE"), json!("END")]),
        "truncate_prompt_tokens" => plain(&[json!(-1), json!(3)]),
        "truncation_direction" => (vec![json!("Left")], json!({"truncate": true})),
        "truncation_side" => (vec![json!("left")], json!({"truncate_prompt_tokens": -1})),
        "max_tokens" | "max_tokens_per_doc" | "max_tokens_per_query" => plain(&[json!(4), json!(1)]),
        "options" => plain(&[json!({"num_ctx": 4})]),
        "encoding_format" => plain(&[json!("base64")]),
        "embed_dtype" => (vec![json!("float16")], json!({"encoding_format": "base64"})),
        "endianness" => (vec![json!("big")], json!({"encoding_format": "base64"})),
        "output_dtype" | "embedding_type" | "encoding_type" => plain(&[json!("ubinary")]),
        "embedding_types" => plain(&[json!(["ubinary"])]),
        "input_type" => plain(&[json!("query"), json!("search_query")]),
        "prompt_name" => plain(&[json!("query")]),
        "task" => plain(&[json!("retrieval.query"), json!("classify")]),
        "rank_fields" => plain(&[json!(["title"])]),
        "parameters" => plain(&[json!({"top_k": 1}), json!({"prompt_name": "query"})]),
        "modality" => plain(&[json!("image")]),
        "late_chunking" => (vec![json!(true)], json!({"input": ["the oar", "is on the ship"]})),
        "late_chunking_params" => plain(&[json!({"chunk_size": 1})]),
        "messages" => plain(&[json!([{"role": "user", "content": "a"}])]),
        "instruction" => plain(&[json!("Find bugs")]),
        // Other names of the texts come beside the first one.
        "inputs" | "queries" | "documents" | "items" | "data_1" | "data_2" | "name" => plain(&[json!("another")]),
        _ => plain(&either),
    }
}

/// The answer without what differs from one to the next.
fn lasting(mut answer: Value) -> Value {
    if let Some(members) = answer.as_object_mut() {
        for name in ["id", "created", "total_duration"] {
            members.remove(name);
        }
    }
    answer
}

#[test]
fn each_field_that_is_read_changes_the_answer() {
    // The id of the answer is another one each time; the others say how a conversation is written, for models with chat templates.
    const EXCUSED: [&str; 4] =
        ["request_id", "add_generation_prompt", "continue_final_message", "chat_template_kwargs"];
    let (sandbox, _models) = start();
    let document = sandbox.get("/openapi.json").json();
    let dialects =
        ["openai", "jina", "cohere", "infinity", "tei", "vllm", "nim", "ollama", "voyage", "mistral", "together"];
    let (mut asked, mut without) = (0, BTreeSet::new());
    for (path, item) in document["paths"].as_object().expect("paths") {
        let Some(fields) = item["post"]["x-fields"].as_object() else { continue };
        let dialect = path.split('/').nth(1).unwrap_or_default();
        // No model of this repository makes sparse vectors or has a chat template.
        let is_beyond = path.ends_with("/embed_sparse") || path.ends_with("/chat/classifications");
        if !dialects.contains(&dialect) || path.contains('{') || is_beyond {
            continue;
        }
        for (name, field) in fields {
            if field["becomes"]["effect"] != "read" || EXCUSED.contains(&name.as_str()) {
                continue;
            }
            let (values, also) = values(name);
            let changes = |is_long: bool| {
                let mut body: Map<String, Value> = good(path, is_long).as_object().expect("an object").clone();
                if body.contains_key(name) && !["model", "input_type"].contains(&name.as_str()) {
                    // The texts themselves.
                    return true;
                }
                body.extend(also.as_object().expect("an object").clone());
                let found = |body: &Map<String, Value>| {
                    let found = ask(&sandbox, path, &body.clone().into());
                    assert!(found.status < 500, "{path} {body:?}: {}", found.text());
                    (found.status, lasting(serde_json::from_slice(&found.body).unwrap_or_default()))
                };
                let plain = found(&body);
                values.iter().any(|value| {
                    body.insert(name.clone(), value.clone());
                    found(&body) != plain
                })
            };
            asked += 1;
            if !changes(false) && !changes(true) {
                without.insert(format!("{path} {name}"));
            }
        }
    }
    assert!(without.is_empty() && asked > 200, "{asked} fields, without effect: {without:#?}");
}

#[test]
fn vectors_come_as_each_client_asks_for_them() {
    let (sandbox, _models) = start();
    let body = |more: Value| {
        let mut body = json!({"model": "embedding", "input": ["the oar"]});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    let embed = |path: &str, more: Value| answer(&sandbox, path, body(more))["data"][0]["embedding"].clone();
    let plain = numbers(&embed("/v1/embeddings", json!({})));
    let query = numbers(&embed("/v1/embeddings", json!({"prompt_name": "query"})));
    let bytes: Vec<f32> = plain.iter().map(|number| (number * 127.0).round()).collect();
    for path in ["/v1/embeddings", "/openai/v1/embeddings", "/voyage/v1/embeddings", "/infinity/embeddings"] {
        let short = numbers(&embed(path, json!({"output_dimension": 4})));
        assert_eq!(short.len(), 4, "{path}");
        for name in ["output_dtype", "embedding_type", "embedding_types"] {
            let value = if name == "embedding_types" { json!(["int8"]) } else { json!("int8") };
            assert_close(&numbers(&embed(path, json!({name: value}))), &bytes, 1e-5);
        }
        // Voyage's client reads a byte for each number, not four.
        let packed = embed(path, json!({"output_dtype": "int8", "encoding_format": "base64", "truncation": true}));
        assert_eq!(packed.as_str().map(str::len), Some(12), "{path} {packed}");
        assert_close(&numbers(&embed(path, json!({"input_type": "query", "truncation": true}))), &query, 1e-5);
        let long = ask(&sandbox, path, &json!({"model": "embedding", "input": "oar ".repeat(99), "truncation": false}));
        assert!(long.status == 400 && long.text().contains("tokens"), "{path}: {}", long.text());
    }
    // NIM's clients that can send nothing else.
    let named = answer(&sandbox, "/v1/embeddings", json!({"model": "embedding-query", "input": "the oar"}));
    assert_close(&numbers(&named["data"][0]["embedding"]), &query, 1e-5);
    // Mistral's client reads no answer without an id.
    assert!(named["id"].is_string() && answer(&sandbox, "/v1/embeddings", body(json!({})))["id"].is_string());
}

#[test]
fn classes_are_not_taken_from_a_request_by_a_model_of_its_own() {
    let (sandbox, _models) = start();
    let body = json!({"inputs": "a", "parameters": {"candidate_labels": ["calm", "storm"], "multi_label": false}});
    let refused = ask(&sandbox, "/tei/classifier", &body);
    assert_eq!(refused.status, 424, "{}", refused.text());
    assert!(refused.text().contains("model 'classifier' does not do 'zero_shot'"), "{}", refused.text());
    for path in ["/tei/classifier/predict", "/predict"] {
        let refused = ask(&sandbox, path, &body);
        assert_eq!(refused.status, 422, "{path}: {}", refused.text());
        assert!(refused.text().contains("'parameters.candidate_labels' is"), "{path}: {}", refused.text());
    }
}
