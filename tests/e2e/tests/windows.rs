//! Texts that are longer than the model's longest row: their entities are found wherever they are.

use serde_json::{Value, json};
use trireme_e2e::{Mode, Request, Response, Sandbox, Setup, in_one_mode, workspace};

in_one_mode!(an_entity_is_found_behind_any_text);

/// Texts before an entity: sentences, scripts without spaces, emoji of several code points, letters with marks.
const BEFORE: [&str; 9] = [
    "The crew is on the ship, and the sea is calm. ",
    "Who beats the drum? The captain! ",
    "incomprehensibilities ",
    "東京は日本の首都です。",
    "กรุงเทพมหานคร ",
    "👩\u{200d}👩\u{200d}👧🇰🇪🙂 ",
    "e\u{301}\u{302}te\u{301} नि ",
    "İstanbul'da ﬁne ",
    "\n\n\t",
];

/// Texts with names, in a model whose rows have 32 tokens.
const TEXTS: [&str; 4] = [
    "Wanjiru is in Addis Ababa.",
    "Amina",
    "From Nairobi to Mombasa and Addis Ababa, with Wanjiru and Amina on the boat.",
    "Addis Ababa Addis Ababa Addis Ababa Addis Ababa Addis Ababa Addis Ababa Addis Ababa Addis Ababa Addis Ababa Addis Ababa",
];

fn post(sandbox: &Sandbox, path: &str, body: &Value) -> Response {
    sandbox.send(&Request::post(path, body.to_string().into_bytes()))
}

fn entities(sandbox: &Sandbox, text: &str, parameters: Value) -> Vec<Value> {
    let answer = post(sandbox, "/tei/names", &json!({"inputs": text, "parameters": parameters}));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("trireme-truncated-texts"), None, "nothing is cut");
    answer.json().as_array().expect("a list").clone()
}

/// Entities so many characters further on, with their scores in few digits.
fn moved(entities: &[Value], by: usize) -> Vec<Value> {
    let moved = |entity: &Value| {
        let mut entity = entity.clone();
        for place in ["start", "end"] {
            entity[place] = json!(entity[place].as_u64().expect("a number") + by as u64);
        }
        entity["score"] = json!(format!("{:.5}", entity["score"].as_f64().expect("a number")));
        entity
    };
    entities.iter().map(moved).collect()
}

fn an_entity_is_found_behind_any_text(mode: Mode) {
    let named = format!("names={}", workspace().join("examples/folders/names").display());
    let mut setup = Setup::new(mode).worker_arguments(&["--model", &named]);
    if setup.is_services() {
        setup = setup.gateway_arguments(&["--model", &named]);
    }
    let sandbox = setup.start();
    let mut random = fastrand::Rng::with_seed(62);
    for case in 0..120 {
        let text = TEXTS[random.usize(..TEXTS.len())];
        // 10 kB, of no more tokens than 128 windows take.
        let most = if case % 4 == 0 { 10_240 } else { random.usize(..2_000) };
        let only = (case % 4 == 0).then_some(BEFORE[2]);
        let mut before = String::new();
        while before.len() < most {
            before.push_str(only.unwrap_or_else(|| BEFORE[random.usize(..BEFORE.len())]));
        }
        let strategy = ["simple", "first", "average", "max"][random.usize(..4)];
        let parameters = json!({"aggregation_strategy": strategy, "stride": random.usize(..14)});
        let alone = entities(&sandbox, text, json!({"aggregation_strategy": strategy}));
        assert!(!alone.is_empty());
        let shift = before.chars().count();
        let found = entities(&sandbox, &format!("{before} {text}"), parameters);
        assert_eq!(moved(&found, 0), moved(&alone, shift + 1), "case {case}: {strategy}, {text:?} behind {before:?}");
    }

    // Over v2, with a row for each text, and cut where the request wants that.
    let long = format!("{}Wanjiru", BEFORE[0].repeat(8));
    let ask = |parameters: Value| {
        let texts = json!({"name": "TEXT", "datatype": "BYTES", "shape": [3], "data": ["Amina", long, ""]});
        post(&sandbox, "/v2/models/names/infer", &json!({"parameters": parameters, "inputs": [texts]}))
    };
    let rows = |answer: &Response| {
        assert_eq!(answer.status, 200, "{}", answer.text());
        let rows = answer.json()["outputs"][0]["data"].as_array().expect("rows").clone();
        let count = |row: &Value| {
            let row: Vec<Value> = serde_json::from_str(row.as_str().expect("a text")).expect("JSON");
            row.len()
        };
        rows.iter().map(count).collect::<Vec<_>>()
    };
    assert_eq!(rows(&ask(json!({}))), [1, 1, 0]);
    let cut = ask(json!({"windows": false}));
    assert_eq!((rows(&cut), cut.header("trireme-truncated-texts")), (vec![1, 0, 0], Some("1")));
    let numbered = ask(json!({"aggregation_strategy": "none"})).json();
    let entity: Vec<Value> =
        serde_json::from_str(numbered["outputs"][0]["data"][1].as_str().expect("a text")).expect("JSON");
    // 8 sentences of 13 tokens each, behind [CLS].
    assert_eq!((&entity[0]["word"], &entity[0]["index"]), (&json!("wanjiru"), &json!(8 * 13 + 1)));

    let refused = |answer: Response, expected: &str| {
        assert!((400..500).contains(&answer.status) && answer.text().contains(expected), "{}", answer.text());
    };
    refused(ask(json!({"overlap": 16})), "parameter 'overlap' is 16, expected at most 15");
    let endless = json!({"inputs": "the crew ".repeat(4000)});
    refused(post(&sandbox, "/tei/names", &endless), "expected at most 128: send it in parts");
}
