//! Long texts of models that embed, rank and classify: they are read in windows, and one answer is made of those of the windows.

use serde_json::{Value, json};
use trireme_e2e::{Mode, Request, Response, Sandbox, Setup, in_one_mode, workspace};
use trireme_testkit::assert_close;

in_one_mode!(a_long_text_has_the_fold_of_its_windows);

/// Sentences that are longer together than the longest row of any model here.
pub const LONG: &str = "The ship is on the sea. The harbour is calm and the crew is on the boat. Who beats the drum? The captain of the ship! \
                    The boat is in the harbour, and the sea is deep. The crew is calm. The report is late, and the captain is \
                    on the boat with the drum. The oars are on the ship. Who is in the harbour? The crew of the boat is in the harbour. \
                    The sea is calm, and it is good to row to the harbour.";
const SHORT: &str = "the sea is calm";
pub const QUERY: &str = "where is the ship";

/// A window: its text, and how many tokens its row has.
struct Window {
    text: String,
    tokens: f32,
}

pub fn tensor(name: &str, texts: &[&str]) -> Value {
    json!({"name": name, "datatype": "BYTES", "shape": [texts.len()], "data": texts})
}

pub fn infer(sandbox: &Sandbox, model: &str, inputs: &[Value], parameters: &Value) -> Response {
    sandbox.infer(model, &json!({"parameters": parameters, "inputs": inputs}))
}

pub fn header(response: &Response, name: &str) -> usize {
    response.header(name).map_or(0, |number| number.parse().expect("a number"))
}

/// The windows of `long`, the last input, as the model's tokenizer makes them.
fn windows(sandbox: &Sandbox, model: &str, inputs: &[Value], long: &str, parameters: &Value) -> Vec<Window> {
    let body = json!({"parameters": parameters, "inputs": inputs, "outputs": [{"name": "windows"}]});
    let answer = sandbox.infer(&format!("{model}_tokenizer"), &body);
    let places = answer.numbers("windows");
    let rows = places.len() / 6;
    let characters: Vec<char> = long.chars().collect();
    let window = |row: usize| Window {
        text: characters[places[6 * row + 1] as usize..places[6 * row + 2] as usize].iter().collect(),
        tokens: places[6 * row + 5],
    };
    let windows: Vec<Window> = (0..rows).map(window).collect();
    assert!(windows.len() > 3, "{rows} windows");
    windows
}

/// The fold of rows of the same width.
fn fold(kind: &str, rows: &[Vec<f32>], windows: &[Window]) -> Vec<f32> {
    let all: f64 = windows.iter().map(|window| f64::from(window.tokens)).sum();
    let of = |place: usize| match kind {
        "first" => rows[0][place],
        "max" => rows.iter().map(|row| row[place]).fold(f32::NEG_INFINITY, f32::max),
        _ => {
            let weighted =
                rows.iter().zip(windows).map(|(row, window)| f64::from(row[place]) * f64::from(window.tokens));
            (weighted.sum::<f64>() / all) as f32
        }
    };
    (0..rows[0].len()).map(of).collect()
}

fn of_length_one(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
    vector.iter().map(|number| number / length).collect()
}

fn a_long_text_has_the_fold_of_its_windows(mode: Mode) {
    let folder = crate::folders::tiny();
    let examples = workspace().join("examples/folders");
    let boats = format!("boats={}", folder.path().display());
    let [ranks, moods] = [("ranks", "reranker"), ("moods", "sentiment")]
        .map(|(name, folder)| format!("{name}={}", examples.join(folder).display()));
    let flags = ["--model", &boats, "--model", &ranks, "--model", &moods, "--long-texts", "moods:windows"];
    let mut setup = Setup::new(mode).worker_arguments(&flags);
    if setup.is_services() {
        setup = setup.gateway_arguments(&flags);
    }
    let mut sandbox = setup.start();
    vectors(&sandbox);
    scores(&sandbox);
    classes(&sandbox);
    dialects(&sandbox);
    crate::kept::windows_are_kept(&sandbox);
    refusals(&sandbox);
    crate::clients::run_at(sandbox.grpc_address(), "grpc_folds.py", &[]);
}

fn vectors(sandbox: &Sandbox) {
    let embed = |texts: &[&str], parameters: &Value| infer(sandbox, "boats", &[tensor("TEXT", texts)], parameters);
    let vector = |text: &str, parameters: &Value| embed(&[text], parameters).numbers("sentence_embedding");
    for overlap in [0, 3] {
        let asked = json!({"windows": true, "overlap": overlap});
        let windows = windows(sandbox, "boats", &[tensor("TEXT", &[LONG])], LONG, &asked);
        for (kind, further) in [
            ("mean", json!({})),
            ("first", json!({})),
            ("max", json!({"dimensions": 4})),
            ("mean", json!({"normalize": false})),
        ] {
            let mut alone = further.clone();
            let rows: Vec<_> = windows.iter().map(|window| vector(&window.text, &further)).collect();
            let plain = fold(kind, &rows, &windows);
            let expected = if further["normalize"] == json!(false) { plain } else { of_length_one(&plain) };
            alone["windows"] = json!(true);
            (alone["overlap"], alone["fold"]) = (json!(overlap), json!(kind));
            let answer = embed(&[LONG], &alone);
            assert_close(&answer.numbers("sentence_embedding"), &expected, 1e-6);
            assert_eq!(
                (header(&answer, "trireme-windows"), header(&answer, "trireme-truncated-texts")),
                (windows.len(), 0)
            );
        }
        // Beside other texts each has the vector that it has alone; the request names no fold, so it is the mean.
        let answer = embed(&[SHORT, LONG, "", LONG, QUERY], &asked);
        let together = answer.numbers("sentence_embedding");
        let each = [SHORT, LONG, "", LONG, QUERY].map(|text| vector(text, &asked));
        assert_close(&together, &each.concat(), 1e-6);
        assert_eq!((header(&answer, "trireme-windows"), &each[0]), (2 * windows.len(), &vector(SHORT, &json!({}))));
    }
    let cut = embed(&[LONG], &json!({}));
    assert_eq!((header(&cut, "trireme-windows"), header(&cut, "trireme-truncated-texts")), (0, 1));
}

fn scores(sandbox: &Sandbox) {
    let score = |query: &str, document: &str, parameters: &Value| {
        infer(sandbox, "ranks", &[tensor("TEXT", &[query]), tensor("TEXT_PAIR", &[document])], parameters)
    };
    let inputs = [tensor("TEXT", &[QUERY]), tensor("TEXT_PAIR", &[LONG])];
    let windows = windows(sandbox, "ranks", &inputs, LONG, &json!({"windows": true}));
    for raw in [false, true] {
        let further = json!({"raw_scores": raw});
        let each = windows.iter().map(|window| score(QUERY, &window.text, &further).numbers("scores"));
        let rows: Vec<_> = each.collect();
        let answer = score(QUERY, LONG, &json!({"windows": true, "raw_scores": raw}));
        assert_close(&answer.numbers("scores"), &fold("max", &rows, &windows), 1e-6);
        assert_eq!(header(&answer, "trireme-windows"), windows.len());
    }
    // A query that leaves no room for a document is never cut.
    let refused = score(LONG, SHORT, &json!({"windows": true}));
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("which leave no room for the other in a row of 32"), "{}", refused.text());
    assert_eq!(score(LONG, SHORT, &json!({})).status, 200, "without windows it is");
}

fn classes(sandbox: &Sandbox) {
    let classify = |text: &str, parameters: &Value| infer(sandbox, "moods", &[tensor("TEXT", &[text])], parameters);
    let windows = windows(sandbox, "moods", &[tensor("TEXT", &[LONG])], LONG, &json!({}));
    let rows: Vec<_> = windows.iter().map(|window| classify(&window.text, &json!({})).numbers("scores")).collect();
    // The flag asks for windows, and the request for another fold, or for none.
    for (kind, parameters) in [("mean", json!({})), ("max", json!({"fold": "max"}))] {
        let answer = classify(LONG, &parameters);
        assert_close(&answer.numbers("scores"), &fold(kind, &rows, &windows), 1e-6);
        assert_eq!(header(&answer, "trireme-windows"), windows.len());
    }
    let cut = classify(LONG, &json!({"windows": false}));
    assert_eq!((header(&cut, "trireme-windows"), header(&cut, "trireme-truncated-texts")), (0, 1));
}

fn dialects(sandbox: &Sandbox) {
    let post = |path: &str, body: &Value| sandbox.send(&Request::post(path, body.to_string().into_bytes()));
    let embed = |chunking: Value| {
        post("/openai/v1/embeddings", &json!({"model": "boats", "input": LONG, "chunking": chunking}))
    };
    let over_v2 = |parameters: Value| {
        infer(sandbox, "boats", &[tensor("TEXT", &[LONG])], &parameters).numbers("sentence_embedding")
    };
    let vector = |answer: &Response| {
        assert_eq!(answer.status, 200, "{}", answer.text());
        trireme_e2e::numbers(&answer.json()["data"][0]["embedding"])
    };
    let answer = embed(json!(true));
    assert_close(&vector(&answer), &over_v2(json!({"windows": true})), 1e-6);
    let windows = header(&answer, "trireme-windows");
    assert!(windows > 3);
    let smaller = embed(json!({"fold": "max", "overlap": 1, "max_tokens": 8}));
    let expected = over_v2(json!({"windows": true, "fold": "max", "overlap": 1, "max_tokens": 8}));
    assert_close(&vector(&smaller), &expected, 1e-6);
    assert!(header(&smaller, "trireme-windows") > windows);
    assert_close(&vector(&embed(json!(false))), &over_v2(json!({})), 1e-6);
    let refused = embed(json!({"fold": "median"}));
    assert!(
        refused.status == 400 && refused.text().contains("expected 'mean', 'first', 'max' or 'keep'"),
        "{}",
        refused.text()
    );
    assert_eq!(embed(json!({"size": 8})).status, 400);

    let rerank = |further: Value| {
        let mut body = json!({"model": "ranks", "query": QUERY, "documents": [LONG, SHORT]});
        body.as_object_mut().expect("an object").extend(further.as_object().expect("an object").clone());
        let answer = post("/cohere/v1/rerank", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let results = answer.json()["results"].as_array().expect("a list").clone();
        let of_long = results.iter().find(|result| result["index"] == json!(0)).expect("a score");
        (
            of_long["relevance_score"].as_f64().expect("a number") as f32,
            header(&answer, "trireme-windows"),
            header(&answer, "trireme-truncated-texts"),
        )
    };
    let score = |parameters: Value| {
        infer(sandbox, "ranks", &[tensor("TEXT", &[QUERY]), tensor("TEXT_PAIR", &[LONG])], &parameters)
            .numbers("scores")[0]
    };
    let close = |(found, windows, cut): (f32, usize, usize), expected: (f32, usize, usize)| {
        assert_close(&[found], &[expected.0], 1e-6);
        assert_eq!((windows, cut), (expected.1, expected.2));
    };
    let whole = score(json!({"windows": true}));
    let all = rerank(json!({"max_chunks_per_doc": 10})).1;
    assert!(all > 3);
    close(rerank(json!({"max_chunks_per_doc": 10})), (whole, all, 0));
    close(rerank(json!({"max_chunks_per_doc": 2})), (score(json!({"windows": true, "max_windows": 2})), 2, 1));
    close(rerank(json!({"max_chunks_per_doc": 1})), (score(json!({})), 0, 1));
    close(rerank(json!({"max_tokens_per_doc": 4096})), (whole, all, 0));
    close(rerank(json!({})), (score(json!({})), 0, 1));
}

fn refusals(sandbox: &Sandbox) {
    let embed = |text: &str, parameters: Value| infer(sandbox, "boats", &[tensor("TEXT", &[text])], &parameters);
    let refused = |answer: Response, expected: &str| {
        assert!([400, 501].contains(&answer.status) && answer.text().contains(expected), "{}", answer.text());
    };
    refused(embed(&"the sea ".repeat(2000), json!({"windows": true})), " windows of 14 tokens, expected at most 128");
    refused(embed(LONG, json!({"windows": true, "overlap": 8})), "parameter 'overlap' is 8, expected at most 7");
    refused(
        embed(LONG, json!({"windows": true, "fold": "median"})),
        "parameter 'fold' is 'median', expected 'mean', 'first', 'max' or 'keep'",
    );
    let by_hand = infer(sandbox, "tiny_embedding", &[tensor("TEXT", &[LONG])], &json!({"windows": true}));
    refused(by_hand, "but this model does not fold those of a text");
    let by_hand = infer(sandbox, "tiny_embedding", &[tensor("TEXT", &[LONG])], &json!({"fold": "max"}));
    refused(by_hand, "no op of this model folds the windows of a text");
    // As many windows as there may be.
    let most = embed(&"the sea ".repeat(600), json!({"windows": true, "overlap": 0}));
    assert!((80..=128).contains(&header(&most, "trireme-windows")), "{}", most.text());
}
