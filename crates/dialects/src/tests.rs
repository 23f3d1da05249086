use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use axum::body::to_bytes;
use axum::http::Method;
use tokio::task::JoinSet;
use trireme_server::budget::Budget;
use trireme_server::http::endpoint::endpoint;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;

use super::fields::{Effect, Field, Others};
use super::words::{Meaning, Sense};
use super::*;

fn chosen(path: &str, body: &str) -> &'static str {
    let contenders: Vec<Contender> = DIALECTS
        .iter()
        .flat_map(|dialect| dialect.routes.iter().map(move |route| (*dialect, route)))
        .filter(|(_, route)| route.path == path && !route.is_behind_name)
        .collect();
    choose(&contenders, Bytes::from(body.to_owned())).contender.0.name
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
    let refusal = choose(&routes("/v1/embeddings"), Bytes::from(body)).body.expect_err("a refusal");
    assert_eq!(refusal.field.as_deref(), Some("normalize"));
    assert!(refusal.message.contains("choose one by the base URL, /vllm or /jina"), "{}", refusal.message);
}

#[test]
fn fields_of_proxies_are_passed_over_on_a_path_of_several_dialects() {
    let body = r#"{"model": "m", "query": "q", "documents": ["a"], "max_chunks_per_doc": 1024, "overlap_tokens": 80}"#;
    let check = |path: &str| {
        let contenders = table("openai").remove(&(path.to_owned(), Verb::Post)).expect("a path");
        let chosen = choose(&contenders, Bytes::from(body));
        chosen.body.map(|_| chosen.contender.0.name).map_err(|refusal| refusal.field)
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
        for Route { verb, path, traffic, .. } in routes::<()>(first, |_| endpoint(|(), _| async {})) {
            let is_work = verb == Verb::Post && !path.ends_with("/ping");
            assert_eq!(is_work, traffic == Traffic::Work, "{path}");
        }
    }
}

#[test]
fn the_first_dialect_answers_where_the_body_does_not_say_whose_it_is() {
    let chosen = |first: &str, path: &str, body: &str| {
        let contenders = table(first).remove(&(path.to_owned(), Verb::Post)).expect("a path");
        choose(&contenders, Bytes::from(body.to_owned())).contender.0.name
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
        let (gate, path, body) = (gate.clone(), path.clone(), body.clone());
        let context = RequestContext::of_process(budget.permit());
        requests.spawn(async move {
            let call = |_| {
                gate.read.fetch_add(1, Ordering::SeqCst);
                let is_open = gate.is_open.lock().unwrap();
                let held = gate.opened.wait_timeout_while(is_open, Duration::from_secs(10), |is_open| !*is_open);
                let word = if held.unwrap().1.timed_out() { "nothing else went on" } else { "passed" };
                Err(InferError::invalid_arg(word))
            };
            let answer = path.answer(body, &context, call).await;
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
                let checked = Members::of(body.as_bytes()).check(route.fields, Others::Refused);
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
        assert_eq!(list, listed(), "renew it: UPDATE_DOCS=1 cargo test -p trireme-dialects the_page_lists_the_fields");
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
    page + &words_listed()
}

/// The fields of all APIs, as the page has them.
fn words_listed() -> String {
    type Row = (&'static str, bool, Vec<(Vec<String>, fields::Forms)>);
    let mut rows: Vec<Row> = Vec::new();
    for word in words::WORDS.iter().filter(|word| word.name != "model") {
        let (why, is_idle, usual) = match word.sense {
            Sense::Idle(why) => (why, true, &[][..]),
            Sense::Matters { usual, instead, .. } => (instead, false, usual),
        };
        let at = rows.iter().position(|(other, idle, _)| *other == why && *idle == is_idle).unwrap_or_else(|| {
            rows.push((why, is_idle, Vec::new()));
            rows.len() - 1
        });
        let names = &mut rows[at].2;
        match names.iter_mut().find(|(_, other)| *other == usual) {
            Some((names, _)) => names.push(format!("`{}`", word.name)),
            None => names.push((vec![format!("`{}`", word.name)], usual)),
        }
    }
    let shown = |(names, usual): (Vec<String>, fields::Forms)| {
        let unless = if usual.is_empty() { String::new() } else { format!(" but `{}`", usual.join("`, `")) };
        names.join(", ") + &unless
    };
    let mut page = "\n**where no row above names them**\n\n| fields | | |\n|---|---|---|\n".to_owned();
    for (why, is_idle, names) in rows {
        let fate = if is_idle { "passed over" } else { "refused" };
        let names: Vec<String> = names.into_iter().map(shown).collect();
        page += &format!("| {} | {fate} | {why} |\n", names.join("; "));
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
            assert_eq!(status == 412, kind == Kind::OtherSpace, "{}: {kind:?} is {status}", dialect.name);
            let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
            assert!(body.to_string().contains(r#"what \"it\" was"#), "{}: {body}", dialect.name);
        }
    }
}

/// The names of the routes of all dialects with the routes that contend for each.
fn posts() -> impl Iterator<Item = (String, Vec<Contender>)> {
    let read = |contenders: &Vec<Contender>| contenders.iter().all(|(_, route)| !route.fields.is_empty());
    let is_post =
        move |((_, verb), contenders): &((String, Verb), Vec<Contender>)| *verb == Verb::Post && read(contenders);
    table("openai").into_iter().filter(is_post).map(|((path, _), contenders)| (path, contenders))
}

/// The value of a field of some API at a route: refused by its name, or the field by which the route reads it. `None`: it is passed over.
fn fate(contenders: &[Contender], name: &str, value: &str) -> Option<Result<String, Refusal>> {
    let body = format!(r#"{{"{name}": {value}}}"#);
    let Chosen { contender: (_, route), body, .. } = choose(contenders, Bytes::from(body));
    let body = match body {
        Ok(body) => body,
        Err(refusal) => return Some(Err(refusal)),
    };
    let members: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&body).expect("JSON");
    let knows = |name: &String| route.fields.iter().copied().flatten().any(|field| field.name == name);
    members.keys().find(|name| knows(name)).cloned().map(Ok)
}

#[test]
fn no_field_on_which_answers_depend_is_passed_over() {
    let mut asked = 0;
    for (path, contenders) in posts() {
        // Another route, which the model or the body chooses, checks the body.
        if contenders.iter().any(|(_, route)| route.is_another) {
            continue;
        }
        for word in words::WORDS {
            let Sense::Matters { usual, meaning, .. } = word.sense else { continue };
            asked += 1;
            match fate(&contenders, word.name, word.example) {
                Some(Err(refusal)) => {
                    // Or a member of it.
                    let field = refusal.field.as_deref().and_then(|field| field.split('.').next());
                    assert_eq!(field, Some(word.name), "{path}: {}", refusal.message);
                    assert!(refusal.message.starts_with(&format!("'{}", word.name)), "{path}: {}", refusal.message);
                }
                Some(Ok(_)) => {}
                // vLLM's routes cut a text only if the request asks for it.
                None if meaning == Meaning::Cut && contenders.iter().any(|(dialect, _)| dialect.name == "vllm") => {}
                None => panic!("{path} passes over {} {}", word.name, word.example),
            }
            let is_strict = contenders.len() == 1 && contenders[0].0.is_strict;
            for value in usual.iter().filter(|_| !is_strict) {
                if let Some(Err(refusal)) = fate(&contenders, word.name, value) {
                    let own = contenders
                        .iter()
                        .any(|(_, route)| route.fields.iter().copied().flatten().any(|field| field.name == word.name));
                    assert!(own, "{path} refuses {} {value}: {}", word.name, refusal.message);
                }
            }
        }
    }
    assert!(asked > 3000, "{asked}");
}

#[test]
fn fields_without_effect_and_those_of_no_api_are_passed_over_but_by_the_strict_one() {
    for (path, contenders) in posts() {
        let is_strict = contenders.len() == 1 && contenders[0].0.is_strict;
        let idle = words::WORDS.iter().filter(|word| matches!(word.sense, Sense::Idle(_)));
        for name in idle.map(|word| word.name).chain(["no_such_field"]) {
            let knows = contenders
                .iter()
                .any(|(_, route)| route.fields.iter().copied().flatten().any(|field| field.name == name));
            let is_refused = fate(&contenders, name, r#""x""#).is_some_and(|fate| fate.is_err());
            assert!(knows || is_refused == is_strict, "{path} {name}");
        }
    }
}

#[test]
fn fields_are_read_by_their_names_in_other_apis() {
    let read = |path: &str, body: &str| {
        let contenders = table("openai").remove(&(path.to_owned(), Verb::Post)).expect("a path");
        let Chosen { contender, body, .. } = choose(&contenders, Bytes::from(body.to_owned()));
        let body = body.map_err(|refusal| refusal.message)?;
        Ok::<_, String>((contender.0.name, String::from_utf8(body.to_vec()).expect("text")))
    };
    let openai = |more: &str| read("/v1/embeddings", &format!(r#"{{"input":"a","model":"m",{more}}}"#));
    assert_eq!(
        openai(r#""output_dimension":64"#),
        Ok(("openai", r#"{"dimensions":64,"input":"a","model":"m"}"#.into()))
    );
    assert_eq!(
        openai(r#""embedding_types":["int8"],"user":"u","encoding_format":"base64""#),
        Ok((
            "openai",
            r#"{"encoding_format":"base64","input":"a","model":"m","output_dtype":"int8","user":"u"}"#.into()
        ))
    );
    assert!(openai(r#""embedding_types":["int8","float"]"#).unwrap_err().starts_with("'embedding_types' is a list"));
    assert_eq!(openai(r#""truncation":false"#), Ok(("openai", r#"{"input":"a","model":"m","truncate":false}"#.into())));
    assert_eq!(
        openai(r#""truncation":false,"input_type":"query""#),
        Ok(("nim", r#"{"input":"a","input_type":"query","model":"m","truncate":"NONE"}"#.into()))
    );
    // The same twice is once, two things are too many.
    assert_eq!(
        openai(r#""dimensions":4,"output_dimension":4"#),
        Ok(("openai", r#"{"dimensions":4,"input":"a","model":"m"}"#.into()))
    );
    let two = openai(r#""dimensions":4,"output_dimension":8"#).unwrap_err();
    assert!(two.starts_with("'output_dimension' comes with another name of 'dimensions' and another value"), "{two}");
    let two = openai(r#""embedding_type":"int8","precision":"uint8","user":"u""#).unwrap_err();
    assert!(two.starts_with("'precision' comes with another name of"), "{two}");
    let ranked = r#"{"documents":["a"],"query":"q","top_k":1}"#;
    assert_eq!(read("/rerank", ranked), Ok(("infinity", r#"{"documents":["a"],"query":"q","top_n":1}"#.into())));
    assert_eq!(read("/v1/rerank", ranked).map(|(dialect, _)| dialect), Ok("voyage"));
    let vllm = read("/vllm/v1/embeddings", r#"{"input":"a","truncate":"END"}"#);
    assert_eq!(vllm, Ok(("vllm", r#"{"input":"a","truncate_prompt_tokens":-1}"#.into())));
    let labels = read("/predict", r#"{"inputs":"a","parameters":{"candidate_labels":["a"]}}"#).unwrap_err();
    assert!(
        labels.starts_with("'parameters.candidate_labels' is a list of texts: /tei/MODEL takes labels"),
        "{labels}"
    );
}

#[test]
fn an_error_has_the_members_that_the_clients_of_each_dialect_read() {
    let of = |path: &str, body: &str| {
        let contenders = table("openai").remove(&(path.to_owned(), Verb::Post)).expect("a path");
        let Chosen { contender, also, .. } = choose(&contenders, Bytes::from(body.to_owned()));
        let also: Vec<&str> = also.iter().map(|(dialect, _)| dialect.name).collect();
        (contender.0.name, also)
    };
    assert_eq!(of("/v1/embeddings", r#"{"model": "m", "input": "a"}"#), ("openai", vec!["jina", "vllm", "nim"]));
    assert_eq!(of("/v1/embeddings", r#"{"model": "m", "input": "a", "task": "text-matching"}"#), ("jina", vec![]));
}

#[test]
fn a_path_that_is_none_has_an_error_for_each_client() {
    let of = |path: &str| {
        let found = no_route(&Method::POST, path, StatusCode::NOT_FOUND)?;
        let body = futures_util::FutureExt::now_or_never(axum::body::to_bytes(found.into_body(), 1 << 20));
        serde_json::from_slice::<serde_json::Value>(&body?.ok()?).ok()
    };
    let v1 = of("/v1/chat").expect("an error");
    assert!(v1["error"]["message"].as_str().is_some_and(|text| text.contains("POST /v1/embeddings")), "{v1}");
    assert!(v1["detail"].is_string() && v1["message"].is_string(), "{v1}");
    assert!(of("/jina/v1/chat").is_some_and(|error| error["detail"].is_string() && error["error"].is_null()));
    assert!(of("/v3/chat").is_none());
    assert!(of("/v1").is_some_and(|error| error["detail"].is_string()));
    assert!(no_route(&Method::GET, "/v1", StatusCode::NOT_FOUND).is_none());
}
