//! Messages survive a round trip; damaged, truncated and invented messages are refused without harm.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use trireme_inference::{ErrorCode, Hop, Owner, ParameterValue, StepInput, StepOutput, TextFacts, TraceParent};

use super::*;
use crate::fixtures::full_message;

fn reply_headers(reply: &Reply) -> ReplyHeaders {
    ReplyHeaders {
        request_id: reply.request_id.clone(),
        gateway: reply.gateway.clone(),
        sequence: reply.sequence,
        last: reply.last,
    }
}

fn full() -> WorkMessage {
    full_message(&ModelKey { name: "m".into(), version: 1 })
}

// === arbitrary messages ===

fn any_tensor() -> impl Strategy<Value = Tensor> {
    let datatype = proptest::sample::select(DataType::ALL.to_vec());
    (".{0,8}", datatype, vec(0i64..4, 0..4), any::<u8>()).prop_map(|(name, datatype, shape, fill)| {
        let count = shape.iter().product::<i64>() as usize;
        match datatype.element_size() {
            Some(size) => Tensor::new(name, datatype, shape, vec![fill; count * size].into()),
            None => {
                let elements: Vec<Vec<u8>> = (0..count).map(|n| vec![fill; (n * 7) % 5]).collect();
                Tensor::from_bytes_elements(name, shape, &elements)
            }
        }
        .expect("bytes that fit the shape")
    })
}

fn any_parameters() -> impl Strategy<Value = Parameters> {
    let value = prop_oneof![
        any::<bool>().prop_map(ParameterValue::Bool),
        any::<i64>().prop_map(ParameterValue::Int64),
        // Numbers that fit an `i64` are read as signed: the wire does not carry our variants.
        (1 + i64::MAX as u64..).prop_map(ParameterValue::Uint64),
        (-1e300..1e300).prop_map(ParameterValue::Double),
        ".{0,12}".prop_map(ParameterValue::String),
    ];
    proptest::collection::btree_map(".{0,6}", value, 0..5).prop_map(|map: BTreeMap<_, _>| map)
}

fn any_key() -> impl Strategy<Value = ModelKey> {
    (".{0,8}", any::<i64>()).prop_map(|(name, version)| ModelKey { name: name.into(), version })
}

fn any_step() -> impl Strategy<Value = Step> {
    let inputs = vec((".{0,4}", ".{0,4}", any::<bool>()), 0..3);
    let outputs = vec((".{0,4}", ".{0,4}"), 0..3);
    let content = proptest::option::of(".{0,80}");
    let step = (any_key(), inputs, outputs, vec(".{0,4}", 0..3), 0u32..3, content);
    step.prop_map(|(model, inputs, outputs, dead, level, content)| Step {
        content: content.map(Name::from),
        level,
        model,
        inputs: inputs
            .into_iter()
            .map(|(name, tensor, optional)| StepInput {
                name: name.into(),
                tensor: tensor.into(),
                optional,
                reshapes: Vec::new(),
                crosses: false,
            })
            .collect(),
        outputs: outputs
            .into_iter()
            .map(|(name, tensor)| StepOutput { name: name.into(), tensor: tensor.into() })
            .collect(),
        dead: dead.into_iter().map(Name::from).collect(),
    })
}

fn any_ledger() -> impl Strategy<Value = Ledger> {
    let texts = any::<Option<(u64, u64, u64)>>();
    let facts = |(tokens, truncated, windows)| TextFacts { tokens, truncated, windows };
    let texts = texts.prop_map(move |texts| texts.map(facts));
    let each_text = vec(any::<(u64, u64, u64)>().prop_map(facts), 0..4);
    let space = proptest::option::of(".{0,6}");
    let hop = (".{0,6}", ".{0,6}", any::<[u64; 5]>(), any::<u32>(), (texts, each_text), space);
    let hop = hop.prop_map(|(model, worker, [a, b, c, d, e], batch_size, (texts, each_text), space)| Hop {
        model: model.into(),
        worker: worker.into(),
        transit_us: a,
        queue_us: b,
        compute_input_us: c,
        compute_infer_us: d,
        compute_output_us: e,
        batch_size,
        texts,
        each_text,
        cached: Default::default(),
        equivalent: Vec::new(),
        space: space.map(Name::from),
    });
    vec(hop, 0..3).prop_map(Ledger)
}

fn any_work() -> impl Strategy<Value = WorkMessage> {
    let route = (any_key(), any::<bool>(), any::<u32>(), vec(any_step(), 0..3));
    let route = route.prop_map(|(model, ensemble, offset, steps)| Route::resume(model, ensemble, offset, steps));
    let optional = || proptest::option::of(".{0,8}");
    let names = (".{0,8}", ".{0,8}", ".{0,8}", optional(), optional());
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>());
    (names, numbers, route, vec(any_tensor(), 0..4), any_parameters(), any_ledger()).prop_map(
        |(
            (request_id, gateway, client_id, traceparent, state),
            (deadline, priority, sent_at),
            route,
            tensors,
            p,
            ledger,
        )| {
            WorkMessage {
                request_id: request_id.into(),
                gateway: gateway.into(),
                deadline: UnixMicros(deadline),
                priority,
                traceparent: traceparent.map(|parent| TraceParent::new(parent, state)),
                client_id: client_id.into(),
                sent_at: UnixMicros(sent_at),
                route,
                tensors,
                parameters: Arc::new(p),
                ledger,
                // Travels in headers, which have a test of their own.
                answer: AnswerForm::Whole,
                callers: Callers::default(),
                job: None,
                owner: Owner::default(),
            }
        },
    )
}

fn any_reply() -> impl Strategy<Value = Reply> {
    let error = (
        proptest::sample::select(ErrorCode::ALL.to_vec()),
        ".{0,20}",
        proptest::option::of(".{0,6}"),
        proptest::option::of(".{0,6}"),
    );
    let outcome = prop_oneof![
        (vec(any_tensor(), 0..4), any_parameters())
            .prop_map(|(tensors, parameters)| Ok(Output { tensors, parameters })),
        error.prop_map(|(code, message, stage, worker)| Err(InferError {
            retry_after: None,
            cause: None,
            code,
            message,
            stage,
            worker,
            of_model: false
        })),
    ];
    (".{0,8}", ".{0,8}", any::<u32>(), any::<bool>(), outcome, any_ledger(), any::<u64>()).prop_map(
        |(request_id, gateway, sequence, last, outcome, ledger, sent_at)| Reply {
            request_id: request_id.into(),
            gateway: gateway.into(),
            sequence,
            last,
            outcome,
            ledger,
            sent_at: UnixMicros(sent_at),
        },
    )
}

// === properties ===

proptest! {
    #[test]
    fn work_round_trips(message in any_work()) {
        let body = encode_work(&message).unwrap();
        prop_assert_eq!(decode_work(WorkHeaders::of(&message), &body).unwrap(), message);
    }

    #[test]
    fn replies_round_trip(reply in any_reply()) {
        let body = encode_reply(&reply).unwrap();
        prop_assert_eq!(decode_reply(reply_headers(&reply), &body).unwrap(), reply);
    }

    #[test]
    fn arbitrary_bytes_are_no_message(bytes in vec(any::<u8>(), 0..300)) {
        let body = Bytes::from(bytes);
        let reply = full().reply(Ok(Output::default()));
        prop_assert!(decode_work(WorkHeaders::of(&full()), &body).is_err());
        prop_assert!(decode_reply(reply_headers(&reply), &body).is_err());
    }

    /// A damaged message may still decode, but then it is consistent. Decoding never panics.
    #[test]
    fn damaged_messages_do_not_panic(flips in vec((any::<prop::sample::Index>(), 0u8..8), 1..4)) {
        let message = full();
        let reply = message.reply(Ok(Output { tensors: message.tensors.clone(), parameters: Parameters::new() }));
        for work in [true, false] {
            let body = if work { encode_work(&message).unwrap() } else { encode_reply(&reply).unwrap() };
            let mut bytes = body.to_vec();
            for (index, bit) in &flips {
                let index = index.index(bytes.len());
                bytes[index] ^= 1 << bit;
            }
            let body = Bytes::from(bytes);
            let tensors = match work {
                true => decode_work(WorkHeaders::of(&message), &body).map(|m| m.tensors).unwrap_or_default(),
                false => {
                    let decoded = decode_reply(reply_headers(&reply), &body);
                    decoded.ok().and_then(|r| r.outcome.ok()).map(|o| o.tensors).unwrap_or_default()
                }
            };
            for tensor in tensors {
                prop_assert!(Tensor::new("", tensor.datatype(), tensor.shape().clone(), tensor.data().clone()).is_ok());
            }
        }
    }
}

#[test]
fn a_message_cut_short_anywhere_is_none() {
    let message = full();
    let body = encode_work(&message).unwrap();
    for length in 0..body.len() {
        assert!(decode_work(WorkHeaders::of(&message), &body.slice(..length)).is_err(), "cut at {length}");
    }
}

#[test]
fn tensor_bytes_are_not_copied() {
    let message = full();
    let reply = message.reply(Ok(Output { tensors: message.tensors.clone(), parameters: Parameters::new() }));
    let (work_body, reply_body) = (encode_work(&message).unwrap(), encode_reply(&reply).unwrap());
    let work = decode_work(WorkHeaders::of(&message), &work_body).unwrap();
    let reply = decode_reply(reply_headers(&reply), &reply_body).unwrap();
    for (tensors, body) in [(work.tensors, work_body), (reply.outcome.unwrap().tensors, reply_body)] {
        let range = body.as_ptr_range();
        for tensor in tensors.iter().filter(|tensor| !tensor.data().is_empty()) {
            let data = tensor.data().as_ptr_range();
            assert!(range.start <= data.start && data.end <= range.end, "tensor '{}' was copied", tensor.name());
        }
    }
}

/// Each body claims four thousand million entries but holds none. Room for all of them would be tens of gigabytes.
#[test]
fn claimed_sizes_are_not_believed() {
    const ARRAY: &[u8] = &[0xdd, 0xff, 0xff, 0xff, 0xff];
    const MAP: &[u8] = &[0xdf, 0xff, 0xff, 0xff, 0xff];
    const TEXT: &[u8] = &[0xdb, 0xff, 0xff, 0xff, 0xff];
    const BINARY: &[u8] = &[0xc6, 0xff, 0xff, 0xff, 0xff];
    const EXTENSION: &[u8] = &[0xc9, 0xff, 0xff, 0xff, 0xff, 0x00];
    /// A key as a MessagePack string of less than 32 bytes.
    fn key(name: &str) -> Vec<u8> {
        [&[0xa0 | name.len() as u8], name.as_bytes()].concat()
    }
    let keys = ["route", "tensors", "parameters", "ledger", "id", "sent_at", "error", "unknown"];
    // {"tensors": [{"name": "x", "datatype": "INT8", "shape" or "data": ...
    let tensor = [vec![0x81], key("tensors"), vec![0x91, 0x84], key("name"), key("x"), key("datatype"), key("INT8")];
    let started = Instant::now();
    for claim in [ARRAY, MAP, TEXT, BINARY, EXTENSION] {
        let mut bodies = vec![claim.to_vec()];
        bodies.extend(keys.map(|name| [vec![0x81], key(name), claim.to_vec()].concat()));
        bodies.extend(["shape", "data"].map(|name| [tensor.concat(), key(name), claim.to_vec()].concat()));
        for body in bodies {
            let (message, body) = (full(), Bytes::from(body));
            let reply = message.reply(Ok(Output::default()));
            assert!(decode_work(WorkHeaders::of(&message), &body).is_err(), "{body:?}");
            assert!(decode_reply(reply_headers(&reply), &body).is_err(), "{body:?}");
        }
    }
    assert!(started.elapsed() < Duration::from_secs(5), "took {:?}", started.elapsed());
}

#[test]
fn nesting_without_end_is_refused() {
    for key in ["unknown", "parameters", "tensors", "route", "error"] {
        for (open, depth) in [(&[0x91][..], 1_000_000), (&[0x81, 0xa1, b'k'][..], 1_000_000)] {
            let mut body = vec![0x81, 0xa0 | key.len() as u8];
            body.extend(key.as_bytes());
            body.extend(open.repeat(depth));
            let message = full();
            let body = Bytes::from(body);
            assert!(decode_work(WorkHeaders::of(&message), &body).is_err());
            let reply = message.reply(Ok(Output::default()));
            assert!(decode_reply(reply_headers(&reply), &body).is_err());
        }
    }
}

#[test]
fn unknown_keys_are_passed_over() {
    let message = full();
    let body = encode_work(&message).unwrap();
    // One more entry in the outermost map: "later": [1, {}]
    assert_eq!(body[0], 0x87, "a map of seven");
    let longer = [&[0x88][..], &body[1..], &[0xa5], b"later", &[0x92, 0x01, 0x80]].concat();
    assert_eq!(decode_work(WorkHeaders::of(&message), &longer.into()).unwrap(), message);
}

#[test]
fn a_tensor_that_contradicts_itself_is_named() {
    let mut message = full();
    message.tensors = vec![Tensor::from_values("x", [2], vec![1i8, 2]).unwrap()];
    let body = encode_work(&message).unwrap();
    let shape = [&[0xa5][..], b"shape", &[0x91, 0x02]].concat();
    let at = body.windows(shape.len()).position(|window| window == shape).expect("the shape is in the message");
    let mut bytes = body.to_vec();
    bytes[at + shape.len() - 1] = 3;
    let error = decode_work(WorkHeaders::of(&message), &bytes.into()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "message holds a malformed tensor: tensor 'x' of datatype INT8 and shape [3] takes 3 bytes, got 2"
    );
}

/// A work message from `body`, with the missing keys filled in from a valid message.
fn made_up(mut body: serde_json::Value) -> Result<WorkMessage, EnvelopeError> {
    let good = serde_json::json!({ "tensors": [], "parameters": {}, "ledger": [], "id": "", "sent_at": 0 });
    let route = serde_json::json!({ "model": "m", "version": 1, "ensemble": true, "step": 0, "steps": [] });
    let body = body.as_object_mut().unwrap();
    for (key, value) in good.as_object().unwrap() {
        body.entry(key).or_insert(value.clone());
    }
    let steps = body.remove("steps");
    let route = body.entry("route").or_insert(route);
    route["steps"] = steps.unwrap_or_else(|| serde_json::json!([]));
    decode_work(WorkHeaders::of(&full()), &rmp_serde::to_vec_named(&body).unwrap().into())
}

fn step(model: &str, inputs: usize, outputs: usize, dead: usize) -> serde_json::Value {
    let entry = serde_json::json!({ "name": "n", "tensor": "t" });
    serde_json::json!({
        "model": { "name": model, "version": 1 },
        "inputs": vec![&entry; inputs], "outputs": vec![&entry; outputs], "dead": vec!["t"; dead],
    })
}

#[test]
fn a_name_that_is_too_long_is_refused_whoever_writes_it() {
    let refused = |result: Result<WorkMessage, EnvelopeError>| result.unwrap_err().to_string();
    let named = |length: usize| made_up(serde_json::json!({ "steps": [step(&"m".repeat(length), 1, 1, 1)] }));
    assert!(named(MAX_NAME).is_ok());
    assert_eq!(refused(named(MAX_NAME + 1)), "message leads to a model whose name has 257 bytes, expected 256 at most");

    let too_long = "message holds a name of a tensor of 1025 bytes, expected 1024 at most";
    let (fits, long) = ("t".repeat(MAX_TENSOR_NAME), "t".repeat(MAX_TENSOR_NAME + 1));
    for list in ["inputs", "outputs", "dead"] {
        let with = |name: &str| {
            let entry = serde_json::json!({ "name": "n", "tensor": name });
            let mut step = step("m", 1, 1, 1);
            step[list] = if list == "dead" { serde_json::json!([name]) } else { serde_json::json!([entry]) };
            made_up(serde_json::json!({ "steps": [step] }))
        };
        assert!(with(&fits).is_ok());
        assert_eq!(refused(with(&long)), too_long, "{list}");
    }
    let mut message = full();
    message.tensors = vec![Tensor::from_values(fits, [1], vec![1i8]).unwrap()];
    let body = encode_work(&message).unwrap();
    assert!(decode_work(WorkHeaders::of(&message), &body).is_ok());
    message.tensors = vec![Tensor::from_values(long, [1], vec![1i8]).unwrap()];
    assert_eq!(encode_work(&message).unwrap_err().to_string(), too_long);
}

/// Entries of lists are compared with each other, and take more memory than wire bytes.
#[test]
fn lists_without_end_are_refused_by_name() {
    const MOST: usize = trireme_inference::MAX_LISTED;
    type Body = fn(usize) -> serde_json::Value;
    let lists: [(&str, Body); 8] = [
        ("tensors", |n| {
            let shapeless = serde_json::json!({ "name": "t", "datatype": "BYTES", "shape": [0], "data": "" });
            serde_json::json!({ "tensors": vec![shapeless; n] })
        }),
        (
            "dimensions",
            |n| serde_json::json!({ "tensors": [{ "name": "t", "datatype": "BYTES", "shape": vec![0; n], "data": "" }] }),
        ),
        ("steps", |n| serde_json::json!({ "steps": vec![step("m", 0, 0, 0); n] })),
        ("inputs of a step", |n| serde_json::json!({ "steps": [step("m", n, 0, 0)] })),
        ("outputs of a step", |n| serde_json::json!({ "steps": [step("m", 0, n, 0)] })),
        ("dead tensors of a step", |n| serde_json::json!({ "steps": [step("m", 0, 0, n)] })),
        ("hops", |n| {
            let hop = serde_json::json!({ "model": "", "worker": "", "transit_us": 0, "queue_us": 0,
                "compute_input_us": 0, "compute_infer_us": 0, "compute_output_us": 0, "batch_size": 0 });
            serde_json::json!({ "ledger": vec![hop; n] })
        }),
        ("parameters", |n| {
            let parameters: BTreeMap<_, _> = (0..n).map(|n| (n.to_string(), n)).collect();
            serde_json::json!({ "parameters": parameters })
        }),
    ];
    for (what, body) in lists {
        let fits = made_up(body(MOST));
        assert!(fits.is_ok(), "{what}: {fits:?}");
        let error = made_up(body(MOST + 1)).unwrap_err().to_string();
        assert_eq!(error, format!("message body is not readable: more than {MOST} {what}"));
    }
}

#[test]
fn lists_that_nobody_reads_are_not_written() {
    let mut message = full();
    message.parameters = Arc::new((0..1025).map(|n| (n.to_string(), ParameterValue::Bool(true))).collect());
    let error = crate::BusError::from(encode_work(&message).unwrap_err());
    assert_eq!(error.to_string(), "message holds 1025 parameters, expected 1024 at most");
    assert_eq!(error.code(), ErrorCode::InvalidArg);
    let reply = message.reply(Ok(Output { tensors: vec![message.tensors[0].clone(); 1025], ..Output::default() }));
    assert_eq!(encode_reply(&reply).unwrap_err().to_string(), "message holds 1025 tensors, expected 1024 at most");
}
