//! Jina's `late_chunking`: the texts of a request are read as one, and each has the vectors of its own tokens.

use serde_json::{Value, json};
use trireme_e2e::{Mode, Sandbox, Setup, answer, ask, in_one_mode, numbers, texts_repository};
use trireme_testkit::assert_close;

in_one_mode!(texts_of_a_request_are_parts_of_one_document);

fn body(texts: &[&str], more: Value) -> Value {
    let mut body = json!({"model": "token_vectors", "input": texts});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

fn rows(answer: &Value, member: &str) -> Vec<Vec<f32>> {
    answer["data"].as_array().expect("a list").iter().map(|row| numbers(&row[member])).collect()
}

/// The vectors of each text's tokens.
fn tokens(sandbox: &Sandbox, texts: &[&str], late: bool) -> Vec<Vec<Vec<f32>>> {
    let found = answer(sandbox, "/jina/v1/multi-vector", body(texts, json!({"late_chunking": late})));
    let text = |row: &Value| row["embeddings"].as_array().expect("a list").iter().map(numbers).collect();
    found["data"].as_array().expect("a list").iter().map(text).collect()
}

fn mean(tokens: &[Vec<f32>]) -> Vec<f32> {
    let sum = |at: usize| tokens.iter().map(|token| f64::from(token[at])).sum::<f64>();
    (0..tokens[0].len()).map(|at| (sum(at) / tokens.len() as f64) as f32).collect()
}

fn of_length_one(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
    vector.iter().map(|number| number / length).collect()
}

fn texts_of_a_request_are_parts_of_one_document(mode: Mode) {
    let sandbox = Setup::new(mode).repository(&texts_repository()).shared();
    let embed = |texts: &[&str], more: Value| answer(&sandbox, "/jina/v1/embeddings", body(texts, more));
    for texts in [
        &["the oar", "is on the ship", "storm"][..],
        &["東京は", "日本 🙂", "e\u{301}te\u{301}", "👩\u{200d}👩\u{200d}👧"],
        &["the oar is on the ship"],
    ] {
        let whole = tokens(&sandbox, &[&texts.join(" ")], false).remove(0);
        let parts = tokens(&sandbox, texts, true);
        assert_eq!(parts.len(), texts.len());
        assert_close(&parts.concat().concat(), &whole.concat(), 1e-6);
        let expected: Vec<Vec<f32>> = parts.iter().map(|part| mean(part)).collect();
        let plain = rows(&embed(texts, json!({"late_chunking": true, "normalized": false})), "embedding");
        assert_close(&plain.concat(), &expected.concat(), 1e-5);
        let scaled = rows(&embed(texts, json!({"late_chunking": true})), "embedding");
        let expected: Vec<Vec<f32>> = expected.iter().map(|vector| of_length_one(vector)).collect();
        assert_close(&scaled.concat(), &expected.concat(), 1e-5);
    }
    // The first text has the token before it, and the last one the token behind it.
    let counts: Vec<usize> = tokens(&sandbox, &["the oar", "the ship"], true).iter().map(Vec::len).collect();
    assert_eq!(counts, [3, 3]);
    // A text has other vectors beside others, and alone those of vLLM's late chunking.
    let beside = rows(&embed(&["the oar", "storm"], json!({"late_chunking": true})), "embedding");
    let alone = rows(&embed(&["the oar"], json!({"late_chunking": true})), "embedding");
    assert!(beside[0].iter().zip(&alone[0]).any(|(one, other)| (one - other).abs() > 1e-4), "{beside:?} {alone:?}");
    let chunked = answer(
        &sandbox,
        "/vllm/v1/embeddings",
        body(&["the oar"], json!({"late_chunking_params": {"chunk_size": 64}})),
    );
    assert_close(&numbers(&chunked["data"][0]["embedding"][0]), &alone[0], 1e-5);
    // Fewer numbers, and bytes.
    let bytes =
        rows(&embed(&["the oar", "storm"], json!({"late_chunking": true, "embedding_type": "int8"})), "embedding");
    assert!(bytes.iter().flatten().all(|byte| byte.fract() == 0.0 && byte.abs() <= 127.0), "{bytes:?}");

    let refused = |body: Value, expected: &str| {
        for path in ["/jina/v1/embeddings", "/jina/v1/multi-vector"] {
            let found = ask(&sandbox, path, &body);
            assert!((400..500).contains(&found.status) && found.text().contains(expected), "{path}: {}", found.text());
        }
    };
    let late = json!({"late_chunking": true});
    let long = "the oar is on the ship ".repeat(9);
    refused(body(&[&long, "storm"], late.clone()), "'late_chunking' reads the 2 texts of a request as one: it has ");
    refused(body(&[&long, "storm"], late.clone()), "; send fewer texts at a time, or leave it out");
    refused(body(&["the oar", ""], late.clone()), "'late_chunking' is for texts that are not empty");
    refused(body(&["the oar", "\u{200b}", "storm"], late.clone()), "text 1 has none between the others");
    let mut other = body(&["the oar"], late);
    other["model"] = json!("embedding");
    refused(other, "'late_chunking' needs a model with a vector for each token, and 'embedding' has one for a text");
}
