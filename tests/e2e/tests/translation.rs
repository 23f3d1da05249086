//! Translation: text to text through tokenizer, generation and decoding, with the small trained model of the examples.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{Mode, ModelFolder, Request, Sandbox, Setup, Stage, in_one_mode, load, workspace};

in_one_mode!(number_words_are_translated, a_translation_comes_piece_by_piece, what_is_wrong_is_named);

/// English, and the same in Swahili.
const NUMBERS: [(&str, &str); 5] = [
    ("seven", "saba"),
    ("forty-two", "arobaini na mbili"),
    ("one hundred and five", "mia moja na tano"),
    ("two thousand nine hundred and thirty-one", "elfu mbili mia tisa thelathini na moja"),
    ("nine thousand nine hundred and ninety-nine", "elfu tisa mia tisa tisini na tisa"),
];

fn examples() -> ModelFolder {
    ModelFolder::copy_of(&workspace().join("examples/translation"))
}

/// The example with a generator that answers in parts.
fn in_parts() -> ModelFolder {
    let read = |model: &str| {
        let path = workspace().join("examples/translation").join(model).join("config.pbtxt");
        std::fs::read_to_string(path).expect("the example has its configuration")
    };
    let generator = read("generator")
        + "model_transaction_policy { decoupled: true }
           output [ { name: 'emitted' data_type: TYPE_INT64 dims: [ -1, 1 ] },
                    { name: 'final' data_type: TYPE_BOOL dims: [ 1 ] } ]";
    let decode = read("decode")
        + "input [ { name: 'emitted' data_type: TYPE_INT64 dims: [ -1, 1 ] optional: true },
                   { name: 'final' data_type: TYPE_BOOL dims: [ 1 ] optional: true } ]";
    let indices = "{ key: \"generated_indices\" value: \"generated_indices\" }";
    let both = |map: &str| {
        format!("{map} {indices} {map} {{ key: 'emitted' value: 'emitted' }} {map} {{ key: 'final' value: 'final' }}")
    };
    let ensemble = read("translation");
    let ensemble = ["input_map", "output_map"]
        .into_iter()
        .fold(ensemble, |text, map| text.replace(&format!("{map} {indices}"), &both(map)));
    examples()
        .file("generator/config.pbtxt", generator)
        .file("decode/config.pbtxt", decode)
        .file("translation/config.pbtxt", ensemble)
}

fn request(texts: &[&str], languages: Option<(&str, &str)>) -> Value {
    let mut body = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [texts.len()], "data": texts}]});
    if let Some((source, target)) = languages {
        body["parameters"] = json!({"source_language": source, "target_language": target});
    }
    body
}

#[track_caller]
fn translate(sandbox: &Sandbox, texts: &[&str], languages: Option<(&str, &str)>) -> Value {
    sandbox.infer("translation", &request(texts, languages)).output("translation")["data"].clone()
}

fn number_words_are_translated(mode: Mode) {
    let sandbox = Setup::new(mode).repository(&workspace().join("examples/translation")).shared();
    let (english, swahili): (Vec<_>, Vec<_>) = NUMBERS.into_iter().unzip();
    for (english, swahili) in NUMBERS {
        assert_eq!(translate(&sandbox, &[english], None), json!([swahili]));
    }
    assert_eq!(translate(&sandbox, &english, None), json!(swahili), "together");
    assert_eq!(translate(&sandbox, &swahili, Some(("sw", "en"))), json!(english), "and back");
}

fn what_is_wrong_is_named(mode: Mode) {
    let sandbox = Setup::new(mode).repository(&workspace().join("examples/translation")).shared();
    let answer = sandbox.infer("translation", &request(&["seven"], Some(("en", "fr-FR"))));
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.error().contains("'fr-FR'"), "{}", answer.error());
    let mut body = request(&["seven"], None);
    body["parameters"] = json!({"num_beams": -3});
    let answer = sandbox.infer("translation", &body);
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.error().contains("num_beams"), "{}", answer.error());
}

/// The pieces of text in a stream.
fn pieces(sandbox: &Sandbox, text: &str) -> Vec<String> {
    let request = Request::post("/v2/models/translation/generate_stream", json!({"TEXT": text}).to_string());
    let stream = request.start(sandbox.address).expect("the server listens");
    let mut pieces = Vec::new();
    for line in BufReader::new(stream).lines() {
        let line = line.expect("an answer in time");
        if let Some(event) = line.strip_prefix("data: ") {
            let event: Value = serde_json::from_str(event).expect("events are JSON");
            assert!(event["error"].is_null(), "{event}");
            pieces.push(event["translation"].as_str().expect("each event has its piece").to_owned());
        }
    }
    pieces
}

fn a_translation_comes_piece_by_piece(mode: Mode) {
    let sandbox = Setup::new(mode).repository(in_parts().path()).start();
    for (english, swahili) in NUMBERS {
        let pieces = pieces(&sandbox, english);
        assert_eq!(pieces.concat(), swahili, "{pieces:?}");
        let words = swahili.split(' ').count();
        assert!(pieces.iter().filter(|piece| !piece.is_empty()).count() >= words, "{pieces:?}");
    }
    let refused = sandbox.infer("translation", &request(&["seven"], None));
    assert!(refused.error().contains("decoupled"), "{}", refused.error());
}

/// Streams and whole answers while one of two workers is killed: its requests run again in the other worker, no piece
/// is missing, and none comes twice.
#[test]
fn a_worker_that_is_killed_in_the_middle_is_not_noticed() {
    const REQUESTS: usize = 400;
    let models = in_parts();
    let mut sandbox = Setup::new(Mode::Services)
        .repository(models.path())
        .replicas(Stage::Model, 2)
        .queue_arguments(&["--ack-wait-ms", "500"])
        .start();
    let mut killed = sandbox.take_worker(Stage::Model, 1);
    let ask = |number: usize| {
        let (english, swahili) = NUMBERS[number % NUMBERS.len()];
        assert_eq!(pieces(&sandbox, english).concat(), swahili);
    };
    let kill = || {
        // Halted first, so that it holds deliveries when it is killed.
        killed.pause();
        std::thread::sleep(Duration::from_millis(300));
        killed.kill();
    };
    let outcome = load(REQUESTS, 32, ask, kill);
    outcome.assert_all_right(REQUESTS);
    let slowest = outcome.slowest;
    assert!(slowest > Duration::from_millis(250), "nothing was run again: the slowest took {slowest:?}");
}
