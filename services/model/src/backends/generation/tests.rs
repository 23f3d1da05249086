//! Answers equal those of transformers' `generate()`, token for token (tests/models/generation.py wrote both models and
//! answers). Also requests that join, leave, come in parts and fail.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};
use trireme_engine::{Backend, ExecuteRequest, Instance, LoadedModel, ModelSource, Progress, StepwiseInstance, Ticket};
use trireme_inference::{ErrorCode, InferError, ParameterValue, Parameters, Tensor};
use trireme_model_repository::ModelConfig;

use trireme_generation::{EMITTED, FINAL, GENERATED, SCORES};

use super::*;
use crate::backends::conformance;

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
    options: Vec<Options>,
}

#[derive(Deserialize)]
struct Case {
    input: Vec<i64>,
    forced_bos_token_id: Option<i64>,
    greedy: Vec<i64>,
    beams: Vec<i64>,
}

#[derive(Deserialize)]
struct Options {
    options: Map<String, Value>,
    samples: Vec<Sample>,
}

#[derive(Deserialize)]
struct Sample {
    input: Vec<i64>,
    sequences: Vec<Vec<i64>>,
    scores: Vec<Option<f32>>,
}

const LAYOUTS: [&str; 3] = ["merged", "with_past", "without_past"];

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/generation")
}

fn golden(file: &str) -> Golden {
    serde_json::from_str(&std::fs::read_to_string(models().join(file)).unwrap()).unwrap()
}

/// The directory of a version; NLLB uses M2M100's graphs.
fn version(architecture: &str) -> (PathBuf, Option<tempfile::TempDir>) {
    if architecture != "nllb" {
        return (models().join(architecture), None);
    }
    let directory = tempfile::tempdir().unwrap();
    for graph in ["encoder_model", "decoder_model", "decoder_with_past_model", "decoder_model_merged"] {
        let file = format!("{graph}.onnx");
        std::fs::copy(models().join("m2m100").join(&file), directory.path().join(&file)).unwrap();
    }
    std::fs::copy(models().join("m2m100/config.json"), directory.path().join("config.json")).unwrap();
    let own = models().join("nllb/generation_config.json");
    std::fs::copy(own, directory.path().join("generation_config.json")).unwrap();
    (directory.path().to_owned(), Some(directory))
}

fn load_from(version_path: &Path, parameters: &[(&str, &str)]) -> Result<LoadedModel, String> {
    let parameter =
        |(key, value): &(&str, &str)| format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }} ");
    // One thread, because the tests of a process run in parallel.
    let text = format!("backend: 'generation' {}", parameters.iter().map(parameter).collect::<String>());
    load_config(version_path, &format!("{text} {}", parameter(&("intra_op_thread_count", "1"))))
}

fn load_config(version_path: &Path, text: &str) -> Result<LoadedModel, String> {
    let config = ModelConfig::parse(text, "m").unwrap();
    let source = ModelSource {
        config: &config,
        version: 1,
        model_path: version_path,
        version_path,
        auto_complete: true,
        uploaded: None,
        calls: Default::default(),
    };
    generation(OnnxRuntimeOptions::default()).load(&source).map_err(|error| error.to_string())
}

fn instance(architecture: &str, parameters: &[(&str, &str)]) -> Box<dyn StepwiseInstance> {
    let (path, _kept) = version(architecture);
    match load_from(&path, parameters).unwrap().instances.remove(0) {
        Instance::Stepwise(instance) => instance,
        Instance::Batch(_) => panic!("generation works step by step"),
    }
}

fn text(ids: &[i64]) -> Vec<Tensor> {
    vec![Tensor::from_values("input_ids", [1, ids.len() as i64], ids.to_vec()).unwrap()]
}

fn request(inputs: &[Tensor], options: &[(&str, Value)]) -> ExecuteRequest {
    let parameter = |(name, value): &(&str, Value)| {
        let value = match value {
            Value::Bool(value) => ParameterValue::Bool(*value),
            Value::Number(number) if number.is_i64() => ParameterValue::Int64(number.as_i64().unwrap()),
            Value::Number(number) => ParameterValue::Double(number.as_f64().unwrap()),
            Value::String(text) => ParameterValue::from(text.as_str()),
            list => ParameterValue::String(list.to_string()),
        };
        ((*name).to_owned(), value)
    };
    let parameters: Parameters = options.iter().map(parameter).collect();
    ExecuteRequest { parameters: Arc::new(parameters), ..conformance::request(inputs, &[GENERATED]) }
}

/// The request of a golden case, with the language as a parameter or as an input.
fn case_request(architecture: &str, case: &Case, beams: i64, language_as_input: bool) -> ExecuteRequest {
    let mut inputs = text(&case.input);
    let mut options = vec![("num_beams", Value::from(beams))];
    match case.forced_bos_token_id {
        Some(id) if language_as_input => {
            inputs.push(Tensor::from_values("forced_bos_token_id", [1, 1], vec![id]).unwrap());
        }
        Some(id) => options.push(("forced_bos_token_id", Value::from(id))),
        None => {}
    }
    if architecture == "nllb" {
        options.push(("max_new_tokens", Value::from(16)));
    }
    request(&inputs, &options)
}

type Answers = BTreeMap<Ticket, Result<Vec<Tensor>, InferError>>;

/// Runs all requests; each joins as soon as there is room. Returns their answers and the number of steps.
fn run(instance: &mut dyn StepwiseInstance, requests: &[ExecuteRequest]) -> (Answers, usize) {
    let mut answers = Answers::new();
    let mut next = 0;
    for steps in 0..100_000 {
        let room = instance.room();
        for request in requests.iter().skip(next).take(room) {
            if let Err(error) = instance.join(next as Ticket, request.clone()) {
                answers.insert(next as Ticket, Err(error));
            }
            next += 1;
        }
        if answers.len() == requests.len() {
            assert_eq!(instance.room(), room, "nothing is left behind");
            return (answers, steps);
        }
        for (ticket, progress) in instance.step() {
            match progress {
                Progress::Done(result) => {
                    let before = answers.insert(ticket, result.map(|response| response.outputs));
                    assert!(before.is_none(), "one answer for each request");
                }
                Progress::Part(..) => panic!("nobody asked for parts"),
            }
        }
    }
    panic!("the requests do not end");
}

fn run_alone(instance: &mut dyn StepwiseInstance, request: &ExecuteRequest) -> Result<Vec<Tensor>, InferError> {
    run(instance, std::slice::from_ref(request)).0.remove(&0).unwrap()
}

fn ids(outputs: &[Tensor]) -> Vec<Vec<i64>> {
    let generated = outputs.iter().find(|output| output.name() == GENERATED).unwrap();
    let length = generated.shape()[1] as usize;
    generated.values::<i64>().unwrap().chunks(length).map(<[i64]>::to_vec).collect()
}

fn expect_all(architecture: &str, parameters: &[(&str, &str)], cases: &[Case], alone: bool) {
    let mut instance = instance(architecture, parameters);
    for beams in [1, 4] {
        let requests: Vec<_> = cases.iter().map(|case| case_request(architecture, case, beams, !alone)).collect();
        let answers = match alone {
            true => (0..).zip(&requests).map(|(i, request)| (i, run_alone(instance.as_mut(), request))).collect(),
            false => run(instance.as_mut(), &requests).0,
        };
        for (case, answer) in cases.iter().zip(answers.values()) {
            let expected = if beams == 1 { &case.greedy } else { &case.beams };
            let answer = ids(answer.as_ref().unwrap());
            assert_eq!(
                answer,
                std::slice::from_ref(expected),
                "{architecture} {parameters:?}, {beams} beams, {:?}",
                case.input
            );
        }
    }
}

fn expect_transformers(architecture: &str) {
    let golden = golden(&format!("{architecture}/golden.json"));
    assert!(golden.cases.len() >= 200, "{architecture}");
    expect_all(architecture, &[], &golden.cases, true);
    for layout in LAYOUTS {
        expect_all(architecture, &[("decoder", layout)], &golden.cases, false);
        expect_all(architecture, &[("decoder", layout)], &golden.cases[..10], true);
    }
}

#[test]
fn a_row_that_names_no_language_begins_as_the_model_says() {
    let mut instance = instance("m2m100", &[("forced_bos_token_id", "7"), ("max_length", "6")]);
    let named = |id: i64| {
        let forced = Tensor::from_values("forced_bos_token_id", [1, 1], vec![id]).unwrap();
        request(&[text(&[5, 6, 2]), vec![forced]].concat(), &[])
    };
    let mut first = |request| ids(&run_alone(instance.as_mut(), &request).unwrap())[0][1];
    assert_eq!((first(named(-1)), first(named(9)), first(request(&text(&[5, 6, 2]), &[]))), (7, 9, 7));
}

#[test]
fn m2m100_is_transformers() {
    expect_transformers("m2m100");
}

#[test]
fn marian_is_transformers() {
    expect_transformers("marian");
}

#[test]
fn t5_is_transformers() {
    expect_transformers("t5");
}

#[test]
fn bart_is_transformers() {
    expect_transformers("bart");
}

#[test]
fn mbart_is_transformers() {
    expect_transformers("mbart");
}

#[test]
fn nllb_is_transformers() {
    expect_transformers("nllb");
}

#[test]
fn a_quantised_model_is_transformers_over_onnx_runtime() {
    let golden = golden("m2m100/golden_quantized.json");
    assert!(golden.cases.len() >= 60);
    let quantised = [("file_suffix", "_quantized"), ("decoder", "with_past")];
    // Run alone, because dynamic quantisation takes its scales from the whole batch.
    expect_all("m2m100", &quantised, &golden.cases, true);
}

#[test]
fn every_option_is_transformers() {
    for architecture in ["m2m100", "bart", "t5"] {
        let golden = golden(&format!("{architecture}/golden.json"));
        assert!(golden.options.len() >= 25);
        for layout in ["merged", "without_past"] {
            let mut instance = instance(architecture, &[("decoder", layout)]);
            for Options { options, samples } in &golden.options {
                let options: Vec<(&str, Value)> =
                    options.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
                let request = |sample: &Sample| ExecuteRequest {
                    outputs: vec![GENERATED.into(), SCORES.into()],
                    ..request(&text(&sample.input), &options)
                };
                let requests: Vec<_> = samples.iter().map(request).collect();
                let (answers, _) = run(instance.as_mut(), &requests);
                for (sample, answer) in samples.iter().zip(answers.values()) {
                    let answer = answer.as_ref().unwrap();
                    let about = format!("{architecture} {layout} {options:?} {:?}", sample.input);
                    let found = ids(answer);
                    assert_eq!(found.len(), sample.sequences.len(), "{about}");
                    for (found, expected) in found.iter().zip(&sample.sequences) {
                        assert_eq!(found[..expected.len()], expected[..], "{about}");
                        let pad = if architecture == "t5" { 0 } else { 1 };
                        assert!(found[expected.len()..].iter().all(|&id| id == pad), "{about}");
                    }
                    let scores = answer[1].values::<f32>().unwrap();
                    for (found, expected) in scores.iter().zip(sample.scores.iter().flatten()) {
                        assert!(
                            (found - expected).abs() < 5e-3 * expected.abs().max(1.0),
                            "{about}: {found} {expected}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn one_request_may_hold_texts_of_several_lengths() {
    let golden = golden("bart/golden.json");
    let cases = &golden.cases[..40];
    let longest = cases.iter().map(|case| case.input.len()).max().unwrap();
    let (mut all, mut mask) = (Vec::new(), Vec::new());
    for (index, case) in cases.iter().enumerate() {
        all.extend_from_slice(&case.input);
        all.resize((index + 1) * longest, 1);
        mask.extend(std::iter::repeat_n(1, case.input.len()));
        mask.resize((index + 1) * longest, 0i64);
    }
    let shape = [cases.len() as i64, longest as i64];
    let inputs = [
        Tensor::from_values("input_ids", shape, all).unwrap(),
        Tensor::from_values("attention_mask", shape, mask).unwrap(),
    ];
    // More rows than can be decoded at a time: some of them wait.
    let mut instance = instance("bart", &[("max_rows", "9")]);
    let answer = run_alone(instance.as_mut(), &request(&inputs, &[])).unwrap();
    for (found, case) in ids(&answer).iter().zip(cases) {
        assert_eq!(found[..case.greedy.len()], case.greedy[..]);
        assert!(found[case.greedy.len()..].iter().all(|&id| id == 1), "filled up with the padding id");
    }
}

#[test]
fn samples_repeat_with_their_seed_whoever_shares_the_batch() {
    let golden = golden("m2m100/golden.json");
    let mut instance = instance("m2m100", &[]);
    let sampled = |case: &Case, id: &str, seed: Option<i64>| {
        let mut options =
            vec![("do_sample", Value::from(true)), ("temperature", Value::from(2.5)), ("top_k", Value::from(0))];
        options.extend(seed.map(|seed| ("seed", Value::from(seed))));
        ExecuteRequest { request_id: id.into(), ..request(&text(&case.input), &options) }
    };
    let one = |instance: &mut dyn StepwiseInstance, request| ids(&run_alone(instance, &request).unwrap());
    let case = &golden.cases[0];
    let first = one(instance.as_mut(), sampled(case, "a", Some(5)));
    assert_eq!(first, one(instance.as_mut(), sampled(case, "b", Some(5))), "the seed decides");
    assert_ne!(first, one(instance.as_mut(), sampled(case, "a", Some(6))));
    let named = one(instance.as_mut(), sampled(case, "a", None));
    assert_eq!(named, one(instance.as_mut(), sampled(case, "a", None)), "a redelivered request repeats itself");
    assert_ne!(named, one(instance.as_mut(), sampled(case, "b", None)));

    let crowd: Vec<_> = golden.cases[..20].iter().map(|case| sampled(case, "crowd", Some(5))).collect();
    let (answers, _) = run(instance.as_mut(), &crowd);
    assert_eq!(ids(answers[&0].as_ref().unwrap()), first);
}

#[test]
fn answers_come_in_parts_where_somebody_takes_them() {
    let golden = golden("m2m100/golden.json");
    let case = golden.cases.iter().find(|case| case.greedy.len() > 6).unwrap();
    let mut instance = instance("m2m100", &[]);
    let whole = |beams| ExecuteRequest {
        outputs: vec![GENERATED.into(), EMITTED.into(), FINAL.into()],
        ..case_request("m2m100", case, beams, false)
    };
    let mut parts = |beams: i64| {
        instance.join(7, ExecuteRequest { in_parts: true, ..whole(beams) }).unwrap();
        let mut parts = Vec::new();
        loop {
            for (ticket, progress) in instance.step() {
                assert_eq!(ticket, 7);
                match progress {
                    Progress::Part(outputs, _) => parts.push(outputs),
                    Progress::Done(result) => {
                        parts.push(result.unwrap().outputs);
                        return parts;
                    }
                }
            }
        }
    };
    let stream = parts(1);
    assert_eq!(stream.len(), case.greedy.len() - 1, "one part for each id after the start");
    let mut emitted = 0;
    for (index, part) in stream.iter().enumerate() {
        let found = ids(part).remove(0);
        assert_eq!(found, case.greedy[..index + 2], "parts hold all ids so far");
        assert_eq!(*part[1].values::<i64>().unwrap(), [emitted]);
        assert_eq!(part[2].data()[..], [u8::from(index + 1 == stream.len())]);
        emitted = found.len() as i64;
    }
    let beams = parts(4);
    assert_eq!((beams.len(), ids(&beams[0])), (1, vec![case.beams.clone()]), "beams change their minds");
}

#[test]
fn who_leaves_makes_room_and_disturbs_nobody() {
    let golden = golden("t5/golden.json");
    let cases: Vec<_> = golden.cases.iter().take(12).collect();
    for layout in LAYOUTS {
        let mut instance = instance("t5", &[("decoder", layout)]);
        let room = instance.room();
        let mut answers = BTreeMap::new();
        for (ticket, case) in cases.iter().enumerate() {
            let beams = if ticket % 2 == 0 { 1 } else { 4 };
            instance.join(ticket as Ticket, case_request("t5", case, beams, false)).unwrap();
            for (ticket, progress) in instance.step() {
                if let Progress::Done(result) = progress {
                    answers.insert(ticket, ids(&result.unwrap().outputs));
                }
            }
        }
        let gone: Vec<Ticket> = [0, 3, 4, 11].into_iter().filter(|ticket| !answers.contains_key(ticket)).collect();
        assert!(gone.len() > 1);
        gone.iter().for_each(|&ticket| instance.leave(ticket));
        for _ in 0..1000 {
            for (ticket, progress) in instance.step() {
                if let Progress::Done(result) = progress {
                    answers.insert(ticket, ids(&result.unwrap().outputs));
                }
            }
        }
        assert_eq!(answers.len() + gone.len(), cases.len());
        assert!(gone.iter().all(|ticket| !answers.contains_key(ticket)));
        for (ticket, answer) in answers {
            let case = cases[ticket as usize];
            assert_eq!(answer, [if ticket % 2 == 0 { case.greedy.clone() } else { case.beams.clone() }], "{layout}");
        }
        assert_eq!(instance.room(), room);
    }
}

#[test]
fn requests_share_steps() {
    let golden = golden("m2m100/golden.json");
    let requests: Vec<_> = golden.cases[..64].iter().map(|case| case_request("m2m100", case, 1, false)).collect();
    let tokens: usize = golden.cases[..64].iter().map(|case| case.greedy.len() - 1).sum();
    for layout in LAYOUTS {
        let mut instance = instance("m2m100", &[("decoder", layout), ("max_rows", "16")]);
        let (_, steps) = run(instance.as_mut(), &requests);
        assert!(steps * 5 < tokens, "{layout}: {tokens} tokens in {steps} steps of up to 16 rows");
    }
}

#[test]
fn bad_requests_are_refused_before_they_disturb_anybody() {
    let mut instance = instance("m2m100", &[]);
    let tensor = |name: &str, shape: &[i64], values: Vec<i64>| Tensor::from_values(name, shape, values).unwrap();
    let ids = || tensor("input_ids", &[1, 3], vec![5, 6, 2]);
    let mut refused = |inputs: &[Tensor], options: &[(&str, Value)]| {
        let error = instance.join(0, request(inputs, options)).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidArg, "{error}");
        assert!(instance.step().is_empty());
        error.message
    };
    let nothing: &[(&str, Value)] = &[];
    assert_eq!(refused(&[], nothing), "model 'm': input 'input_ids' is missing");
    assert_eq!(
        refused(&[tensor("input_ids", &[1, 0], vec![])], nothing),
        "model 'm': input 'input_ids' has shape [1,0], expected at least one id"
    );
    assert_eq!(
        refused(&[tensor("input_ids", &[1, 2], vec![5, 96])], nothing),
        "model 'm': row 0 of input 'input_ids' has id 96, but the vocabulary has 96 ids"
    );
    assert_eq!(
        refused(&[tensor("input_ids", &[1, 65], vec![5; 65])], nothing),
        "model 'm': row 0 of input 'input_ids' has 65 ids, the model takes at most 64"
    );
    assert_eq!(
        refused(&[ids(), tensor("attention_mask", &[1, 2], vec![1, 1])], nothing),
        "model 'm': input 'attention_mask' has shape [1,2], expected [1,3] as 'input_ids'"
    );
    assert_eq!(
        refused(&[ids(), tensor("attention_mask", &[1, 3], vec![0, 0, 0])], nothing),
        "model 'm': input 'attention_mask' leaves no id of row 0"
    );
    assert_eq!(
        refused(&[ids(), tensor("attention_mask", &[1, 3], vec![1, 7, 0])], nothing),
        "model 'm': input 'attention_mask' has to be of zeros and ones, found 7 in row 0"
    );
    assert_eq!(
        refused(&[ids(), tensor("forced_bos_token_id", &[1, 1], vec![-2])], nothing),
        "model 'm': parameter 'forced_bos_token_id' names id -2, but the vocabulary has 96 ids"
    );
    assert_eq!(
        refused(&[tensor("input_ids", &[1 << 19, 1], vec![5; 1 << 19])], &[("num_beams", Value::from(4))]),
        "model 'm': tensor 'generated_indices' of shape [2097152,24] takes 402653184 bytes, and a request may ask for 134217728 at most: \
         send fewer rows"
    );
    assert_eq!(
        refused(&[ids()], &[("num_beams", Value::from("four"))]),
        "model 'm': parameter 'num_beams' has to be 1 to 64, found \"four\""
    );
    assert_eq!(
        refused(&[ids()], &[("max_new_tokens", Value::from(64))]),
        "model 'm': parameter 'max_new_tokens' has to be 1 to 63 for this model, found 64"
    );
    let wanted = ExecuteRequest { outputs: vec!["logits".into()], ..request(&[ids()], nothing) };
    assert_eq!(
        instance.join(0, wanted).unwrap_err().message,
        "unexpected inference output 'logits', allowed outputs are: generated_indices, emitted, final, scores"
    );
}

#[test]
fn a_configuration_completes_itself_or_says_what_is_wrong() {
    let path = models().join("m2m100");
    let completed = load_from(&path, &[]).unwrap().config;
    let names = |specs: Vec<trireme_inference::TensorSpec>| {
        specs.into_iter().map(|spec| format!("{} {}", spec.name, spec.shape)).collect::<Vec<_>>()
    };
    assert_eq!(completed.max_batch_size, 0);
    assert_eq!(
        names(completed.input_specs()),
        ["input_ids [-1,-1]", "attention_mask [-1,-1]", "forced_bos_token_id [-1,1]"]
    );
    assert_eq!(
        names(completed.output_specs()),
        ["generated_indices [-1,-1]", "emitted [-1,1]", "final [1]", "scores [-1,1]"]
    );
    let batching = load_config(&path, "backend: 'generation' max_batch_size: 8").unwrap().config;
    assert_eq!(names(batching.output_specs())[2], "final [-1,1]");

    let fails = |text: &str| load_config(&path, &format!("backend: 'generation' {text}")).err().unwrap();
    let input = |name: &str, datatype: &str| {
        format!(
            "input [{{ name: '{name}' data_type: {datatype} dims: [-1, -1] }}]
             output [{{ name: 'generated_indices' data_type: TYPE_INT64 dims: [-1, -1] }}]"
        )
    };
    assert_eq!(
        fails(&input("ids", "TYPE_INT64")),
        "unable to load model 'm', unexpected inference input 'ids', allowed inputs are: input_ids, attention_mask, \
         forced_bos_token_id"
    );
    assert_eq!(
        fails(&input("input_ids", "TYPE_INT32")),
        "unable to load model 'm', unexpected datatype INT64 for input 'input_ids', expecting TYPE_INT32"
    );
    let parameter =
        |key: &str, value: &str| format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}");
    assert_eq!(
        fails(&parameter("num_beams", "none")),
        "model 'm': parameter 'num_beams' has to be 1 to 64, found \"none\""
    );
    assert_eq!(fails(&parameter("max_rows", "0")), "model 'm': parameter 'max_rows' has to be 1 to 65536, found '0'");
}

#[test]
fn warmup_runs_before_the_model_is_ready() {
    let path = models().join("t5");
    let sample = |dims: &str| {
        format!(
            "backend: 'generation' model_warmup [{{ name: 's' batch_size: 1 inputs {{ key: 'input_ids' \
             value {{ data_type: TYPE_INT64 dims: {dims} random_data: true }} }} }}]"
        )
    };
    assert!(load_config(&path, &sample("[2, 4]")).is_ok());
    let error = load_config(&path, &sample("[2, 5000]")).err().unwrap();
    assert!(error.starts_with("model 'm': failed to run warmup sample 's': model 'm': row 0"), "{error}");
}
