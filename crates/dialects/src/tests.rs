use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use axum::body::to_bytes;
use tokio::task::JoinSet;
use trireme_server::budget::Budget;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;

use super::fields::{Effect, Field};
use super::*;

fn chosen(path: &str, body: &str) -> &'static str {
    let contenders: Vec<Contender> = DIALECTS
        .iter()
        .flat_map(|dialect| dialect.routes.iter().map(move |route| (*dialect, route)))
        .filter(|(_, route)| route.path == path && !route.is_behind_name)
        .collect();
    match choose(&contenders, Bytes::from(body.to_owned())) {
        Ok(Chosen { contender: (dialect, _), .. }) | Err(((dialect, _), _)) => dialect.name,
    }
}

#[test]
fn fields_say_whose_a_body_is() {
    assert_eq!(chosen("/rerank", r#"{"query": "q", "texts": []}"#), "tei");
    assert_eq!(chosen("/rerank", r#"{"query": "q", "documents": []}"#), "infinity");
    assert_eq!(chosen("/rerank", r#"{"query": "q", "documents": [], "truncate_prompt_tokens": 5}"#), "vllm");
    assert_eq!(chosen("/v1/rerank", r#"{"query": "q", "documents": []}"#), "jina");
    assert_eq!(chosen("/v1/rerank", r#"{"query": "q", "documents": [], "rank_fields": ["a"]}"#), "cohere");
    assert_eq!(chosen("/v1/embeddings", r#"{"model": "m", "input": "a"}"#), "openai");
    assert_eq!(chosen("/v1/embeddings", r#"{"model": "m", "input": ["a"], "task": "text-matching"}"#), "jina");
    assert_eq!(chosen("/v1/embeddings", r#"{"model": "m", "input": "a", "input_type": "query"}"#), "nim");
    assert_eq!(
        chosen("/v1/embeddings", r#"{"model": "m", "input": "a", "input_type": "query", "truncate": "END"}"#),
        "nim"
    );
    assert_eq!(chosen("/v1/embeddings", r#"{"model": "m", "input": ["a"], "truncate": true}"#), "jina");
    assert_eq!(chosen("/classify", r#"{"input": ["a"]}"#), "infinity");
    assert_eq!(chosen("/classify", r#"{"input": ["a"], "use_activation": true}"#), "vllm");
    let embeddings = |more: &str| chosen("/v1/embeddings", &format!(r#"{{"model": "m", "input": ["a"], {more}}}"#));
    assert_eq!(embeddings(r#""encoding_format": "float", "dimensions": 3, "user": "u""#), "openai");
    assert_eq!(embeddings(r#""truncate": "END""#), "nim");
    assert_eq!(embeddings(r#""encoding_type": "float""#), "jina");
    assert_eq!(embeddings(r#""truncate_prompt_tokens": 5"#), "vllm");
    assert_eq!(embeddings(r#""normalize": false"#), "vllm");
    assert_eq!(chosen("/v1/embeddings", r#"{"model": "m", "input": [{"text": "a"}]}"#), "jina");
    assert_eq!(chosen("/v1/embeddings", r#"{"model": "m", "input": [[1, 2]]}"#), "openai");
}

#[test]
fn fields_of_two_dialects_are_refused_with_both() {
    let routes = |path: &str| -> Vec<Contender> {
        let all = DIALECTS.iter().flat_map(|dialect| dialect.routes.iter().map(move |route| (*dialect, route)));
        all.filter(|(_, route)| route.path == path && !route.is_behind_name).collect()
    };
    let body = r#"{"model": "m", "input": "a", "normalize": false, "task": "text-matching", "late_chunking": false}"#;
    let (_, refusal) = choose(&routes("/v1/embeddings"), Bytes::from(body)).err().expect("a refusal");
    assert_eq!(refusal.field.as_deref(), Some("normalize"));
    assert!(refusal.message.contains("choose one by the base URL, /vllm or /jina"), "{}", refusal.message);
}

#[test]
fn fields_of_proxies_are_passed_over_on_a_path_of_several_dialects() {
    let body = r#"{"model": "m", "query": "q", "documents": ["a"], "max_chunks_per_doc": 1024, "overlap_tokens": 80}"#;
    let check = |path: &str| {
        let contenders = table("openai").remove(&(path.to_owned(), Verb::Post)).expect("a path");
        choose(&contenders, Bytes::from(body))
            .map(|chosen| chosen.contender.0.name)
            .map_err(|(_, refusal)| refusal.field)
    };
    assert_eq!(check("/v1/rerank"), Ok("cohere"));
    assert_eq!(check("/cohere/v1/rerank"), Err(Some("overlap_tokens".to_owned())));
}

#[test]
fn a_body_that_is_no_json_is_the_first_ones() {
    assert_eq!(chosen("/v1/rerank", "{"), "jina");
    assert_eq!(chosen("/v1/embeddings", "[1]"), "openai");
}

#[test]
fn routes_that_contend_for_a_path_have_one_category() {
    for first in names() {
        for ((path, _), contenders) in table(first) {
            let categories = contenders.iter().map(|(_, route)| route.category);
            assert!(
                categories.clone().all(|one| one == category(&contenders)),
                "{path}: {:?}",
                categories.collect::<Vec<_>>()
            );
        }
        for Entry { verb, path, traffic, .. } in entries(first) {
            let is_work = verb == Verb::Post && !path.ends_with("/ping");
            assert_eq!(is_work, traffic == Traffic::Work, "{path}");
        }
    }
}

#[test]
fn the_first_dialect_answers_where_the_body_does_not_say_whose_it_is() {
    let chosen = |first: &str, path: &str, body: &str| {
        let contenders = table(first).remove(&(path.to_owned(), Verb::Post)).expect("a path");
        let chosen = choose(&contenders, Bytes::from(body.to_owned()));
        chosen.map_or_else(|((dialect, _), _)| dialect.name, |chosen| chosen.contender.0.name)
    };
    let (plain, jinas) =
        (r#"{"model": "m", "input": "a"}"#, r#"{"model": "m", "input": ["a"], "task": "text-matching"}"#);
    for first in ["openai", "jina", "tei", "vllm", "nim", "ollama"] {
        assert_eq!(chosen(first, "/v1/embeddings", plain), first);
    }
    assert_eq!(chosen("vllm", "/v1/embeddings", jinas), "jina");
    assert_eq!(chosen("vllm", "/v1/embeddings", "no JSON"), "vllm");
    assert_eq!(chosen("vllm", "/v1/rerank", r#"{"query": "q", "documents": []}"#), "vllm");
    // Its other routes are there without its name.
    let gets = |first: &str, path: &str| table(first).remove(&(path.to_owned(), Verb::Get)).map(|all| all[0].0.name);
    assert_eq!((gets("tei", "/info"), gets("tei", "/health")), (Some("tei"), Some("tei")));
    assert_eq!((gets("vllm", "/v1/models"), gets("openai", "/v1/models")), (Some("vllm"), Some("openai")));
    assert_eq!((gets("openai", "/info"), gets("ollama", "/")), (Some("tei"), None));
}

/// The runtime has two threads. Four large requests are read until another task has run ten times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_are_read_beside_the_runtimes_threads() {
    #[derive(Default)]
    struct Gate {
        read: AtomicUsize,
        is_open: Mutex<bool>,
        opened: Condvar,
    }
    let gate = Arc::new(Gate::default());
    let path = paths("openai").into_iter().find(|path| path.path == "/v1/embeddings").expect("a path");
    let body = Bytes::from(format!(r#"{{"model": "m", "input": "{}"}}"#, "a".repeat(100_000)));
    let (budget, mut requests) = (Budget::new(1 << 24), JoinSet::new());
    for _ in 0..4 {
        let (gate, path, body, permit) = (gate.clone(), path.clone(), body.clone(), budget.permit());
        requests.spawn(async move {
            let call = |_, _| {
                gate.read.fetch_add(1, Ordering::SeqCst);
                let is_open = gate.is_open.lock().unwrap();
                let held = gate.opened.wait_timeout_while(is_open, Duration::from_secs(10), |is_open| !*is_open);
                let word = if held.unwrap().1.timed_out() { "nothing else went on" } else { "passed" };
                Err(InferError::invalid_arg(word))
            };
            let answer = path.answer(body, &permit, call).await;
            String::from_utf8(to_bytes(answer.into_body(), 1 << 20).await.unwrap().to_vec()).unwrap()
        });
    }
    let opener = gate.clone();
    requests.spawn(async move {
        let (mut ticks, read) = (0, std::thread::available_parallelism().map_or(1, usize::from).min(2));
        while ticks < 10 {
            tokio::task::yield_now().await;
            ticks += usize::from(opener.read.load(Ordering::SeqCst) >= read);
        }
        *opener.is_open.lock().unwrap() = true;
        opener.opened.notify_all();
        "passed".to_owned()
    });
    for answer in requests.join_all().await {
        assert!(answer.contains("passed"), "{answer}");
    }
}

/// The names of the members of a route's bodies, by the types that read them.
fn members_of(route: &DialectRoute) -> Vec<String> {
    fn names(schema: &RefOr<Schema>, parts: &[(String, RefOr<Schema>)]) -> Vec<String> {
        match schema {
            RefOr::T(Schema::Object(object)) => object.properties.keys().cloned().collect(),
            RefOr::T(Schema::AllOf(all)) => all.items.iter().flat_map(|item| names(item, parts)).collect(),
            RefOr::T(_) => Vec::new(),
            RefOr::Ref(to) => {
                let named = |(name, _): &&(String, RefOr<Schema>)| to.ref_location.ends_with(&format!("/{name}"));
                parts.iter().find(named).map_or_else(Vec::new, |(_, part)| names(part, parts))
            }
        }
    }
    let Some(body) = route.takes.map(|takes| takes()) else { return Vec::new() };
    names(&body.schema, &body.parts)
}

#[test]
fn what_types_read_is_in_the_tables_and_every_value_there_can_be_read() {
    for (dialect, route) in DIALECTS.iter().flat_map(|dialect| dialect.routes.iter().map(move |it| (dialect, it))) {
        let place = format!("{} {}", dialect.name, route.path);
        let fields = || route.fields.iter().copied().flatten();
        for name in members_of(route) {
            assert!(fields().any(|field| field.name == name), "{place}: '{name}' is in no table");
        }
        for field in fields() {
            for form in field.forms {
                let body = format!(r#"{{"{}": {form}}}"#, field.name);
                let checked = Members::of(body.as_bytes()).check(route.fields, true);
                match (&field.effect, checked) {
                    (Effect::Only(values, _), Err(refusal)) if !values.contains(form) => {
                        assert_eq!(refusal.field.as_deref(), Some(field.name), "{place} {body}");
                    }
                    (_, checked) => assert_eq!(checked.map(|_| ()), Ok(()), "{place} {body}"),
                }
            }
        }
    }
}

#[test]
fn the_page_lists_the_fields() {
    const START: &str = "<!-- fields -->\n";
    const END: &str = "<!-- end of fields -->";
    let path = "../../docs/dialects.md";
    let text = std::fs::read_to_string(path).expect("the page is there");
    let (before, rest) = text.split_once(START).expect("the mark before the list");
    let (list, after) = rest.split_once(END).expect("the mark behind the list");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{START}{}{END}{after}", listed())).expect("the page can be written");
    } else {
        assert_eq!(list, listed(), "renew it: UPDATE_DOCS=1 cargo test -p trireme-gateway the_page_lists_the_fields");
    }
}

/// The fields of every route, as the page has them. Routes with the same fields have one row.
fn listed() -> String {
    let mut page = String::new();
    for dialect in DIALECTS {
        let mut rows: Vec<(Vec<&str>, [String; 3])> = Vec::new();
        for route in dialect.routes.iter().filter(|route| !route.fields.is_empty()) {
            let all: Vec<&Field> = route.fields.iter().copied().flatten().collect();
            let first = |at: usize| !all[..at].iter().any(|field| field.name == all[at].name);
            let all: Vec<&Field> = (0..all.len()).filter(|&at| first(at)).map(|at| all[at]).collect();
            let joined = |words: Vec<String>, between: &str| {
                if words.is_empty() { "—".to_owned() } else { words.join(between) }
            };
            let read = all.iter().filter_map(|field| match field.effect {
                Effect::Read => Some(format!("`{}`", field.name)),
                Effect::Ours => Some(format!("`{}` (ours)", field.name)),
                Effect::Idle(_) | Effect::Only(..) => None,
            });
            let only = all.iter().filter_map(|field| match field.effect {
                Effect::Only([], why) => Some(format!("`{}`: {why}", field.name)),
                Effect::Only(values, why) => Some(format!("`{}` but `{}`: {why}", field.name, values.join("`, `"))),
                _ => None,
            });
            let idle = all.iter().filter_map(|field| match field.effect {
                Effect::Idle(why) => Some(format!("`{}`: {why}", field.name)),
                _ => None,
            });
            let cells = [joined(read.collect(), ", "), joined(only.collect(), "; "), joined(idle.collect(), "; ")];
            match rows.iter_mut().find(|(_, other)| *other == cells) {
                Some((paths, _)) => paths.push(route.path),
                None => rows.push((vec![route.path], cells)),
            }
        }
        page += &format!("\n**{}**\n\n| route | read | refused | without effect |\n|---|---|---|---|\n", dialect.name);
        for (paths, [read, only, idle]) in rows {
            page += &format!("| `{}` | {read} | {only} | {idle} |\n", paths.join("`, `"));
        }
    }
    page
}

#[test]
fn each_dialect_has_a_body_for_every_kind_of_refusal() {
    for dialect in DIALECTS {
        for kind in Kind::ALL {
            let refusal = Refusal::new(kind, "what \"it\" was");
            let (status, body) = (dialect.refuse)(&refusal);
            assert!((400..600).contains(&status), "{}: {kind:?}", dialect.name);
            let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
            assert!(body.to_string().contains(r#"what \"it\" was"#), "{}: {body}", dialect.name);
        }
    }
}
