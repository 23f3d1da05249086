//! The requests that LiteLLM's providers send, as their sources have them: openai, infinity, huggingface, hosted_vllm, jina_ai,
//! cohere, together_ai, nvidia_nim and triton; and the
//! fields of the answers that they read. LiteLLM itself is asked by `make clients-test`.

use serde_json::{Value, json};
use trireme_e2e::{
    Mode, ModelFolder, Request, Response, Sandbox, Setup, Shared, golden, in_one_mode, numbers, texts_repository,
};
use trireme_testkit::assert_close;

in_one_mode!(embeddings_of_every_provider, ranks_of_every_provider, triton_reads_any_output_of_vectors);

/// A request to rerank: the provider, the path, the body, and how the document of an index comes back.
type Ask<'a> = (&'a str, &'a str, Value, &'a dyn Fn(u64) -> Value);

/// The value that `litellm.rerank` sends by default: all documents come back.
const RETURN_DOCUMENTS: bool = true;

fn start(mode: Mode) -> Shared {
    Setup::new(mode).repository(&texts_repository()).shared()
}

#[track_caller]
fn answer(sandbox: &Sandbox, path: &str, body: &Value) -> Value {
    let request = Request::post(path, body.to_string()).header("Content-Type", "application/json");
    let response: Response = sandbox.send(&request.header("Authorization", "Bearer fake-api-key"));
    assert_eq!(response.status, 200, "{path} {body}: {}", response.text());
    response.json()
}

fn embeddings_of_every_provider(mode: Mode) {
    let sandbox = start(mode);
    let golden = golden();
    let texts = json!([golden[0].text, golden[1].text]);
    // The first 4 numbers of each vector, with length 1 again.
    let short = |n: usize| -> Vec<f32> {
        let length = golden[n].embedding[..4].iter().map(|x| x * x).sum::<f32>().sqrt();
        golden[n].embedding[..4].iter().map(|x| x / length).collect()
    };
    let check = |what: &str, rows: [&Value; 2], is_short: bool| {
        for (n, row) in rows.into_iter().enumerate() {
            let found = numbers(row);
            assert_eq!(found.len(), if is_short { 4 } else { 8 }, "{what}");
            assert_close(&found, &if is_short { short(n) } else { golden[n].embedding.clone() }, 1e-5);
        }
    };
    let openai_shaped = [
        ("openai", "/v1/embeddings", json!({"input": texts, "model": "embedding", "encoding_format": "float"})),
        ("openai", "/v1/embeddings", json!({"input": texts, "model": "embedding", "dimensions": 4, "user": "u"})),
        ("infinity", "/embeddings", json!({"input": texts, "model": "embedding"})),
        (
            "infinity",
            "/embeddings",
            json!({"input": texts, "model": "embedding", "output_dimension": 4, "modality": "text"}),
        ),
        ("hosted_vllm", "/v1/embeddings", json!({"model": "embedding", "input": texts})),
        ("jina_ai", "/v1/embeddings", json!({"model": "embedding", "input": texts})),
        ("jina_ai", "/jina/v1/embeddings", json!({"model": "embedding", "dimensions": 4, "input": texts})),
    ];
    for (provider, path, body) in openai_shaped {
        let is_short = body.get("dimensions").or(body.get("output_dimension")).is_some();
        let found = answer(&sandbox, path, &body);
        check(provider, [&found["data"][0]["embedding"], &found["data"][1]["embedding"]], is_short);
        assert_eq!((&found["model"], &found["object"]), (&json!("embedding"), &json!("list")), "{provider}");
        let tokens = (found["usage"]["prompt_tokens"].as_u64(), found["usage"]["total_tokens"].as_u64());
        assert!(tokens.0.is_some_and(|tokens| tokens > 8) && tokens.0 == tokens.1, "{provider}: {found}");
    }

    let body = json!({"model": "embedding", "texts": texts, "input_type": "search_document", "embedding_types": ["float"], "output_dimension": 4});
    let cohere = answer(&sandbox, "/v2/embed", &body);
    check("cohere", [&cohere["embeddings"]["float"][0], &cohere["embeddings"]["float"][1]], true);
    assert!(cohere["meta"]["billed_units"]["input_tokens"].as_u64().is_some_and(|tokens| tokens > 8), "{cohere}");
    // Without types the embeddings are an object, too: LiteLLM reads nothing else.
    let body = json!({"model": "embedding", "texts": texts, "input_type": "search_document"});
    assert!(answer(&sandbox, "/v2/embed", &body)["embeddings"].is_object());

    // Hugging Face's provider posts to its `api_base` as it is.
    for path in ["/tei/embedding", "/tei/embedding/embed"] {
        let found = answer(&sandbox, path, &json!({"inputs": texts, "options": {"wait_for_model": true}}));
        check("huggingface", [&found[0], &found[1]], false);
    }
    let pair = json!({"inputs": {"source_sentence": golden[0].text, "sentences": [golden[0].text, golden[1].text]}});
    let cosines = numbers(&answer(&sandbox, "/tei/embedding", &pair));
    let dot: f32 = golden[0].embedding.iter().zip(&golden[1].embedding).map(|(a, b)| a * b).sum();
    assert_close(&cosines, &[1.0, dot], 1e-5);
}

fn ranks_of_every_provider(mode: Mode) {
    let sandbox = start(mode);
    let golden = golden();
    // Hugging Face's provider does not let texts be cut, so these are short enough beside the query.
    let documents: Vec<&str> =
        golden.iter().map(|golden| golden.text.as_str()).filter(|text| (1..30).contains(&text.len())).collect();
    let query = "what cause covid";
    let body = json!({"model": "reranker", "query": query, "documents": documents});
    let expected: Vec<(u64, f32)> = answer(&sandbox, "/v2/rerank", &body)["results"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|result| {
            (result["index"].as_u64().expect("an index"), result["relevance_score"].as_f64().expect("a score") as f32)
        })
        .collect();
    let with = |more: Value| {
        let mut body = json!({"model": "reranker", "query": query, "documents": documents, "top_n": 2, "return_documents": RETURN_DOCUMENTS});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    // By provider: how `document` comes. LiteLLM fails on a text where it expects an object, and the other way round.
    let text = |index: u64| json!(documents[index as usize]);
    let object = |index: u64| json!({"text": documents[index as usize]});
    let requests: [Ask<'_>; 10] = [
        ("cohere", "/v1/rerank", with(json!({})), &object),
        ("cohere", "/v1/rerank", with(json!({"rank_fields": ["text"], "max_chunks_per_doc": 1})), &object),
        ("cohere", "/v2/rerank", with(json!({"max_tokens_per_doc": 100})), &object),
        ("infinity", "/rerank", with(json!({})), &text),
        ("infinity", "/infinity/rerank", with(json!({})), &text),
        ("hosted_vllm", "/vllm/rerank", with(json!({})), &object),
        ("hosted_vllm", "/rerank", with(json!({"truncate_prompt_tokens": 16, "truncation_side": "right"})), &object),
        ("hosted_vllm", "/vllm/v1/rerank", with(json!({"max_tokens_per_doc": 100})), &object),
        ("jina_ai", "/v1/rerank", with(json!({})), &object),
        ("together_ai", "/together/v1/rerank", with(json!({"rank_fields": ["text"]})), &object),
    ];
    for (provider, path, body, document) in requests {
        let found = answer(&sandbox, path, &body);
        let results = found["results"].as_array().unwrap_or_else(|| panic!("{provider}: {found}"));
        assert_eq!(results.len(), 2, "{provider}");
        for (result, (index, score)) in results.iter().zip(&expected) {
            assert_eq!(
                (&result["index"], &result["document"]),
                (&json!(index), &document(*index)),
                "{provider} {path}"
            );
            assert_close(&[result["relevance_score"].as_f64().expect("a score") as f32], &[*score], 1e-5);
        }
    }

    documents_of_together_are_ranked_by_their_fields(&sandbox, query);
    let passages: Vec<Value> = documents.iter().map(|text| json!({"text": text})).collect();
    let body = json!({"model": "reranker", "query": {"text": query}, "passages": passages, "top_k": 2});
    for path in ["/nim/v1/retrieval/reranker/reranking", "/nim/v1/retrieval/an/other/reranking"] {
        let found = answer(&sandbox, path, &body);
        let best = found["rankings"].as_array().expect("a list").iter().map(|row| row["index"].as_u64());
        assert!(best.eq(expected[..2].iter().map(|(index, _)| Some(*index))), "{path}: {found}");
    }
    let no_route = sandbox.send(&Request::post("/nim/v1/retrieval/reranker", body.to_string()));
    assert_eq!(no_route.status, 404, "{}", no_route.text());

    let body = json!({
        "raw_scores": false, "truncate": false, "truncation_direction": "Right", "query": query,
        "texts": documents, "return_text": RETURN_DOCUMENTS, "top_n": 2,
    });
    for path in ["/rerank", "/tei/reranker/rerank"] {
        let found = answer(&sandbox, path, &body);
        let found = found.as_array().expect("a list");
        assert_eq!(found.len(), 2, "huggingface");
        for (result, (index, score)) in found.iter().zip(&expected) {
            assert_eq!((&result["index"], &result["text"]), (&json!(index), &text(*index)));
            assert_close(&[result["score"].as_f64().expect("a score") as f32], &[*score], 1e-5);
        }
    }
}

/// Without `rank_fields` by all of them.
fn documents_of_together_are_ranked_by_their_fields(sandbox: &Sandbox, query: &str) {
    let ranked = |documents: Value, more: Value| {
        let mut body = json!({"model": "reranker", "query": query, "documents": documents});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        answer(sandbox, "/together/v1/rerank", &body)
    };
    let objects = json!([{"year": 3, "title": "the oar", "body": "a storm"}, {"title": "storm", "body": "rower"}]);
    let plain = ranked(json!(["a storm\nthe oar", "rower\nstorm"]), json!({}));
    assert_eq!(ranked(objects.clone(), json!({}))["results"], plain["results"]);
    assert_eq!(ranked(objects.clone(), json!({"rank_fields": ["body", "title"]}))["results"], plain["results"]);
    let titles = ranked(objects, json!({"rank_fields": ["title"], "return_documents": false}));
    let bare = ranked(json!(["the oar", "storm"]), json!({"return_documents": false}));
    assert_eq!(titles["results"], bare["results"]);
    assert_ne!(titles["results"][0]["relevance_score"], plain["results"][0]["relevance_score"]);
    assert!(plain["results"][0]["document"]["text"].is_string() && titles["results"][0].get("document").is_none());
    assert_eq!((&plain["object"], &plain["model"]), (&json!("rerank"), &json!("reranker")), "{plain}");
    let usage = &plain["usage"];
    let tokens = ["prompt_tokens", "completion_tokens", "total_tokens"].map(|name| usage[name].as_u64());
    assert!(tokens[0] > Some(8) && tokens[0] == tokens[2] && tokens[1] == Some(0), "{plain}");
}

fn triton_reads_any_output_of_vectors(mode: Mode) {
    // LiteLLM's input has this name; the model's vectors may have any.
    let models = ModelFolder::copy_of(&texts_repository());
    let path = models.path().join("embedding/config.pbtxt");
    let config = std::fs::read_to_string(path).expect("the model has a configuration");
    let config = config
        .replace(r#"name: "TEXT""#, r#"name: "input_text""#)
        .replace(r#"value: "TEXT""#, r#"value: "input_text""#);
    let models = models.file("embedding/config.pbtxt", config);
    let sandbox = Setup::new(mode).repository(models.path()).start();
    let golden = golden();
    let texts = [&golden[0].text, &golden[1].text];
    let input = json!({"name": "input_text", "shape": [texts.len()], "datatype": "BYTES", "data": texts});
    let found = answer(&sandbox, "/v2/models/embedding/infer", &json!({"inputs": [input]}));
    assert_eq!((&found["outputs"].as_array().map(Vec::len), &found["model_name"]), (&Some(1), &json!("embedding")));
    let output = &found["outputs"][0];
    assert_eq!(output["shape"], json!([2, 8]));
    assert_close(&numbers(&output["data"]), &[golden[0].embedding.clone(), golden[1].embedding.clone()].concat(), 1e-5);
}
