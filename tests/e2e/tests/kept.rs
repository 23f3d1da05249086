//! Long texts whose windows keep their rows (`fold` is `keep`): a vector or scores for each window, with the characters that it stands for.

use std::fs;

use serde_json::{Value, json};
use trireme_e2e::{Mode, Request, Response, Sandbox, Setup, product};
use trireme_testkit::assert_close;

use crate::folds::{LONG, QUERY, header, infer, tensor};

/// Parts of texts: sentences, scripts without spaces, emoji of several code points, letters with marks.
const PARTS: [&str; 8] = [
    "The crew is on the ship. ",
    "Who beats the drum? The captain! ",
    "the sea ",
    "東京は日本の首都です。",
    "กรุงเทพมหานคร ",
    "👩\u{200d}👩\u{200d}👧🇰🇪🙂 ",
    "e\u{301}\u{302}te\u{301} नि ",
    "İstanbul ﬁne ",
];

/// A row of an answer: its text, the number of the window there, its first character and the one after its last.
type Place = (usize, usize, usize, usize);

/// The windows of an answer over v2.
fn places(answer: &Response) -> Vec<Place> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let numbers: Vec<usize> = answer.numbers("windows").iter().map(|&number| number as usize).collect();
    let mut places = Vec::<Place>::new();
    for row in numbers.chunks(6) {
        let before = places.last().filter(|before| before.0 == row[0]);
        places.push((row[0], before.map_or(0, |before| before.1 + 1), row[1], row[2]));
    }
    places
}

fn characters(text: &str, (_, _, start, end): Place) -> String {
    text.chars().skip(start).take(end - start).collect()
}

/// Whether a window begins with the second half of a word: it keeps the tokens of the whole word, which its characters alone do not have.
fn begins_within_a_word(text: &str, (_, _, start, _): Place) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic() || ('\u{c0}'..='\u{36f}').contains(&c);
    let around: Vec<char> = text.chars().skip(start.saturating_sub(1)).take(2).collect();
    start > 0 && around.iter().all(|&c| is_letter(c))
}

/// Texts of no part up to forty of them.
fn texts(random: &mut fastrand::Rng, count: usize) -> Vec<String> {
    let text = |random: &mut fastrand::Rng| {
        let parts = if random.bool() { random.usize(..3) } else { random.usize(..40) };
        (0..parts).map(|_| PARTS[random.usize(..PARTS.len())]).collect::<String>()
    };
    (0..count).map(|_| text(random)).collect()
}

/// Asks the models `boats`, `ranks` and `moods`.
pub fn windows_are_kept(sandbox: &Sandbox) {
    a_window_has_the_vector_of_its_characters(sandbox);
    openai_clients_get_an_entry_for_each_window(sandbox);
    scores_of_windows(sandbox);
    limits(sandbox);
}

fn a_window_has_the_vector_of_its_characters(sandbox: &Sandbox) {
    let mut random = fastrand::Rng::with_seed(62);
    for overlap in [0, 3, 7] {
        let texts = texts(&mut random, 24);
        let given: Vec<&str> = texts.iter().map(String::as_str).collect();
        let asked = json!({"windows": true, "fold": "keep", "overlap": overlap});
        let answer = infer(sandbox, "boats", &[tensor("TEXT", &given)], &asked);
        let places = places(&answer);
        assert!(places.len() > 2 * texts.len(), "{} windows", places.len());
        assert_eq!(places.last().map(|place| place.0 + 1), Some(texts.len()), "each text has its windows");
        let alone: Vec<String> = places.iter().map(|&place| characters(&texts[place.0], place)).collect();
        let alone: Vec<&str> = alone.iter().map(String::as_str).collect();
        let plain = infer(sandbox, "boats", &[tensor("TEXT", &alone)], &json!({}));
        assert_eq!(plain.header("trireme-truncated-texts"), None);
        let [kept, plain] = [&answer, &plain].map(|answer| answer.numbers("sentence_embedding"));
        assert_eq!(kept.len(), plain.len());
        let mut same = 0;
        for (row, &place) in places.iter().enumerate() {
            if !begins_within_a_word(&texts[place.0], place) {
                assert_close(&kept[8 * row..8 * row + 8], &plain[8 * row..8 * row + 8], 1e-6);
                same += 1;
            }
        }
        assert!(10 * same > 9 * places.len(), "{same} of {} windows begin with a word", places.len());
        let outputs: Vec<Value> = answer.json()["outputs"].as_array().expect("outputs").clone();
        let of = |name: &str| outputs.iter().find(|output| output["name"] == name).expect("an output").clone();
        assert_eq!(of("sentence_embedding")["shape"], json!([places.len(), 8]));
        let windows = of("windows");
        assert_eq!((&windows["datatype"], &windows["shape"]), (&json!("INT64"), &json!([places.len(), 6])));
    }
    // The client names its output, and cuts its vectors; a text that is cut has one row.
    let body = json!({"parameters": {"windows": true, "fold": "keep", "dimensions": 4},
        "inputs": [tensor("TEXT", &["the sea", LONG])], "outputs": [{"name": "sentence_embedding"}]});
    let answer = sandbox.infer("boats", &body);
    assert_eq!(answer.numbers("sentence_embedding").len(), 4 * places(&answer).len());
    let cut = infer(sandbox, "boats", &[tensor("TEXT", &["the sea", LONG])], &json!({"fold": "keep"}));
    assert_eq!(places(&cut).len(), 2);
    assert_eq!(cut.header("trireme-truncated-texts"), Some("1"));
}

/// More texts than a message has: the rows of each travel with their text.
fn openai_clients_get_an_entry_for_each_window(sandbox: &Sandbox) {
    let mut random = fastrand::Rng::with_seed(63);
    let texts: Vec<String> = texts(&mut random, 100).into_iter().filter(|text| !text.trim().is_empty()).collect();
    let given: Vec<&str> = texts.iter().map(String::as_str).collect();
    let asked = json!({"windows": true, "fold": "keep", "overlap": 2, "max_tokens": 12});
    let over_v2 = infer(sandbox, "boats", &[tensor("TEXT", &given)], &asked);
    let (expected, vectors) = (places(&over_v2), over_v2.numbers("sentence_embedding"));
    for path in ["/openai/v1/embeddings", "/infinity/embeddings", "/tei/v1/embeddings"] {
        let chunking = json!({"fold": "keep", "overlap": 2, "max_tokens": 12});
        let body = json!({"model": "boats", "input": texts, "chunking": chunking});
        let answer = sandbox.send(&Request::post(path, body.to_string().into_bytes()));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let json = answer.json();
        let data = json["data"].as_array().expect("a list");
        let number = |entry: &Value, name: &str| entry[name].as_u64().expect("a number") as usize;
        let place = |entry: &Value| {
            (number(entry, "index"), number(entry, "window"), number(entry, "start"), number(entry, "end"))
        };
        assert_eq!(data.iter().map(place).collect::<Vec<_>>(), expected, "{path}");
        let found: Vec<f32> = data.iter().flat_map(|entry| trireme_e2e::numbers(&entry["embedding"])).collect();
        assert_close(&found, &vectors, 1e-6);
        assert_eq!(header(&answer, "trireme-windows"), header(&over_v2, "trireme-windows"));
    }
}

fn scores_of_windows(sandbox: &Sandbox) {
    let asked = json!({"windows": true, "fold": "keep"});
    let moods = infer(sandbox, "moods", &[tensor("TEXT", &["the sea", LONG])], &asked);
    let scores = moods.numbers("scores");
    let windows = places(&moods);
    for (row, &place) in windows.iter().enumerate() {
        let text = characters(["the sea", LONG][place.0], place);
        let alone = infer(sandbox, "moods", &[tensor("TEXT", &[&text])], &json!({})).numbers("scores");
        let width = scores.len() / windows.len();
        assert_close(&scores[row * width..(row + 1) * width], &alone, 1e-6);
    }
    let pair = [tensor("TEXT", &[QUERY]), tensor("TEXT_PAIR", &[LONG])];
    let ranks = infer(sandbox, "ranks", &pair, &asked);
    let best = infer(sandbox, "ranks", &pair, &json!({"windows": true})).numbers("scores")[0];
    let scores = ranks.numbers("scores");
    assert_eq!(scores.len(), places(&ranks).len());
    assert_close(&[scores.iter().copied().fold(f32::NEG_INFINITY, f32::max)], &[best], 1e-6);
}

fn limits(sandbox: &Sandbox) {
    let endless = "the sea ".repeat(2000);
    let refused = infer(sandbox, "boats", &[tensor("TEXT", &[&endless])], &json!({"windows": true, "fold": "keep"}));
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains(" windows of 14 tokens, expected at most 128"), "{}", refused.text());
}

#[test]
fn a_model_may_keep_windows_by_its_configuration() {
    let (model, models) = (crate::folders::tiny(), tempfile::tempdir().expect("a temporary folder"));
    let mut init = product("trireme");
    init.arg("init").arg(format!("boats={}", model.path().display())).arg(models.path());
    assert!(init.output().expect("the command runs").status.success());
    let change = |model: &str, change: &dyn Fn(String) -> String| {
        let config = models.path().join(model).join("config.pbtxt");
        let text = fs::read_to_string(&config).expect("the model has a configuration");
        fs::write(config, change(text)).expect("the configuration is written");
    };
    change("boats_postprocess", &|text| text.replace("fold:mean", "fold:keep"));
    let windows = "parameters { key: 'long_texts' value { string_value: 'windows' } }";
    change("boats_tokenizer", &|text| format!("{text}\n{windows}\n"));
    let sandbox = Setup::new(Mode::AllInOne).repository(models.path()).start();
    let embed = |parameters: Value| infer(&sandbox, "boats", &[tensor("TEXT", &["the sea", LONG])], &parameters);
    let kept = embed(json!({}));
    assert!(places(&kept).len() > 4, "{}", kept.text());
    // The vectors are the first output, as without windows.
    assert_eq!(kept.json()["outputs"][0]["name"], "sentence_embedding");
    // A request has the last word.
    let folded = embed(json!({"fold": "mean"}));
    assert_eq!(folded.json()["outputs"].as_array().expect("outputs").len(), 1);
    assert_eq!(folded.numbers("sentence_embedding").len(), 2 * 8);

    let post = |path: &str, body: Value| sandbox.send(&Request::post(path, body.to_string().into_bytes()));
    let entries = post("/openai/v1/embeddings", json!({"model": "boats", "input": ["the sea", LONG]})).json();
    assert_eq!(entries["data"].as_array().expect("a list").len(), places(&kept).len());
    // A route that has one vector for a text answers a short one, and refuses a long one.
    let short = post("/tei/embed", json!({"inputs": ["the sea"]})).json();
    assert_close(&trireme_e2e::numbers(&short[0]), &kept.numbers("sentence_embedding")[..8], 1e-6);
    let refused = post("/tei/embed", json!({"inputs": ["the sea", LONG]}));
    assert!(
        (400..500).contains(&refused.status)
            && refused.text().contains("keeps a row for each window of text 1, expected one for the text"),
        "{}",
        refused.text()
    );
}
