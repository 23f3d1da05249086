//! Requests of other servers' clients, sent to Trireme: OpenAI, Cohere, Jina, TEI, Infinity, vLLM, NVIDIA NIM and Ollama, each in its own
//! words.

use std::fs;

use serde_json::{Value, json};
use trireme_e2e::{
    Mode, ModelFolder, Request, Setup, Shared, answer, ask, golden, in_one_mode, numbers, texts_repository, workspace,
};
use trireme_testkit::assert_close;

in_one_mode!(
    every_dialect_gives_the_vectors_of_the_model,
    documents_are_ranked_in_every_dialect,
    documents_whose_scores_are_all_one_are_ranked_by_their_logits,
    texts_are_classified_in_every_dialect,
    conversations_are_classified_as_mistral_s_clients_ask,
    tokens_have_vectors_of_their_own,
    texts_become_tokens_and_tokens_texts,
    any_number_of_texts_is_taken_and_its_tokens_are_counted,
    refusals_have_the_shape_and_status_of_their_dialect,
    keys_are_asked_for_in_every_dialect,
    every_path_of_the_document_answers,
    ollama_s_clients_find_a_model_and_its_vectors,
    a_slash_too_many_is_forgiven,
    texts_and_vectors_have_the_names_of_other_servers_over_v2,
);

fn start(mode: Mode) -> Shared {
    Setup::new(mode).repository(&texts_repository()).shared()
}

/// The numbers of an answer, in order, and the answer without them.
fn apart(value: &Value) -> (Vec<f32>, Value) {
    let mut numbers = Vec::new();
    let rest = match value {
        Value::Number(number) => {
            numbers.push(number.as_f64().expect("a number") as f32);
            Value::Null
        }
        Value::Array(list) => {
            let parts: Vec<_> = list.iter().map(apart).collect();
            parts.into_iter().map(|(more, rest)| (numbers.extend(more), rest).1).collect()
        }
        Value::Object(map) => {
            let parts: Vec<_> = map.iter().map(|(name, value)| (name.clone(), apart(value))).collect();
            parts.into_iter().map(|(name, (more, rest))| (name, (numbers.extend(more), rest).1)).collect()
        }
        other => other.clone(),
    };
    (numbers, rest)
}

/// Asserts that two answers are the same except for the last bits of their numbers, which differ between batches.
#[track_caller]
pub fn assert_alike(one: &Value, two: &Value) {
    let ((one, this), (two, that)) = (apart(one), apart(two));
    assert_eq!(this, that);
    assert_close(&one, &two, 1e-5);
}

/// The FP32 numbers of a base64 text.
fn from_base64(text: &str) -> Vec<f32> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.bytes().filter(|&byte| byte != b'=');
    let bits: Vec<u8> = digits
        .flat_map(|byte| {
            let value = DIGITS.iter().position(|&digit| digit == byte).expect("a base64 digit") as u8;
            (0..6).rev().map(move |bit| value >> bit & 1)
        })
        .collect();
    let bytes: Vec<u8> = bits.chunks_exact(8).map(|byte| byte.iter().fold(0, |all, bit| all << 1 | bit)).collect();
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four bytes"))).collect()
}

fn every_dialect_gives_the_vectors_of_the_model(mode: Mode) {
    let sandbox = start(mode);
    let golden = golden();
    let [one, two] = [&golden[0], &golden[1]];
    let both = json!([one.text, two.text]);
    let check = |found: [&Value; 2]| {
        assert_close(&numbers(found[0]), &one.embedding, 1e-5);
        assert_close(&numbers(found[1]), &two.embedding, 1e-5);
    };

    let body = json!({"model": "trireme/tiny-embedding", "input": both});
    let openai = answer(&sandbox, "/v1/embeddings", body.clone());
    check([&openai["data"][0]["embedding"], &openai["data"][1]["embedding"]]);
    assert_eq!((&openai["object"], &openai["model"]), (&json!("list"), &json!("trireme/tiny-embedding")));
    let tokens = openai["usage"]["prompt_tokens"].as_u64().expect("a number of tokens");
    assert!(tokens > 8, "{openai}");
    let packed = answer(
        &sandbox,
        "/openai/v1/embeddings",
        json!({"model": "embedding", "input": one.text, "encoding_format": "base64"}),
    );
    assert_close(&from_base64(packed["data"][0]["embedding"].as_str().expect("base64")), &one.embedding, 1e-5);
    // "hello world" in OpenAI's own tokens, as LangChain sends texts.
    let ids = answer(&sandbox, "/v1/embeddings", json!({"model": "embedding", "input": [[15339, 1917]]}));
    let plain = answer(&sandbox, "/v1/embeddings", json!({"model": "embedding", "input": "hello world"}));
    assert_alike(&ids["data"][0]["embedding"], &plain["data"][0]["embedding"]);

    let body = json!({"model": "embedding", "texts": both, "input_type": "search_document", "embedding_types": ["float", "int8", "ubinary", "float"]});
    let cohere = answer(&sandbox, "/v2/embed", body);
    check([&cohere["embeddings"]["float"][0], &cohere["embeddings"]["float"][1]]);
    let bytes: Vec<f32> = one.embedding.iter().map(|number| (number * 127.0).round()).collect();
    assert_close(&numbers(&cohere["embeddings"]["int8"][0]), &bytes, 1e-5);
    assert_eq!(cohere["embeddings"]["ubinary"][1].as_array().map(Vec::len), Some(1));
    assert_eq!((&cohere["texts"], &cohere["meta"]["tokens"]["input_tokens"]), (&both, &json!(tokens)));
    let first = answer(&sandbox, "/v1/embed", json!({"texts": both}));
    check([&first["embeddings"][0], &first["embeddings"][1]]);

    let jina = answer(
        &sandbox,
        "/v1/embeddings",
        json!({"model": "embedding", "input": [{"text": one.text}, two.text], "task": "retrieval.passage"}),
    );
    check([&jina["data"][0]["embedding"], &jina["data"][1]["embedding"]]);

    let response = ask(&sandbox, "/embed", &json!({"inputs": both, "truncation_direction": "Right", "unknown": 1}));
    let tei = response.json();
    check([&tei[0], &tei[1]]);
    assert_eq!(response.header("x-compute-tokens"), Some(&*tokens.to_string()));
    for path in ["/tei/embed", "/tei/embedding/embed", "/tei/trireme%2Ftiny-embedding/embed", "/tei/embedding"] {
        let one_text = answer(&sandbox, path, json!({"inputs": one.text}));
        assert_close(&numbers(&one_text[0]), &one.embedding, 1e-5);
    }
    let cosines = answer(
        &sandbox,
        "/similarity",
        json!({"inputs": {"source_sentence": one.text, "sentences": [one.text, two.text]}}),
    );
    let dot: f32 = one.embedding.iter().zip(&two.embedding).map(|(a, b)| a * b).sum();
    assert_close(&numbers(&cosines), &[1.0, dot], 1e-5);

    let infinity = answer(&sandbox, "/embeddings", json!({"model": "default/not-specified", "input": both}));
    check([&infinity["data"][0]["embedding"], &infinity["data"][1]["embedding"]]);
    for path in ["/v1/embeddings", "/nim/v1/embeddings"] {
        let body = json!({"model": "embedding", "input": both, "input_type": "passage", "truncate": "END", "modality": ["text", "text"], "x": 1});
        let nim = answer(&sandbox, path, body);
        check([&nim["data"][0]["embedding"], &nim["data"][1]["embedding"]]);
    }
    for name in ["embedding", "embedding:latest"] {
        let ollama =
            answer(&sandbox, "/api/embed", json!({"model": name, "input": both, "keep_alive": "5m", "options": {}}));
        check([&ollama["embeddings"][0], &ollama["embeddings"][1]]);
        assert_eq!((&ollama["model"], &ollama["prompt_eval_count"]), (&json!(name), &json!(tokens)));
    }
    let older = answer(&sandbox, "/ollama/api/embeddings", json!({"model": "embedding", "prompt": one.text}));
    assert_close(&numbers(&older["embedding"]), &one.embedding, 1e-5);
    let vllm = answer(&sandbox, "/pooling", json!({"input": both}));
    check([&vllm["data"][0]["data"], &vllm["data"][1]["data"]]);
    let scores =
        answer(&sandbox, "/score", json!({"model": "embedding", "text_1": one.text, "text_2": [one.text, two.text]}));
    assert_close(&[0, 1].map(|n| scores["data"][n]["score"].as_f64().expect("a score") as f32), &[1.0, dot], 1e-5);

    let models = sandbox.get("/v1/models").json();
    let names: Vec<_> = models["data"].as_array().expect("a list").iter().map(|model| &model["id"]).collect();
    assert_eq!(names, ["trireme/tiny-embedding", "embedding", "reranker", "classifier", "token_vectors"]);
    assert_eq!(sandbox.get("/v1/models/trireme/tiny-embedding").json()["object"], "model");
    assert_eq!(sandbox.get("/v1/models/nobody").status, 404);
    assert_eq!(sandbox.get("/models").json()["data"][0]["capabilities"], json!(["embed"]));
    assert_eq!(sandbox.get("/tei/classifier/info").json()["model_type"]["classifier"]["id2label"]["2"], "storm");
    assert_eq!(sandbox.get("/health").status, 200);
}

/// In f32 the sigmoid of everything above 17 is 1.
fn documents_whose_scores_are_all_one_are_ranked_by_their_logits(mode: Mode) {
    let (from, folder) =
        (workspace().join("examples/folders/reranker"), tempfile::tempdir().expect("a temporary folder"));
    fs::create_dir(folder.path().join("onnx")).expect("a folder can be made");
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "onnx/model.onnx"] {
        let mut content = fs::read(from.join(name)).expect("the example has the file");
        // The share of the query's words is a logit of -4 to 4; it becomes one of -4 to 76.
        let scale = content.windows(4).position(|bytes| bytes == 8f32.to_le_bytes());
        if let Some(scale) = scale.filter(|_| name.ends_with(".onnx")) {
            content[scale..scale + 4].copy_from_slice(&80f32.to_le_bytes());
        }
        fs::write(folder.path().join(name), content).expect("a file can be written");
    }
    let named = format!("sure={}", folder.path().display());
    let mut setup = Setup::new(mode).repository(&texts_repository()).worker_arguments(&["--model", &named]);
    if setup.is_services() {
        setup = setup.gateway_arguments(&["--model", &named]);
    }
    let sandbox = setup.start();
    let documents = ["crew", "drum", "drum beat", "beat"];
    let body = json!({"model": "sure", "query": "drum beat", "documents": documents, "top_n": 2});
    let results = answer(&sandbox, "/v2/rerank", body)["results"].clone();
    let shown: Vec<_> =
        [0, 1].map(|at| (results[at]["index"].as_u64(), results[at]["relevance_score"].as_f64())).into();
    assert_eq!(shown, [(Some(2), Some(1.0)), (Some(1), Some(1.0))], "{results}");
    let raw = json!({"query": "drum beat", "texts": documents, "raw_scores": true});
    let raw = answer(&sandbox, "/tei/sure/rerank", raw);
    assert_eq!((raw[0]["index"].as_u64(), raw[0]["score"].as_f64()), (Some(2), Some(76.0)), "{raw}");
}

fn documents_are_ranked_in_every_dialect(mode: Mode) {
    let sandbox = start(mode);
    let golden = golden();
    let documents: Vec<&str> =
        golden.iter().map(|golden| golden.text.as_str()).filter(|text| !text.is_empty()).collect();
    let query = "what cause covid";
    // Each pair by itself, over v2.
    let pair = |document: &str| {
        let input = |name, text| json!({"name": name, "datatype": "BYTES", "shape": [1], "data": [text]});
        let body = json!({"inputs": [input("TEXT", query), input("TEXT_PAIR", document)]});
        sandbox.infer("reranker", &body).numbers("scores")[0]
    };
    let alone: Vec<f32> = documents.iter().map(|document| pair(document)).collect();
    let mut order: Vec<usize> = (0..documents.len()).collect();
    order.sort_by(|&one, &two| alone[two].total_cmp(&alone[one]));
    let check = |results: &Value, most: usize, score: &str| {
        let results = results.as_array().unwrap_or_else(|| panic!("no list: {results}"));
        let found: Vec<_> = results.iter().map(|result| result["index"].as_u64().expect("an index") as usize).collect();
        assert_eq!(found, order[..most]);
        for result in results {
            let index = result["index"].as_u64().expect("an index") as usize;
            assert_close(&[result[score].as_f64().expect("a score") as f32], &[alone[index]], 1e-5);
        }
    };

    let all = documents.len();
    let body = json!({"model": "reranker", "query": query, "documents": documents, "top_n": 2});
    let cohere = answer(&sandbox, "/v2/rerank", body.clone());
    check(&cohere["results"], 2, "relevance_score");
    let objects: Vec<Value> = documents.iter().map(|text| json!({"title": text, "year": 2026})).collect();
    let first = json!({"query": query, "documents": objects, "rank_fields": ["title"], "return_documents": true});
    let cohere = answer(&sandbox, "/v1/rerank", first);
    check(&cohere["results"], all, "relevance_score");
    assert_eq!(cohere["results"][0]["document"]["text"], documents[order[0]]);
    let jina = answer(&sandbox, "/v1/rerank", body);
    check(&jina["results"], 2, "relevance_score");
    assert_eq!(jina["results"][0]["document"]["text"], documents[order[0]]);
    assert!(jina["usage"]["total_tokens"].as_u64().is_some_and(|tokens| tokens > 20), "{jina}");
    let tei = answer(&sandbox, "/rerank", json!({"query": query, "texts": documents, "return_text": true}));
    check(&tei, all, "score");
    assert_eq!(tei[0]["text"], documents[order[0]]);
    check(&answer(&sandbox, "/", json!({"query": query, "texts": documents})), all, "score");
    let passages: Vec<Value> = documents.iter().map(|text| json!({"text": text})).collect();
    let ranking = json!({"model": "reranker", "query": {"text": query}, "passages": passages, "truncate": "END"});
    let nim = answer(&sandbox, "/v1/ranking", ranking);
    let logits: Vec<Value> = nim["rankings"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| {
            let logit = one["logit"].as_f64().expect("a number");
            json!({"index": one["index"], "score": 1.0 / (1.0 + (-logit).exp())})
        })
        .collect();
    check(&Value::from(logits), all, "score");
    let infinity = answer(&sandbox, "/rerank", json!({"query": query, "documents": documents, "top_n": 3}));
    check(&infinity["results"], 3, "relevance_score");
    // Its clients say that a pair is cut.
    let body = json!({"query": query, "documents": documents, "truncate_prompt_tokens": -1});
    let vllm = answer(&sandbox, "/vllm/rerank", body);
    check(&vllm["results"], all, "relevance_score");
    let body = json!({"model": "reranker", "queries": query, "documents": documents, "truncate_prompt_tokens": -1});
    let scores = answer(&sandbox, "/score", body);
    let scores =
        scores["data"].as_array().expect("a list").iter().map(|one| one["score"].as_f64().expect("a score") as f32);
    assert_close(&scores.collect::<Vec<_>>(), &alone, 1e-5);

    // Over v2 a query of one row goes with all documents.
    let tensor =
        |name: &str, texts: &[&str]| json!({"name": name, "datatype": "BYTES", "shape": [texts.len()], "data": texts});
    let two = |queries: &[&str]| json!({"inputs": [tensor("TEXT", queries), tensor("TEXT_PAIR", &documents)]});
    let v2 = answer(&sandbox, "/v2/models/reranker/infer", two(&[query]));
    assert_eq!(v2["outputs"][0]["shape"], json!([documents.len(), 1]));
    assert_close(&numbers(&v2["outputs"][0]["data"]), &alone, 1e-5);
    let refused = ask(&sandbox, "/v2/models/reranker/infer", &two(&[query, query]));
    assert_eq!(refused.status, 400, "{}", refused.text());
}

fn texts_are_classified_in_every_dialect(mode: Mode) {
    let sandbox = start(mode);
    let text = "the rower takes the oar";
    let tei = answer(&sandbox, "/predict", json!({"inputs": text}));
    let list = tei.as_array().expect("a list");
    let score = |n: usize| list[n]["score"].as_f64().expect("a score");
    assert!((0..3).map(score).sum::<f64>() > 0.999 && score(0) > score(1) && score(1) > score(2), "{tei}");
    let many = answer(&sandbox, "/tei/classifier", json!({"inputs": [[text], [text]], "parameters": {"top_k": 1}}));
    assert_alike(&many, &json!([[tei[0]], [tei[0]]]));
    let pair = answer(&sandbox, "/predict", json!({"inputs": [text, "a pair"]}));
    assert_ne!(pair, tei);
    assert_eq!(pair.as_array().map(Vec::len), Some(3));
    let infinity = answer(&sandbox, "/classify", json!({"input": [text, text]}));
    assert_alike(&infinity["data"][1], &tei);
    let vllm = answer(&sandbox, "/vllm/classify", json!({"input": text}));
    assert_eq!((&vllm["data"][0]["label"], &vllm["data"][0]["num_classes"]), (&tei[0]["label"], &json!(3)));
    assert_eq!(vllm["data"][0]["probs"].as_array().map(Vec::len), Some(3));
    let mistral = answer(&sandbox, "/v1/classifications", json!({"model": "classifier", "input": [text]}));
    let scores = &mistral["results"][0]["classification"]["scores"];
    assert_eq!(scores.as_object().map(serde_json::Map::len), Some(3), "{mistral}");
    for row in list {
        let (label, expected) = (row["label"].as_str().expect("a label"), row["score"].as_f64().expect("a score"));
        assert_close(&[scores[label].as_f64().expect("a score") as f32], &[expected as f32], 1e-5);
    }
}

fn conversations_are_classified_as_mistral_s_clients_ask(mode: Mode) {
    let template = "{% for m in messages %}{{ m.content }} {% endfor %}";
    let models = ModelFolder::copy_of(&texts_repository()).file("words/1/chat_template.jinja", template);
    let sandbox = Setup::new(mode).repository(models.path()).start();
    let text = "the oar a storm ";
    let plain = json!({"model": "classifier", "input": text, "add_special_tokens": false});
    let plain = numbers(&answer(&sandbox, "/vllm/classify", plain)["data"][0]["probs"]);
    let chat =
        json!({"messages": [{"role": "user", "content": "the oar"}, {"role": "assistant", "content": "a storm"}]});
    let another = json!({"messages": [{"role": "user", "content": "a"}]});
    for (path, input, at) in
        [("/v1/chat/classifications", chat.clone(), 0), ("/mistral/v1/chat/classifications", json!([another, chat]), 1)]
    {
        let found = answer(&sandbox, path, json!({"model": "classifier", "input": input}));
        let scores = &found["results"][at]["classification"]["scores"];
        let scores = ["calm", "breeze", "storm"].map(|label| scores[label].as_f64().expect("a score") as f32);
        assert_close(&scores, &plain, 1e-5);
    }
    let none = ask(&sandbox, "/v1/chat/classifications", &json!({"model": "classifier", "input": []}));
    assert_eq!((none.status, &none.json()["detail"][0]["loc"]), (422, &json!(["body", "input"])), "{}", none.text());
}

fn tokens_have_vectors_of_their_own(mode: Mode) {
    let sandbox = start(mode);
    let texts = json!(["the rower takes the oar", "a"]);
    let tei = answer(&sandbox, "/embed_all", json!({"inputs": texts}));
    let lengths: Vec<_> =
        tei.as_array().expect("a list").iter().map(|row| row.as_array().expect("a list").len()).collect();
    assert!(lengths[0] > lengths[1] && lengths[1] == 3, "{lengths:?}");
    assert_eq!(numbers(&tei[1][2]).len(), 8);
    let jina = answer(
        &sandbox,
        "/v1/multi-vector",
        json!({"model": "token_vectors", "input": texts, "input_type": "document"}),
    );
    assert_alike(&jina["data"][0]["embeddings"], &tei[0]);
    let vllm = answer(&sandbox, "/pooling", json!({"model": "token_vectors", "input": texts}));
    assert_alike(&vllm["data"][1]["data"], &tei[1]);
    // In several messages of different lengths.
    let many: Vec<String> = (0..70).map(|n| "oar ".repeat(n % 5 + 1)).collect();
    let all = answer(&sandbox, "/embed_all", json!({"inputs": many}));
    for (text, found) in many.iter().zip(all.as_array().expect("a list")).take(6) {
        assert_alike(&answer(&sandbox, "/embed_all", json!({"inputs": text}))[0], found);
    }
}

fn texts_become_tokens_and_tokens_texts(mode: Mode) {
    let sandbox = start(mode);
    let text = "the rower takes the oar";
    // The tokenizer may be asked for itself, or by any model that has it for a step.
    let all = answer(&sandbox, "/tei/embedding/tokenize", json!({"inputs": [text, "oar"]}));
    assert_eq!(answer(&sandbox, "/tokenize", json!({"inputs": [text, "oar"]})), all);
    assert_eq!(answer(&sandbox, "/tei/words/tokenize", json!({"inputs": [text, "oar"]})), all);
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let (tokens, ids) = (list(&all[0]), |row: &Value| list(row).iter().map(|token| token["id"].clone()).collect());
    let (row, one): (Value, Value) = (ids(&all[0]), ids(&all[1]));
    let [first, second] = [&tokens[0], &tokens[1]];
    assert_eq!(*first, json!({"id": first["id"], "text": "[CLS]", "special": true, "start": null, "stop": null}));
    assert_eq!(*second, json!({"id": second["id"], "text": "the", "special": false, "start": 0, "stop": 3}));
    for token in tokens.iter().filter(|token| token["special"] == json!(false)) {
        let place = |name: &str| token[name].as_u64().expect("a number") as usize;
        assert_eq!(token["text"], text[place("start")..place("stop")]);
    }
    let plain = answer(&sandbox, "/tokenize", json!({"inputs": text, "add_special_tokens": false}));
    assert_eq!(list(&plain[0]), tokens[1..tokens.len() - 1]);

    assert_eq!(answer(&sandbox, "/decode", json!({"ids": [row, one]})), json!([text, "oar"]));
    let special = answer(&sandbox, "/tei/embedding/decode", json!({"ids": one, "skip_special_tokens": false}));
    assert_eq!(special, json!(["[CLS] oar [SEP]"]));

    let vllm = answer(&sandbox, "/tokenize", json!({"model": "embedding", "prompt": "oar", "return_token_strs": true}));
    assert_eq!(vllm, json!({"count": 3, "max_model_len": 16, "tokens": one, "token_strs": ["[CLS]", "oar", "[SEP]"]}));
    let text = answer(&sandbox, "/detokenize", json!({"model": "embedding", "tokens": one}));
    assert_eq!(text, json!({"prompt": "[CLS] oar [SEP]"}));

    // TEI's clients may send the model's ids to be embedded, too.
    assert_alike(
        &answer(&sandbox, "/embed", json!({"inputs": [one]})),
        &answer(&sandbox, "/embed", json!({"inputs": "oar"})),
    );
    let unknown = ask(&sandbox, "/tei/embedding/embed", &json!({"inputs": [[999_999]]}));
    assert_eq!(unknown.status, 422, "{}", unknown.text());
    assert!(unknown.text().contains("token id 999999, which is out of vocabulary"), "{}", unknown.text());
    let nobody = ask(&sandbox, "/tei/nobody/tokenize", &json!({"inputs": text["prompt"]}));
    assert_eq!(nobody.status, 404, "{}", nobody.text());
}

fn every_path_of_the_document_answers(mode: Mode) {
    let sandbox = start(mode);
    let document = sandbox.send(&Request::get("/openapi.json")).json();
    let nowhere = sandbox.send(&Request::get("/nowhere"));
    let paths = document["paths"].as_object().expect("paths");
    assert!(paths.len() > 80, "{} paths", paths.len());
    for (path, item) in paths {
        let filled = path.replace("{version}", "1").replace("{model}", "embedding").replace("{rest}", "embedding");
        let filled = filled.replace("{repository}", "r").replace("{region}", "r");
        for verb in item.as_object().expect("an item").keys() {
            let request = match verb.as_str() {
                "get" => Request::get(&filled),
                "delete" => Request::new("DELETE", &filled),
                _ => Request::post(&filled, "{}"),
            };
            let found = sandbox.send(&request);
            assert_ne!(found.status, 405, "{verb} {path}");
            assert!(found.status != 404 || found.text() != nowhere.text(), "{verb} {path}");
        }
    }
}

fn any_number_of_texts_is_taken_and_its_tokens_are_counted(mode: Mode) {
    let sandbox = start(mode);
    let golden = golden();
    let wanted = |n: usize| &golden[n % 2];
    let texts: Vec<&str> = (0..101).map(|n| wanted(n).text.as_str()).collect();
    let response = ask(&sandbox, "/v1/embeddings", &json!({"model": "embedding", "input": texts}));
    let answer = response.json();
    for n in 0..101 {
        assert_close(&numbers(&answer["data"][n]["embedding"]), &wanted(n).embedding, 1e-5);
    }
    let tokens = |texts: &[&str]| -> u64 {
        let one = |text: &&str| {
            let body = json!({"model": "embedding", "input": text});
            ask(&sandbox, "/v1/embeddings", &body).json()["usage"]["prompt_tokens"].as_u64().expect("a number")
        };
        texts.iter().map(one).sum()
    };
    let each = tokens(&texts[..2]);
    assert_eq!(answer["usage"]["total_tokens"], json!(50 * each + tokens(&texts[..1])));
    assert_eq!(response.header("trireme-truncated-texts"), None);

    // Longer than the tokenizer's 16 tokens.
    let long =
        "every worker of a stage takes its work from one queue and gives the answer to the next stage of the route";
    let body = json!({"model": "embedding", "input": [long, "oar", long]});
    let response = ask(&sandbox, "/v1/embeddings", &body);
    assert_eq!(response.header("trireme-truncated-texts"), Some("2"));
    assert_eq!(response.header("trireme-tokens"), Some("35"));
    let input = json!({"name": "TEXT", "datatype": "BYTES", "shape": [2], "data": [long, "oar"]});
    let over_v2 = sandbox.infer("embedding", &json!({"inputs": [input]}));
    assert_eq!(over_v2.header("trireme-truncated-texts"), Some("1"));
    assert_eq!(over_v2.header("trireme-tokens"), Some("19"));
}

fn refusals_have_the_shape_and_status_of_their_dialect(mode: Mode) {
    let sandbox = start(mode);
    let refused = |path: &str, body: &str| {
        let response = sandbox.send(&Request::post(path, body));
        (response.status, response.json())
    };
    let (status, body) = refused("/v1/embeddings", r#"{"model": "nobody", "input": "a"}"#);
    assert_eq!((status, &body["error"]["code"]), (404, &json!("model_not_found")));
    assert!(
        body["error"]["message"].as_str().is_some_and(|text| text.contains("models that do 'embed': 'embedding'")),
        "{body}"
    );
    let (status, body) = refused("/v1/embeddings", r#"{"model": "reranker", "input": "a"}"#);
    assert_eq!((status, &body["error"]["type"]), (400, &json!("invalid_request_error")));
    let (status, body) = refused("/v1/embeddings", r#"{"model": "embedding", "input": "a", "dimensions": "x"}"#);
    assert_eq!((status, &body["error"]["param"]), (400, &json!("dimensions")));
    assert_eq!(refused("/v1/embeddings", r#"{"model": "embedding", "input": []}"#).0, 400);
    let (status, body) = refused("/v1/embeddings", r#"{"model": "embedding", "input": "a", "dimensions": 9}"#);
    assert_eq!(status, 400, "{body}");
    let (status, body) = refused(
        "/v2/embed",
        r#"{"model": "embedding", "texts": ["a"], "input_type": "search_query", "embedding_type": "int8"}"#,
    );
    assert_eq!(status, 422);
    assert!(body["message"].as_str().is_some_and(|text| text.contains("'embedding_type' is unknown")), "{body}");
    assert_eq!(refused("/v2/rerank", r#"{"model": "x", "query": "q", "documents": ["a"]}"#).0, 404);
    assert_eq!(refused("/v2/rerank", r#"{"model": "reranker", "query": "q", "documents": []}"#).0, 400);
    let (status, body) = refused("/v1/rerank", r#"{"model": "reranker", "documents": ["a"]}"#);
    assert_eq!((status, body["detail"].is_string()), (422, true), "{body}");
    let (status, body) = refused("/embed", r#"{"inputs": []}"#);
    assert_eq!((status, &body["error_type"]), (400, &json!("Empty")));
    let (status, body) = refused("/embed", r#"{"inputs": [1, 999999]}"#);
    assert_eq!((status, &body["error_type"]), (422, &json!("Validation")));
    assert_eq!(refused("/", r#"{"inputs": "a"}"#).0, 422, "several models could be meant");
    let (status, body) = refused("/embeddings", "{");
    assert_eq!((status, body["detail"].is_array()), (422, true), "{body}");
    assert_eq!(refused("/score", r#"{"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}"#).0, 400);
    assert_eq!(refused("/embed_sparse", r#"{"inputs": "a"}"#).0, 404, "no model does that");
    assert_eq!(sandbox.get("/").status, 307, "the root leads to the console");
    assert_eq!(sandbox.get("/embed").status, 405);
}

fn keys_are_asked_for_in_every_dialect(mode: Mode) {
    let arguments = ["--api-key", "secret", "--http-max-input-size", "2000"];
    let sandbox = Setup::new(mode).repository(&texts_repository()).gateway_arguments(&arguments).start();
    let request = Request::post("/v1/embeddings", r#"{"model": "embedding", "input": "a"}"#);
    let response = sandbox.send(&request);
    assert_eq!((response.status, &response.json()["error"]["code"]), (401, &json!("invalid_api_key")));
    assert_eq!(sandbox.send(&request.header("Authorization", "Bearer secret")).status, 200);
    for (path, body) in [("/v2/rerank", "{}"), ("/embed", "{}"), ("/score", "{}")] {
        assert_eq!(sandbox.send(&Request::post(path, body)).status, 401, "{path}");
    }
    assert_eq!(sandbox.get("/v1/models").status, 401);
    let large = Request::post("/embed", json!({"inputs": "a".repeat(3000)}).to_string());
    assert_eq!(sandbox.send(&large.header("Authorization", "Bearer secret")).status, 413);
}

fn ollama_s_clients_find_a_model_and_its_vectors(mode: Mode) {
    let sandbox = start(mode);
    let tags = sandbox.get("/api/tags").json();
    let listed = tags["models"].as_array().expect("a list");
    assert!(listed.iter().any(|model| model["model"] == "embedding" && model["name"] == "embedding"), "{tags}");
    let shown = answer(&sandbox, "/api/show", json!({"model": "embedding:latest"}));
    assert_eq!(shown["capabilities"], json!(["embedding"]));
    assert_eq!(answer(&sandbox, "/api/show", json!({"name": "reranker"}))["capabilities"], json!([]));
    assert!(sandbox.get("/ollama/api/version").json()["version"].is_string());
    // Without a text the original loads the model.
    for input in [json!(""), json!([]), Value::Null] {
        let loaded = answer(&sandbox, "/api/embed", json!({"model": "embedding", "input": input}));
        assert_eq!(loaded["embeddings"], json!([]), "{input}");
    }
    let long = json!({"model": "embedding", "input": "long ".repeat(99), "truncate": false});
    for (path, body, status) in [
        ("/api/embed", json!({"model": "no such", "input": "a"}), 404),
        ("/api/embed", json!({"model": "no such"}), 404),
        ("/api/embed", long, 400),
        ("/api/embed", json!({"model": "embedding", "input": 5}), 400),
        ("/api/show", json!({"model": "no such"}), 404),
    ] {
        let refused = ask(&sandbox, path, &body);
        assert_eq!(refused.status, status, "{path} {body}: {}", refused.text());
        assert!(refused.json()["error"].is_string(), "{}", refused.text());
    }
}

fn a_slash_too_many_is_forgiven(mode: Mode) {
    let sandbox = start(mode);
    for path in ["//v1/embeddings", "/v1/embeddings/", "/openai//v1/embeddings/"] {
        let found = answer(&sandbox, path, json!({"model": "embedding", "input": "a"}));
        assert!(found["data"][0]["embedding"].is_array(), "{path}: {found}");
    }
    assert_eq!(sandbox.get("/v1/models/").status, 200);
    // As in Triton.
    assert_eq!(ask(&sandbox, "/v2/models/embedding/infer/", &json!({})).status, 404);
}

fn texts_and_vectors_have_the_names_of_other_servers_over_v2(mode: Mode) {
    let sandbox = start(mode);
    let known = &golden()[0];
    let asked = |input: &str, output: Option<&str>| {
        let input = json!({"name": input, "datatype": "BYTES", "shape": [1, 1], "data": [known.text]});
        let outputs: Vec<_> = output.iter().map(|name| json!({"name": name})).collect();
        let parameters = json!({"input_type": "passage", "truncate": "END"});
        sandbox.infer("embedding", &json!({"inputs": [input], "outputs": outputs, "parameters": parameters}))
    };
    for (input, output, found) in [
        ("text", Some("embeddings"), "embeddings"),
        ("text", None, "embeddings"),
        ("input_text", None, "sentence_embedding"),
        ("TEXT", Some("sentence_embedding"), "sentence_embedding"),
    ] {
        let answer = asked(input, output);
        assert_eq!(answer.status, 200, "{input}: {}", answer.text());
        assert_close(&answer.numbers(found), &known.embedding, 1e-5);
    }
    let refused = asked("texts", None);
    assert_eq!(refused.status, 400);
    assert!(refused.error().contains("unexpected inference input 'texts'"), "{}", refused.error());
}
