//! One base URL per server: behind a dialect's name is everything that the other server's clients ask for, errors are in its shape, and each
//! field of its bodies is treated as the tables say.

use serde_json::{Map, Value, json};
use trireme_e2e::{
    Mode, ModelFolder, Request, Sandbox, Setup, Shared, answer, ask, in_one_mode, numbers, texts_repository,
};
use trireme_testkit::assert_close;

in_one_mode!(
    each_server_has_one_base_url,
    what_a_server_does_not_have_is_refused_in_its_own_shape,
    each_field_becomes_what_the_tables_say,
    pairs_are_scored_by_what_the_model_does,
    documents_are_cut_and_queries_are_not,
    a_request_that_pools_names_its_task,
    empty_texts_are_embedded_or_refused,
    errors_name_the_field_and_not_the_place_in_the_text,
    a_long_text_is_refused_with_the_client_s_own_remedy,
    vectors_come_in_the_encodings_of_vllm,
    an_invocation_is_what_its_body_asks_for,
    a_chosen_dialect_answers_without_its_name,
    places_are_under_the_root_of_a_proxy,
    nim_tells_its_models_and_vllm_its_load,
    texts_are_chunked_behind_the_model,
    refusals_are_those_that_clients_look_for,
    clients_name_their_models_in_many_ways,
);

/// The names before the routes that take bodies of tables.
const DIALECTS: [&str; 11] =
    ["openai", "jina", "cohere", "infinity", "tei", "vllm", "nim", "ollama", "voyage", "mistral", "together"];

/// For tests that allow numbers to differ in their last bits, as they do between batches.
fn start(mode: Mode) -> Shared {
    Setup::new(mode).repository(&texts_repository()).shared()
}

fn start_with(mode: Mode, arguments: &[&str]) -> Sandbox {
    Setup::new(mode).repository(&texts_repository()).gateway_arguments(arguments).start()
}

fn each_server_has_one_base_url(mode: Mode) {
    let sandbox = start(mode);
    let models = |base: &str, list: &str, name: &str| {
        let found = sandbox.get(base).json();
        let listed = found[list].as_array().unwrap_or_else(|| panic!("{base}: {found}"));
        assert!(listed.iter().any(|model| model[name] == "embedding"), "{base}: {found}");
    };
    for base in [
        "/openai/v1/models",
        "/jina/v1/models",
        "/vllm/v1/models",
        "/nim/v1/models",
        "/ollama/v1/models",
        "/mistral/v1/models",
    ] {
        models(base, "data", "id");
    }
    models("/infinity/models", "data", "id");
    models("/cohere/v1/models", "models", "name");
    models("/ollama/api/tags", "models", "model");
    assert_eq!(sandbox.get("/cohere/v1/models/embedding").json()["endpoints"], json!(["embed"]));
    for path in ["/vllm/health", "/vllm/ping", "/tei/health", "/tei/ping", "/tei", "/tei/embedding", "/ollama"] {
        assert_eq!(sandbox.get(path).status, 200, "{path}");
    }
    // Infinity's client reads it as a number, without the prefix, too.
    for path in ["/infinity/health", "/health"] {
        assert!(sandbox.get(path).json()["unix"].as_f64().is_some_and(|unix| unix > 1.7e9), "{path}");
    }
    assert!(sandbox.get("/vllm/version").json()["version"].is_string());

    let plain = answer(&sandbox, "/openai/v1/embeddings", json!({"model": "embedding", "input": "the oar"}));
    let plain = numbers(&plain["data"][0]["embedding"]);
    for (path, body) in [
        ("/vllm/v1/embeddings", json!({"input": "the oar", "priority": 0})),
        ("/tei/v1/embeddings", json!({"input": "the oar"})),
        ("/tei/embedding/v1/embeddings", json!({"input": "the oar", "model": "embedding"})),
        ("/tei/embeddings", json!({"input": ["the oar"]})),
        ("/ollama/v1/embeddings", json!({"model": "embedding", "input": "the oar"})),
        ("/v1/embeddings", json!({"input": ["the oar"], "truncate_prompt_tokens": 20})),
        ("/v1/embeddings", json!({"model": "embedding", "input": [{"text": "the oar"}]})),
        ("/jina/v1/embeddings", json!({"model": "embedding", "input": ["the oar"], "encoding_type": "float"})),
    ] {
        assert_close(&numbers(&answer(&sandbox, path, body)["data"][0]["embedding"]), &plain, 1e-5);
    }
    let contents = json!([{"content": [{"type": "text", "text": "the oar"}]}]);
    for (path, body) in [
        ("/vllm/v2/embed", json!({"model": "embedding", "texts": ["the oar"]})),
        ("/cohere/v2/embed", json!({"model": "embedding", "inputs": contents, "input_type": "search_document"})),
    ] {
        assert_close(&numbers(&answer(&sandbox, path, body)["embeddings"]["float"][0]), &plain, 1e-5);
    }

    // Ids are the model's own, in TEI's and vLLM's words; Cohere's tokens have no special ones among them.
    let tokens = answer(&sandbox, "/cohere/v1/tokenize", json!({"model": "embedding", "text": "the oar"}));
    assert_eq!(tokens["token_strings"], json!(["the", "oar"]));
    let back =
        answer(&sandbox, "/cohere/v1/detokenize", json!({"model": "embedding", "tokens": tokens["tokens"].clone()}));
    assert_eq!(back["text"], "the oar");
    let all = answer(&sandbox, "/vllm/tokenize", json!({"model": "embedding", "prompt": "the oar"}))["tokens"].clone();
    for path in ["/vllm/v1/embeddings", "/tei/v1/embeddings"] {
        let found = answer(&sandbox, path, json!({"model": "embedding", "input": all}));
        assert_close(&numbers(&found["data"][0]["embedding"]), &plain, 1e-5);
    }

    let info = sandbox.get("/tei/embedding/info").json();
    for (name, is_right) in [
        ("max_input_length", info["max_input_length"].is_u64()),
        ("max_client_batch_size", info["max_client_batch_size"].is_u64()),
        ("pooling", info["model_type"]["embedding"]["pooling"].is_string()),
        ("tokenization_workers", info["tokenization_workers"].is_u64()),
    ] {
        assert!(is_right, "{name}: {info}");
    }
    let many = answer(
        &sandbox,
        "/jina/v1/embeddings",
        json!({"model": "token_vectors", "input": ["the oar"], "return_multivector": true}),
    );
    assert!(many["data"][0]["embeddings"][0].is_array(), "{many}");
}

fn what_a_server_does_not_have_is_refused_in_its_own_shape(mode: Mode) {
    let sandbox = start(mode);
    let message = |dialect: &str, body: &Value| {
        let found = match dialect {
            "openai" | "vllm" | "infinity" | "together" => &body["error"]["message"],
            "jina" => &body["detail"],
            "tei" | "ollama" => &body["error"],
            _ => &body["message"],
        };
        found.as_str().unwrap_or_else(|| panic!("{dialect}: {body}")).to_owned()
    };
    for dialect in ["openai", "jina", "cohere", "infinity", "tei", "vllm", "nim", "ollama", "mistral", "together"] {
        let unknown = ask(&sandbox, &format!("/{dialect}/no/such/path"), &json!({}));
        assert_eq!(unknown.status, 404, "{dialect}: {}", unknown.text());
        assert!(message(dialect, &unknown.json()).contains("there is no such route"), "{}", unknown.text());
    }
    let method = sandbox.get("/vllm/classify");
    assert_eq!(method.status, 405, "{}", method.text());
    assert!(message("vllm", &method.json()).contains("POST /classify"), "{}", method.text());
    // A field that one server knows decides for its errors, too.
    for (body, dialect) in [
        (json!({"model": "nobody", "input": "a"}), "openai"),
        (json!({"model": "nobody", "input": "a", "task": "text-matching"}), "jina"),
        (json!({"model": "nobody", "input": "a", "truncate": "END"}), "nim"),
        (json!({"model": "nobody", "input": "a", "add_special_tokens": false}), "vllm"),
    ] {
        let refused = ask(&sandbox, "/v1/embeddings", &body);
        assert_eq!(refused.status, 404, "{body}: {}", refused.text());
        assert!(message(dialect, &refused.json()).contains("model 'nobody' does not exist"), "{}", refused.text());
    }
    let both = json!({"model": "embedding", "input": "a", "task": "text-matching", "normalize": false});
    let both = ask(&sandbox, "/v1/embeddings", &both);
    assert!(both.status >= 400 && both.text().contains("choose one by the base URL"), "{}", both.text());
}

/// A good body of each route that takes one.
fn good(path: &str) -> Value {
    let route = path.trim_start_matches('/').split_once('/').map_or("", |(_, route)| route);
    match (path, route) {
        ("/tei", _) | (_, "embed" | "embed_all" | "embed_sparse" | "invocations") if path.starts_with("/tei") => {
            json!({"inputs": "a", "model": if route == "embed_all" { "token_vectors" } else { "embedding" }})
        }
        ("/tei/rerank", _) => json!({"query": "q", "texts": ["a"]}),
        ("/tei/predict", _) => json!({"inputs": "a"}),
        ("/tei/similarity", _) => json!({"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
        ("/tei/tokenize", _) => json!({"inputs": "a"}),
        ("/tei/decode", _) => json!({"ids": [1]}),
        ("/cohere/v1/embed" | "/cohere/v2/embed", _) => {
            json!({"model": "embedding", "texts": ["a"], "input_type": "search_query"})
        }
        ("/vllm/v2/embed", _) => json!({"model": "embedding", "texts": ["a"]}),
        ("/cohere/v1/tokenize", _) => json!({"model": "embedding", "text": "a"}),
        ("/cohere/v1/detokenize", _) => json!({"model": "embedding", "tokens": [1]}),
        ("/infinity/rerank" | "/vllm/rerank", _) | (_, "v1/rerank" | "v2/rerank") => {
            json!({"model": "reranker", "query": "q", "documents": ["a"]})
        }
        ("/infinity/classify" | "/vllm/classify", _) => json!({"model": "classifier", "input": ["a"]}),
        ("/mistral/v1/classifications", _) => json!({"model": "classifier", "input": "a"}),
        (_, "score" | "v1/score") => json!({"model": "reranker", "text_1": "a", "text_2": "b"}),
        ("/nim/v1/ranking", _) => json!({"query": {"text": "q"}, "passages": [{"text": "a"}]}),
        ("/vllm/tokenize", _) => json!({"model": "embedding", "prompt": "a"}),
        ("/vllm/detokenize", _) => json!({"model": "embedding", "tokens": [1]}),
        ("/jina/v1/multi-vector", _) => json!({"model": "token_vectors", "input": ["a"]}),
        ("/ollama/api/embeddings", _) => json!({"model": "embedding", "prompt": "a"}),
        ("/ollama/api/show", _) => json!({"model": "embedding"}),
        _ => json!({"model": "embedding", "input": "a"}),
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

fn each_field_becomes_what_the_tables_say(mode: Mode) {
    let sandbox = start_with(mode, &[]);
    let document = sandbox.get("/openapi.json").json();
    let (mut routes, mut asked) = (0, 0);
    for (path, item) in document["paths"].as_object().expect("paths") {
        let Some(fields) = item["post"]["x-fields"].as_object() else { continue };
        let dialect = path.split('/').nth(1).unwrap_or_default();
        // No model of this repository makes sparse vectors or has a chat template.
        let is_beyond = path.ends_with("/embed_sparse") || path.ends_with("/chat/classifications");
        if !DIALECTS.contains(&dialect) || path.contains('{') || is_beyond {
            continue;
        }
        routes += 1;
        let good = good(path);
        let plain = ask(&sandbox, path, &good);
        assert_eq!(plain.status, 200, "{path} {good}: {}", plain.text());
        let plain = lasting(plain.json());
        let with = |name: &str, value: &Value| {
            let mut body: Map<String, Value> = good.as_object().expect("an object").clone();
            body.insert(name.to_owned(), value.clone());
            (Value::from(body.clone()), ask(&sandbox, path, &body.into()))
        };
        for (name, field) in fields {
            let forms = field["forms"].as_array().expect("forms");
            let becomes = &field["becomes"];
            for form in forms {
                asked += 1;
                let (body, found) = with(name, form);
                let names_it = found.text().contains(name.as_str());
                let unless = becomes["unless"].as_array();
                match becomes["effect"].as_str() {
                    // The effect of a value depends on the model; some values are refused, and the error names them.
                    Some("read") => assert!(found.status < 500, "{path} {body}: {}", found.text()),
                    Some("refused") if unless.is_some_and(|values| !values.contains(form)) => {
                        assert!((400..500).contains(&found.status) && names_it, "{path} {body}: {}", found.text());
                    }
                    _ => {
                        assert_eq!(found.status, 200, "{path} {body}: {}", found.text());
                        assert_eq!(lasting(found.json()), plain, "{path} {body}");
                    }
                }
            }
            let (body, wrong) = with(name, &json!([null]));
            assert!((400..500).contains(&wrong.status), "{path} {body}: {}", wrong.text());
            assert!(wrong.text().contains(name.as_str()), "{path} {body}: {}", wrong.text());
            let is_needed = good.get(name).is_some();
            let (body, null) = with(name, &Value::Null);
            assert!(is_needed || null.status == 200, "{path} {body}: {}", null.text());
        }
        let (body, unknown) = with("no_such_field", &json!(1));
        let is_strict = path.starts_with("/cohere");
        assert_eq!(unknown.status, if is_strict { 422 } else { 200 }, "{path} {body}: {}", unknown.text());
    }
    assert!(routes > 30 && asked > 250, "{routes} routes, {asked} fields");
}

fn pairs_are_scored_by_what_the_model_does(mode: Mode) {
    let sandbox = start(mode);
    let (query, documents) = ("the oar", ["the oar of the rower", "a storm", "oar"]);
    let rerank = |model: &str| {
        let body = json!({"model": model, "query": query, "documents": documents});
        answer(&sandbox, "/vllm/rerank", body)["results"].as_array().expect("a list").clone()
    };
    let score_of = |results: &[Value], at: u64| {
        let found = results.iter().find(|one| one["index"] == at).expect("a result");
        found["relevance_score"].as_f64().expect("a score") as f32
    };
    let vectors = answer(
        &sandbox,
        "/v1/embeddings",
        json!({"model": "embedding", "input": [query, documents[0], documents[1], documents[2]]}),
    );
    let vector = |at: usize| numbers(&vectors["data"][at]["embedding"]);
    let dot = |one: &[f32], two: &[f32]| one.iter().zip(two).map(|(a, b)| a * b).sum::<f32>();
    let cosines = rerank("embedding");
    for at in 0..3u64 {
        assert_close(&[score_of(&cosines, at)], &[dot(&vector(0), &vector(at as usize + 1))], 1e-5);
    }
    let tokens = |text: &str| {
        let found =
            answer(&sandbox, "/vllm/pooling", json!({"model": "token_vectors", "input": text, "task": "token_embed"}));
        found["data"][0]["data"].as_array().expect("a list").iter().map(numbers).collect::<Vec<_>>()
    };
    let best = rerank("token_vectors");
    let query = tokens(query);
    for at in 0..3u64 {
        let document = tokens(documents[at as usize]);
        let largest = |token: &Vec<f32>| document.iter().map(|other| dot(token, other)).fold(f32::MIN, f32::max);
        assert_close(&[score_of(&best, at)], &[query.iter().map(largest).sum()], 1e-4);
    }
    let scores = answer(
        &sandbox,
        "/score",
        json!({"model": "token_vectors", "text_1": "the oar", "text_2": {"text": documents[0]}}),
    );
    assert_close(&[scores["data"][0]["score"].as_f64().expect("a score") as f32], &[score_of(&best, 0)], 1e-5);
}

fn documents_are_cut_and_queries_are_not(mode: Mode) {
    let sandbox = start(mode);
    let score = |path: &str, query: &str, document: &str, more: Value| {
        let mut body = json!({"model": "reranker", "query": query, "documents": [document]});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        answer(&sandbox, path, body)["results"][0]["relevance_score"].as_f64().expect("a score") as f32
    };
    let (query, document) = ("the rower takes the oar", "the oar of the rower");
    for path in ["/v2/rerank", "/vllm/rerank"] {
        let cut = score(path, query, document, json!({"max_tokens_per_doc": 2}));
        assert_close(&[cut], &[score(path, query, "the oar", json!({}))], 1e-6);
        let whole = score(path, query, document, json!({"max_tokens_per_doc": 5}));
        assert_close(&[whole], &[score(path, query, document, json!({}))], 1e-6);
    }
    let cut = score("/vllm/rerank", query, document, json!({"max_tokens_per_query": 2}));
    assert_close(&[cut], &[score("/vllm/rerank", "the rower", document, json!({}))], 1e-6);
}

fn a_request_that_pools_names_its_task(mode: Mode) {
    let sandbox = start(mode);
    for (model, task, status) in [
        ("embedding", "embed", 200),
        ("embedding", "token_embed", 400),
        ("embedding", "classify", 400),
        ("embedding", "token_classify", 400),
        ("embedding", "plugin", 400),
        ("embedding", "nonsense", 400),
        ("classifier", "classify", 200),
        ("token_vectors", "token_embed", 200),
    ] {
        let found = ask(&sandbox, "/vllm/pooling", &json!({"model": model, "input": "the oar", "task": task}));
        assert_eq!(found.status, status, "{model} {task}: {}", found.text());
        assert!(status == 200 || found.json()["error"]["param"] == "task", "{}", found.text());
    }
    let count = |more: Value| {
        let mut body = json!({"model": "classifier", "input": "the oar"});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        answer(&sandbox, "/vllm/classify", body)["usage"]["prompt_tokens"].as_u64().expect("a number")
    };
    assert!(count(json!({"add_special_tokens": false})) < count(json!({})));
}

fn empty_texts_are_embedded_or_refused(mode: Mode) {
    let sandbox = start(mode);
    for input in [json!(""), json!(["a", ""])] {
        answer(&sandbox, "/v1/embeddings", json!({"model": "embedding", "input": input}));
        let refused = ask(&sandbox, "/tei/embed", &json!({"inputs": input}));
        assert_eq!((refused.status, &refused.json()["error_type"]), (400, &json!("Empty")), "{}", refused.text());
    }
    drop(sandbox);
    let sandbox = start_with(mode, &["--openai-empty-text", "reject"]);
    for input in [json!(""), json!(["a", ""])] {
        let refused = ask(&sandbox, "/v1/embeddings", &json!({"model": "embedding", "input": input}));
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("input")), "{}", refused.text());
    }
}

fn errors_name_the_field_and_not_the_place_in_the_text(mode: Mode) {
    let sandbox = start(mode);
    for (path, body, field) in [
        ("/v1/embeddings", json!({"model": "embedding", "input": "a", "encoding_format": "hex"}), "encoding_format"),
        ("/v1/embeddings", json!({"model": "embedding", "input": "a", "dimensions": -1}), "dimensions"),
        ("/v1/embeddings", json!({"model": "embedding", "input": ["a", 1]}), "input"),
        ("/v1/embeddings", json!({"model": "embedding"}), "input"),
        ("/vllm/pooling", json!({"model": "embedding", "input": "a", "truncation_side": "up"}), "truncation_side"),
        ("/vllm/score", json!({"text_1": "a"}), "text_2"),
    ] {
        let refused = ask(&sandbox, path, &body);
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(field)), "{}", refused.text());
        assert!(!refused.text().contains("column"), "{}", refused.text());
    }
    for (path, body) in [
        ("/cohere/v2/embed", json!({"model": "embedding", "texts": ["a"], "input_type": "x"})),
        ("/tei/embed", json!({"inputs": "a", "truncation_direction": "up"})),
        ("/jina/v1/embeddings", json!({"model": "embedding", "input": [{"text": 5}, "a", 3]})),
        ("/nim/v1/ranking", json!({"query": {"text": 1}, "passages": []})),
        ("/ollama/api/embed", json!({"model": "embedding", "input": ["a", 1]})),
        ("/infinity/rerank", json!({"query": "a", "documents": ["a", 1]})),
    ] {
        let refused = ask(&sandbox, path, &body);
        assert!((400..500).contains(&refused.status), "{path}: {}", refused.text());
        assert!(!refused.text().contains(" column "), "{path}: {}", refused.text());
    }
}

fn a_long_text_is_refused_with_the_client_s_own_remedy(mode: Mode) {
    let sandbox = start(mode);
    let long = "long ".repeat(99);
    for (path, body, remedy) in [
        ("/nim/v1/embeddings", json!({"model": "embedding", "input": long}), r#"set 'truncate' to \"END\""#),
        (
            "/cohere/v2/embed",
            json!({"model": "embedding", "texts": [long], "input_type": "search_query", "truncate": "NONE"}),
            r#"set 'truncate' to \"END\""#,
        ),
        ("/tei/embed", json!({"inputs": long, "truncate": false}), "set 'truncate' to true"),
        ("/vllm/v1/embeddings", json!({"model": "embedding", "input": long}), "set 'truncate_prompt_tokens' to -1"),
        (
            "/vllm/v1/embeddings",
            json!({"model": "embedding", "input": "a", "truncate_prompt_tokens": 9999}),
            "Please request a smaller truncation size.",
        ),
    ] {
        let refused = ask(&sandbox, path, &body);
        assert!((400..500).contains(&refused.status), "{path}: {}", refused.text());
        assert!(refused.text().contains(remedy), "{path}: {}", refused.text());
    }
    answer(&sandbox, "/nim/v1/embeddings", json!({"model": "embedding", "input": long, "truncate": "END"}));
    for tokens in [-1, 5] {
        answer(
            &sandbox,
            "/vllm/v1/embeddings",
            json!({"model": "embedding", "input": long, "truncate_prompt_tokens": tokens}),
        );
    }
}

fn vectors_come_in_the_encodings_of_vllm(mode: Mode) {
    let sandbox = start(mode);
    let asked = |more: Value| {
        let mut body = json!({"model": "embedding", "input": ["the oar", "a storm"]});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    let plain = answer(&sandbox, "/vllm/v1/embeddings", asked(json!({})));
    let plain: Vec<Vec<f32>> = [0, 1].map(|at| numbers(&plain["data"][at]["embedding"])).into();
    let format =
        |dtype: &str, order: &str| json!({"encoding_format": "bytes", "embed_dtype": dtype, "endianness": order});
    for (dtype, order, size) in
        [("float32", "native", 4), ("float32", "big", 4), ("float16", "little", 2), ("fp8_e4m3", "native", 1)]
    {
        let found = ask(&sandbox, "/vllm/v1/embeddings", &asked(format(dtype, order)));
        assert_eq!((found.status, found.header("content-type")), (200, Some("application/octet-stream")));
        let metadata: Value = serde_json::from_str(found.header("metadata").expect("metadata")).expect("JSON");
        let (second, width) = (&metadata["data"][1], plain[0].len());
        assert_eq!(second["shape"], json!([width]), "{metadata}");
        assert_eq!((&second["embed_dtype"], &second["endianness"]), (&json!(dtype), &json!(order)));
        let place = |name: &str| second[name].as_u64().expect("a place") as usize;
        assert_eq!(
            (place("start"), place("end"), found.body.len()),
            (width * size, 2 * width * size, 2 * width * size)
        );
        if size == 4 {
            let number = |bytes: &[u8]| {
                let bytes: [u8; 4] = bytes.try_into().expect("four bytes");
                if order == "big" { f32::from_be_bytes(bytes) } else { f32::from_le_bytes(bytes) }
            };
            let read: Vec<f32> = found.body[place("start")..].chunks_exact(4).map(number).collect();
            assert_close(&read, &plain[1], 1e-5);
        }
    }
    let only = ask(&sandbox, "/vllm/pooling", &asked(json!({"encoding_format": "bytes_only"})));
    assert_eq!((only.status, only.header("metadata"), only.body.len()), (200, None, 2 * plain[0].len() * 4));
}

fn an_invocation_is_what_its_body_asks_for(mode: Mode) {
    let sandbox = start(mode);
    for (body, member) in [
        (json!({"model": "embedding", "input": "a"}), "/data/0/embedding"),
        (json!({"model": "classifier", "input": "a"}), "/data/0/probs"),
        (json!({"model": "token_vectors", "input": "a"}), "/data/0/data"),
        (json!({"model": "reranker", "query": "a", "documents": ["a"]}), "/results/0/relevance_score"),
        (json!({"model": "reranker", "queries": "a", "documents": ["a"]}), "/data/0/score"),
    ] {
        let found = answer(&sandbox, "/vllm/invocations", body);
        assert!(found.pointer(member).is_some(), "{found}");
    }
}

fn a_chosen_dialect_answers_without_its_name(mode: Mode) {
    let sandbox = start_with(mode, &["--dialect", "tei"]);
    assert_eq!(sandbox.get("/health").status, 200);
    assert_eq!(sandbox.get("/info?model=embedding").status, sandbox.get("/tei/info?model=embedding").status);
    let refused = ask(&sandbox, "/v1/embeddings", &json!({"model": "no such", "input": "a"}));
    assert_eq!((refused.status, &refused.json()["error_type"]), (404, &json!("NotFound")), "{}", refused.text());
    // Fields that only another server knows decide still, and so does a name.
    let jinas =
        ask(&sandbox, "/v1/embeddings", &json!({"model": "no such", "input": ["a"], "task": "retrieval.query"}));
    assert_eq!((jinas.status, jinas.json()["error_type"].is_null()), (404, true), "{}", jinas.text());
    assert!(
        ask(&sandbox, "/openai/v1/embeddings", &json!({"model": "no such", "input": "a"})).json()["error"].is_object()
    );
    let document = sandbox.get("/openapi.json").json();
    assert!(document["paths"]["/health"]["get"].is_object() && document["paths"]["/ping"]["get"].is_object());
}

fn places_are_under_the_root_of_a_proxy(mode: Mode) {
    let sandbox = start_with(mode, &["--root-path", "/ai/"]);
    // Whether or not the proxy takes the root off.
    for path in ["/ai/v1/models", "/v1/models", "/ai/tei/embedding/health", "/ai/v2/models/embedding", "/ai/ui"] {
        assert_eq!(sandbox.get(path).status, 200, "{path}");
    }
    for path in ["/ai", "/ai/", "/"] {
        let response = sandbox.get(path);
        assert_eq!((response.status, response.header("location")), (307, Some("/ai/ui")), "{path}");
    }
    assert_eq!(sandbox.get("/aim/v1/models").status, 404);
    assert_eq!(sandbox.get("/ai/openapi.json").json()["servers"], json!([{"url": "/ai"}]));
    // Pages name the files that they load relative to their own path.
    for path in ["/ui", "/docs"] {
        let page = sandbox.get(path).text();
        assert!(!page.contains("href=\"/") && !page.contains("src=\"/"), "{page}");
    }
}

fn nim_tells_its_models_and_vllm_its_load(mode: Mode) {
    let sandbox = start_with(mode, &[]);
    let metadata = sandbox.get("/nim/v1/metadata").json();
    let models = metadata["modelInfo"].as_array().unwrap_or_else(|| panic!("{metadata}"));
    assert!(models.iter().any(|model| model["shortName"] == "embedding"), "{metadata}");
    assert!(metadata["version"].is_string() && metadata["licenseInfo"]["name"].is_string(), "{metadata}");
    assert_eq!(sandbox.get("/v1/version").json()["release"], metadata["version"]);
    assert_eq!(sandbox.get("/vllm/load").json(), json!({"server_load": 0}));
    // The end of the name says what `input_type` does.
    let embed = |body: Value| answer(&sandbox, "/nim/v1/embeddings", body);
    let plain = embed(json!({"model": "embedding", "input": ["the oar"], "input_type": "passage"}));
    let named = embed(json!({"model": "embedding-passage", "input": ["the oar"]}));
    assert_eq!(numbers(&named["data"][0]["embedding"]), numbers(&plain["data"][0]["embedding"]));
    assert_eq!(named["model"], "embedding-passage");
    let bytes = embed(json!({"model": "embedding", "input": ["the oar"], "embedding_type": "int8"}));
    let bytes = numbers(&bytes["data"][0]["embedding"]);
    let close = |(byte, number): (&f32, &f32)| (byte - number * 127.0).abs() <= 0.5;
    assert!(bytes.iter().zip(&numbers(&plain["data"][0]["embedding"])).all(close), "{bytes:?}");
}

fn texts_are_chunked_behind_the_model(mode: Mode) {
    let sandbox = start(mode);
    let body = |more: Value| {
        let mut body = json!({"model": "token_vectors", "input": ["the oar is on the ship"]});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    let tokens = answer(&sandbox, "/vllm/pooling", body(json!({"use_activation": false})))["data"][0]["data"].clone();
    let tokens: Vec<Vec<f32>> = tokens.as_array().expect("a list").iter().map(numbers).collect();
    let asked = json!({"late_chunking_params": {"chunk_size": 3}, "use_activation": false});
    let found = answer(&sandbox, "/vllm/v1/embeddings", body(asked));
    let row = &found["data"][0];
    let chunks: Vec<Vec<f32>> = row["embedding"].as_array().expect("a list").iter().map(numbers).collect();
    assert_eq!(chunks.len(), tokens.len().div_ceil(3));
    let first: Vec<f32> =
        (0..chunks[0].len()).map(|at| tokens[..3].iter().map(|token| token[at]).sum::<f32>() / 3.0).collect();
    assert_close(&chunks[0], &first, 1e-5);
    // The first token is none of the text.
    let first = &row["late_chunking"]["chunks"][0];
    assert_eq!((&first["token_range"], &first["char_range"]), (&json!([0, 3]), &json!([0, 7])), "{row}");
    for refused in [json!({"truncate_prompt_tokens": 4}), json!({"late_chunking_params": {"chunk_size": 0}})] {
        let mut more = json!({"late_chunking_params": {"chunk_size": 3}});
        more.as_object_mut().expect("an object").extend(refused.as_object().expect("an object").clone());
        assert_eq!(ask(&sandbox, "/vllm/v1/embeddings", &body(more)).status, 400, "{refused}");
    }
}

fn refusals_are_those_that_clients_look_for(mode: Mode) {
    let sandbox = start(mode);
    let long = "a ".repeat(40);
    let refused = |path: &str, body: Value| {
        let response = ask(&sandbox, path, &body);
        (response.status, response.json())
    };
    let (status, body) = refused("/tei/embedding/embed", json!({"inputs": long, "truncate": false}));
    assert_eq!((status, &body["error_type"]), (413, &json!("Validation")), "{body}");
    let (status, body) = refused("/tei/reranker/embed", json!({"inputs": "a"}));
    assert_eq!((status, &body["error_type"]), (424, &json!("Backend")), "{body}");
    let (status, body) = refused("/tei/embedding/v1/embeddings", json!({"input": [""]}));
    assert_eq!((status, &body["type"], &body["code"]), (400, &json!("Empty"), &json!(400)), "{body}");
    let (status, body) = refused("/vllm/v1/embeddings", json!({"model": "nobody", "input": "a"}));
    assert_eq!((status, &body["error"]["param"]), (404, &json!("model")), "{body}");
    // Scores are no embeddings.
    assert_eq!(refused("/vllm/v1/embeddings", json!({"model": "classifier", "input": "a"})).0, 400);
    let (status, body) = refused("/ollama/api/embed", json!({"model": "nobody", "input": "a"}));
    assert!(status == 404 && body["error"].as_str().is_some_and(|error| error.contains("not found")), "{body}");
    assert_eq!(refused("/vllm/v1/embeddings", json!({"model": "embedding", "input": [[]]})).0, 400);
    let (status, body) = refused("/openai/v1/embeddings", json!({"model": "embedding", "input": "a", "dimensions": 9}));
    assert_eq!((status, &body["error"]["param"]), (400, &json!("dimensions")), "{body}");
    let (status, body) = refused("/infinity/rerank", json!({"query": "q", "documents": ["a"], "top_n": 0}));
    assert_eq!((status, &body["detail"][0]["loc"]), (422, &json!(["body", "top_n"])), "{body}");
    assert_eq!(sandbox.get("/infinity/embeddings").json()["detail"], "Method Not Allowed");
    assert_eq!((sandbox.get("/tei/embedding/health").status, sandbox.get("/tei/nobody/health").status), (200, 404));
    let (status, body) = refused("/infinity/nothing", json!({}));
    assert_eq!((status, &body["detail"]), (404, &json!("Not Found")), "{body}");
}

fn clients_name_their_models_in_many_ways(mode: Mode) {
    let sandbox = start_with(mode, &["--api-key", "a-key"]);
    let post = |path: &str, body: &Value| {
        let request = Request::post(path, body.to_string()).header("Content-Type", "application/json");
        let response = sandbox.send(&request.header("api-key", "a-key"));
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        response.json()
    };
    let get = |path: &str| sandbox.send(&Request::get(path).header("api-key", "a-key")).json();
    let vector = |answer: &Value| numbers(&answer["data"][0]["embedding"]);
    let plain = vector(&post("/v1/embeddings", &json!({"model": "embedding", "input": "the oar"})));
    for name in ["embedding", "trireme%2Ftiny-embedding"] {
        // Azure's clients have the model in the path, and their key in a header of its own.
        let path = format!("/openai/deployments/{name}/embeddings?api-version=2024-10-21");
        assert_close(&vector(&post(&path, &json!({"input": ["the oar"]}))), &plain, 1e-5);
        let path = format!("/nim/{name}/v1/embeddings");
        assert_close(&vector(&post(&path, &json!({"input": ["the oar"], "input_type": "query"}))), &plain, 1e-5);
        let models = get(&format!("/nim/{name}/v1/models"));
        assert_eq!(models["data"].as_array().map(Vec::len), Some(1), "{models}");
    }
    // Its clients list the models beside the deployments; without the name the path is Infinity's. Mistral's clients read no model without a type.
    let listed = get("/openai/models?api-version=2024-10-21");
    let first = &listed["data"][0];
    assert_eq!((&first["owned_by"], &first["type"]), (&json!("trireme"), &json!("base")), "{listed}");
    assert!(first["capabilities"].is_object(), "{listed}");
    assert_eq!(get("/models")["data"][0]["owned_by"], "infinity");
    let without = sandbox.send(&Request::post("/openai/deployments/embedding/embeddings", "{}".to_owned()));
    assert_eq!((without.status, without.json()["error"]["code"].as_str()), (401, Some("invalid_api_key")));
    let rerankers = get("/cohere/v1/models?page_size=9&endpoint=rerank");
    let names: Vec<_> = rerankers["models"].as_array().expect("a list").iter().map(|model| &model["name"]).collect();
    assert_eq!(names, ["reranker"]);
    // Some clients take the first one.
    assert_eq!(get("/v1/models")["data"][0]["id"], "trireme/tiny-embedding");
    // A client of Jina finds its own error where the request may as well be another's.
    let body = json!({"model": "nobody", "input": ["a"]}).to_string();
    let refused = sandbox.send(&Request::post("/v1/embeddings", body).header("api-key", "a-key"));
    let error = refused.json();
    assert!(error["detail"].is_string() && error["error"]["message"].is_string(), "{error}");
}

#[test]
fn the_only_model_of_tei_s_clients_has_any_name() {
    let without = ["classifier", "classes", "reranker", "relevance", "token_vectors"];
    let models = ModelFolder::copy_of(&texts_repository());
    for model in without {
        std::fs::remove_dir_all(models.path().join(model)).expect("the model is there");
    }
    let sandbox = Setup::new(Mode::AllInOne).repository(models.path()).start();
    let plain = answer(&sandbox, "/v1/embeddings", json!({"model": "embedding", "input": "the oar"}));
    let plain = numbers(&plain["data"][0]["embedding"]);
    let body = json!({"model": "text-embeddings-inference", "input": "the oar"});
    assert_close(&numbers(&answer(&sandbox, "/tei/v1/embeddings", body.clone())["data"][0]["embedding"]), &plain, 1e-5);
    let named = json!({"model": "text-embeddings-inference", "inputs": "the oar"});
    assert_close(&numbers(&answer(&sandbox, "/embed", named)[0]), &plain, 1e-5);
    // On OpenAI's routes and in a path, the name of a model is taken as it is.
    assert_eq!(ask(&sandbox, "/openai/v1/embeddings", &body).status, 404);
    assert_eq!(ask(&sandbox, "/tei/nobody/embed", &json!({"inputs": "the oar"})).status, 404);
    // A task that the model does not do.
    for (path, body) in
        [("/tei/rerank", json!({"query": "q", "texts": ["a"]})), ("/tei/predict", json!({"inputs": "a", "model": "x"}))]
    {
        let refused = ask(&sandbox, path, &body);
        assert_eq!((refused.status, &refused.json()["error_type"]), (424, &json!("Backend")), "{}", refused.text());
    }
}
