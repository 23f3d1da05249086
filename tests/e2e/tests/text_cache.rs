//! The text cache: texts of a request that were answered before are not computed again, and the answer is the one that computing gives.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use trireme_e2e::{
    Mode, ModelFolder, Request, Response, Sandbox, Setup, in_one_mode, product, texts_repository, workspace,
};

use crate::dialects::assert_alike;
use crate::one_pass;
use crate::statistics::scrape;

in_one_mode!(
    answers_of_the_text_cache_are_those_of_computing,
    a_result_is_of_its_owner_its_parameters_and_its_content,
    a_file_that_has_changed_a_little_is_embedded_from_the_cache,
);

const SIZE: &str = "10000000";

/// The header that counts the texts that were not computed.
const CACHED: &str = "trireme-cached-texts";

/// Texts of many lengths, so that they travel in several messages, in another order.
fn texts(numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    numbers.into_iter().map(|number| format!("{} the {number} rower", "oar ".repeat(number * 7 % 11))).collect()
}

/// A request of an operation for these texts: its path and body.
type Operation = (&'static str, fn(&[String]) -> Value);

const OPERATIONS: [Operation; 7] = [
    ("/v1/embeddings", |texts| json!({"model": "everything", "input": texts})),
    ("/tei/everything/embed_sparse", |texts| json!({"inputs": texts})),
    ("/tei/everything/embed_all", |texts| json!({"inputs": texts})),
    ("/tei/token_vectors/embed_all", |texts| json!({"inputs": texts})),
    ("/tei/reranker/rerank", |texts| json!({"query": "who takes the oar", "texts": texts, "raw_scores": true})),
    ("/tei/classifier", |texts| json!({"inputs": texts.iter().map(|text| [text]).collect::<Vec<_>>()})),
    ("/tei/names", |texts| json!({"inputs": texts.iter().map(|text| format!("{text} Amina")).collect::<Vec<_>>()})),
];

fn start(mode: Mode, models: &Path, flags: &[&str]) -> Sandbox {
    let named = format!("names={}", workspace().join("examples/folders/names").display());
    let model = ["--model", named.as_str()];
    let setup = Setup::new(mode).repository(models).worker_arguments(&model);
    let own: &[&str] = if setup.is_services() { &model } else { &[] };
    setup.gateway_arguments(&[own, flags].concat()).start()
}

fn ask(sandbox: &Sandbox, path: &str, body: &Value) -> Response {
    let answer = sandbox.send(&Request::post(path, body.to_string()).header("Content-Type", "application/json"));
    assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text());
    answer
}

/// How many texts of an answer were not computed.
fn cached(answer: &Response) -> usize {
    answer.header(CACHED).map_or(0, |count| count.parse().expect("a number"))
}

/// The sum of a metric of the text cache.
fn count(sandbox: &Sandbox, name: &str) -> f64 {
    let (name, metrics) = (format!("trireme_text_cache_{name}"), scrape(&sandbox.gateway, "metrics listener").samples);
    metrics.iter().filter(|(sample, _)| sample.starts_with(&name)).map(|(_, value)| value).sum()
}

/// The body without its id and the counts of cached tokens, which answers have that came from a cache, and no others.
fn without_cached(answer: &Response) -> Value {
    let mut body = answer.json();
    if let Some(body) = body.as_object_mut() {
        body.remove("id");
    }
    let usage = body.get_mut("usage").and_then(Value::as_object_mut);
    let details = usage.and_then(|usage| usage.remove("prompt_tokens_details"));
    assert_eq!(details.is_some(), body.get("usage").is_some() && cached(answer) > 0, "{}", answer.text());
    body
}

fn tokens(answer: &Response) -> Option<u64> {
    answer.header("trireme-tokens").map(|tokens| tokens.parse().expect("a number"))
}

fn answers_of_the_text_cache_are_those_of_computing(mode: Mode) {
    let models = one_pass::models();
    let plain = start(mode, models.path(), &[]);
    let caching = start(mode, models.path(), &["--text-cache", SIZE]);
    let space = |answer: &Response| answer.header("trireme-space").map(str::to_owned);
    let mut looked_up = 0;
    for (path, body) in OPERATIONS {
        // Nothing, half and all of the texts were there before; the last request has each text twice.
        let (first, mixed, twice) = (texts(0..50), texts((25..75).rev()), texts((90..95).chain(90..95)));
        let mut answers = Vec::new();
        for (asked, expected) in [(&first, 0), (&mixed, 25), (&mixed, 50), (&first, 50), (&twice, 5)] {
            let (found, computed) = (ask(&caching, path, &body(asked)), ask(&plain, path, &body(asked)));
            assert_eq!(cached(&found), expected, "{path}: {found:?}");
            assert_eq!(cached(&computed), 0);
            let told = without_cached(&found);
            assert_alike(&told, &without_cached(&computed));
            if expected == asked.len() {
                let before = answers.iter().find(|(before, _)| *before == asked);
                assert_eq!(before.map(|(_, told)| told), Some(&told), "{path}: to the last bit");
            }
            answers.push((asked, told));
            assert_eq!((tokens(&found), space(&found)), (tokens(&computed), space(&computed)), "{path}");
            assert!(tokens(&found).is_some() && space(&found).is_some(), "{path}: {found:?}");
            let timing = found.header("server-timing").expect("times");
            assert_eq!(timing.is_empty(), expected == asked.len(), "{path}: {timing}");
            looked_up += asked.len();
        }
    }
    let text = ask(&caching, "/v1/embeddings", &json!({"model": "everything", "input": texts([1])})).json();
    assert_eq!(text["usage"]["prompt_tokens_details"]["cached_tokens"], text["usage"]["prompt_tokens"], "{text}");

    let (hits, misses) = (count(&caching, "hits_total"), count(&caching, "misses_total"));
    assert_eq!(hits + misses, (looked_up + 1) as f64);
    assert_eq!(misses, (OPERATIONS.len() * 80) as f64);
    assert!((1.0..10_000_000.0).contains(&count(&caching, "bytes")));

    // Errors are not kept, and a request with one computes nothing less.
    let long = json!({"model": "everything", "input": ["word ".repeat(100)], "truncate": false});
    for _ in 0..2 {
        let refused =
            caching.send(&Request::post("/v1/embeddings", long.to_string()).header("Content-Type", "application/json"));
        assert_eq!((refused.status, refused.header(CACHED)), (400, None), "{}", refused.text());
    }
}

/// Requests for vectors that differ from the plain one in something that may change a row.
fn variants() -> Vec<Value> {
    let plain = json!({"inputs": texts(0..6)});
    let others = [
        json!({"dimensions": 4}),
        json!({"dimensions": 5}),
        json!({"normalize": false}),
        json!({"truncate": true}),
        json!({"truncation_direction": "left"}),
        json!({"prompt_name": "query"}),
    ];
    let with = |other: &Value| {
        let mut body = plain.clone();
        body.as_object_mut().expect("an object").extend(other.as_object().expect("an object").clone());
        body
    };
    std::iter::once(plain.clone()).chain(others.iter().map(with)).collect()
}

fn a_result_is_of_its_owner_its_parameters_and_its_content(mode: Mode) {
    let prompt = "parameters { key: 'prompts' value { string_value: '{\"query\": \"q: \"}' } }";
    let models = ModelFolder::copy_of(&texts_repository()).with_setting("words", prompt);
    let keys = ["--api-key=alice=the-key-of-alice", "--api-key=bob=the-key-of-bob", "--admin-api-key=the-key-of-root"];
    let control = ["--model-control-mode=explicit", "--load-model=embedding"];
    let start = |own: &[&str]| {
        // The one process has the flags of workers.
        let control_of_gateway: &[&str] = if mode == Mode::Services { &control } else { &[] };
        let flags = [&keys[..], &["--text-cache", SIZE], own, control_of_gateway].concat();
        let setup = Setup::new(mode).repository(models.path()).worker_arguments(&control);
        setup.gateway_arguments(&flags).start()
    };
    let send = |sandbox: &Sandbox, path: &str, body: &Value, key: &str| {
        let request = Request::post(path, body.to_string()).header("Content-Type", "application/json");
        let answer = sandbox.send(&request.header("Authorization", &format!("Bearer the-key-of-{key}")));
        assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text());
        answer
    };
    let sandbox = start(&[]);
    let embed = |body: &Value, key: &str| {
        let answer = send(&sandbox, "/tei/embedding/embed", body, key);
        (cached(&answer), answer.json())
    };
    let all = variants();
    let alices: Vec<Value> = all
        .iter()
        .map(|body| {
            let (found, vectors) = embed(body, "alice");
            assert_eq!(found, 0, "{body}");
            assert_eq!(embed(body, "alice"), (6, vectors.clone()), "{body}");
            vectors
        })
        .collect();
    for (body, vectors) in all.iter().zip(&alices) {
        assert_eq!(embed(body, "bob"), (0, vectors.clone()), "alice's results are not bob's: {body}");
    }
    let usage = |owner: &str| {
        let request = Request::get("/v2/trireme/usage?by=total").header("X-API-Key", "the-key-of-root");
        let document = sandbox.send(&request).json();
        let mut lines = document["usage"].as_array().expect("a list").iter();
        let line = lines.rfind(|line| line["owner"] == owner).expect("a line");
        ["tokens", "cached_tokens", "rows", "cached_requests"].map(|name| line[name].as_u64().expect("a number"))
    };
    let [tokens, cached_tokens, rows, requests] = usage("alice");
    assert_eq!((tokens, rows, requests), (2 * cached_tokens, 12 * all.len() as u64, all.len() as u64));
    assert_eq!(usage("bob"), [tokens / 2, 0, rows / 2, 0]);

    let config = models.path().join("mean/config.pbtxt");
    let text = fs::read_to_string(&config).expect("a file");
    fs::write(&config, text.replace("pool:mean", "pool:max")).expect("a file");
    send(&sandbox, "/v2/repository/models/mean/load", &json!({}), "root");
    for (body, before) in all.iter().zip(&alices) {
        let (found, vectors) = embed(body, "alice");
        assert!(found == 0 && vectors != *before, "of another content: {body}");
        assert_eq!(embed(body, "alice"), (6, vectors));
    }
    fs::write(&config, text).expect("a file");
    drop(sandbox);

    let sandbox = start(&["--text-cache-shared"]);
    let embed = |key: &str| cached(&send(&sandbox, "/tei/embedding/embed", &all[0], key));
    assert_eq!([embed("alice"), embed("bob")], [0, 6]);
}

/// `trireme bulk` sends a file's texts to a server, and the server's cache has those that did not change.
fn a_file_that_has_changed_a_little_is_embedded_from_the_cache(mode: Mode) {
    const TEXTS: usize = 40;
    let (models, folder) = (one_pass::models(), tempfile::tempdir().expect("a temporary folder"));
    let sandbox = start(mode, models.path(), &["--text-cache", SIZE]);
    let bulk = |name: &str, texts: &[String]| -> Vec<Value> {
        let [input, output] = ["in", "out"].map(|kind| folder.path().join(format!("{name}.{kind}.jsonl")));
        fs::write(&input, texts.join("\n") + "\n").expect("the input is written");
        let mut command = product("trireme");
        command.arg("bulk").args([&input, &output]).args(["--model", "everything", "--texts", "7"]);
        let ran = command.args(["--server", &format!("http://{}", sandbox.address)]).output().expect("it runs");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let written = fs::read_to_string(output).expect("an output");
        written.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let mut all = texts(0..TEXTS);
    let before = bulk("first", &all);
    // Each run asks for one text of its own, to learn the width of the vectors.
    assert_eq!(count(&sandbox, "misses_total"), (TEXTS + 1) as f64);
    all[17].push_str(" again");
    let after = bulk("second", &all);
    assert_eq!(count(&sandbox, "misses_total"), (TEXTS + 2) as f64, "only the changed text is computed");
    let differ: Vec<usize> = (0..TEXTS).filter(|&row| before[row] != after[row]).collect();
    assert_eq!(differ, [17]);
}
