//! Round trips of tensors of every datatype over the wire, and arbitrary bodies.

use bytes::Bytes;
use proptest::prelude::*;
use trireme_inference::{DataType, InferResponse, Ledger, ModelKey, Parameters, Shape, Tensor, TensorSpec};
use trireme_protocol::infer::{InferTarget, OutputFormat, TensorFormat, decode_infer_request, encode_infer_response};

const CONTEXT: InferTarget<'_> = InferTarget { model: "m", inputs: &[], max_batch_size: 0, max_json_size: 64 << 20 };

/// The bytes of `count` elements that survive any format: BOOL is 0 or 1, and NaN has the one bit pattern that JSON
/// preserves.
fn element_bytes(datatype: DataType, count: usize) -> BoxedStrategy<Vec<u8>> {
    let count = count..=count;
    let of = |elements: BoxedStrategy<Vec<u8>>| {
        prop::collection::vec(elements, count.clone()).prop_map(|e| e.concat()).boxed()
    };
    match (datatype, datatype.element_size()) {
        (DataType::Bool, _) => of(any::<bool>().prop_map(|b| vec![u8::from(b)]).boxed()),
        (DataType::Fp32, _) => of(any::<f32>()
            .prop_map(|v| if v.is_nan() { f32::NAN } else { v })
            .prop_map(|v| v.to_le_bytes().to_vec())
            .boxed()),
        (DataType::Fp64, _) => of(any::<f64>()
            .prop_map(|v| if v.is_nan() { f64::NAN } else { v })
            .prop_map(|v| v.to_le_bytes().to_vec())
            .boxed()),
        (_, Some(size)) => of(prop::collection::vec(any::<u8>(), size).boxed()),
        (_, None) => of(prop::collection::vec(any::<u8>(), 0..16)
            .prop_map(|text| [&(text.len() as u32).to_le_bytes()[..], &text].concat())
            .boxed()),
    }
}

fn tensors() -> impl Strategy<Value = Tensor> {
    (prop::sample::select(&DataType::ALL[..]), prop::collection::vec(0i64..5, 0..4), "[a-z\"é]{1,6}")
        .prop_flat_map(|(datatype, shape, name)| {
            let shape = Shape::from(shape);
            let count = shape.element_count().expect("what the test made is valid") as usize;
            (Just(name), Just(datatype), Just(shape), element_bytes(datatype, count))
        })
        .prop_map(|(name, datatype, shape, data)| {
            Tensor::new(name, datatype, shape, data.into()).expect("what the test made is valid")
        })
}

/// Sends `outputs` as a response, and reads that as a request: outputs and inputs look the same on the wire.
fn echo(outputs: Vec<Tensor>, format: &OutputFormat) -> Vec<Tensor> {
    let response = InferResponse {
        id: "r".to_owned(),
        model: ModelKey { name: "m".into(), version: 1 },
        parameters: Parameters::new(),
        outputs,
        shared: Default::default(),
        ledger: Ledger::default(),
    };
    let encoded = encode_infer_response(&response, format).expect("what the test made is valid");
    // Only the list's name differs. The first match is the list, because quotes in names are escaped.
    let (outputs, inputs) = (b"\"outputs\":[", b"\"inputs\":[");
    let at = encoded.json.windows(outputs.len()).position(|w| w == outputs).expect("what the test made is valid");
    let renamed = [&encoded.json[..at], inputs, &encoded.json[at + outputs.len()..]].concat();
    let header_length = encoded.header_length.map(|_| renamed.len().to_string());
    let body = Bytes::from([renamed, encoded.binary.concat()].concat());
    let decoded = decode_infer_request(&CONTEXT, &body, header_length.as_deref(), &mut |_| Ok(()))
        .expect("what the test made is valid");
    assert_eq!(decoded.request.id, "r");
    decoded.request.inputs.into_iter().map(|input| input.check().expect("what the test made is valid")).collect()
}

proptest! {
    #[test]
    fn tensors_survive_the_wire(tensors in prop::collection::vec((tensors(), any::<bool>()), 0..4)) {
        let mut format = OutputFormat::default();
        let mut outputs: Vec<Tensor> = Vec::new();
        for (i, (tensor, binary)) in tensors.into_iter().enumerate() {
            let name = format!("{}{i}", tensor.name());
            let tensor = tensor.renamed(name);
            let half = matches!(tensor.datatype(), DataType::Fp16 | DataType::Bf16);
            let how = if binary || half { TensorFormat::Binary } else { TensorFormat::Json };
            format.listed.insert(tensor.name().to_owned(), how);
            outputs.push(tensor);
        }
        prop_assert_eq!(echo(outputs.clone(), &format), outputs);
    }

    #[test]
    fn any_body_is_decoded_or_refused(
        body in prop::collection::vec(any::<u8>(), 0..128),
        header_length in prop::option::of("[ +-]?[0-9]{0,3}[a-z]?"),
    ) {
        let _decoded = decode_infer_request(&CONTEXT, &body.into(), header_length.as_deref(), &mut |_| Ok(()));
    }

    /// Requests of the right form with arbitrary values.
    #[test]
    fn any_request_is_decoded_or_refused(
        datatype in prop::sample::select(&DataType::ALL[..]),
        shape in prop::sample::select(vec!["[1]", "[]", "[2,2]", "[0]", "[-1]", "[4611686018427387904]", "[1e3]", "{}", "[18446744073709551615]"]),
        data in prop::sample::select(vec!["[1]", "[[1,2],[3,4]]", "[true]", "[\"a\"]", "[NaN]", "5", "[", "[]", "[null,{\"a\":[1]}]", "[1e308]"]),
        size in any::<u64>(),
        binary: bool,
    ) {
        let source = if binary { format!(r#""parameters":{{"binary_data_size":{size}}}"#) } else { format!(r#""data":{data}"#) };
        let body = format!(r#"{{"inputs":[{{{source},"name":"x","datatype":"{datatype}","shape":{shape}}}]}}"#);
        if let Ok(decoded) = decode_infer_request(&CONTEXT, &body.into(), None, &mut |_| Ok(())) {
            let _tensor = decoded.request.inputs[0].clone().check();
        }
    }

    #[test]
    fn any_raw_body_is_decoded_or_refused(
        datatype in prop::sample::select(&DataType::ALL[..]),
        shape in prop::collection::vec(-1i64..4, 0..4),
        max_batch_size in 0u32..2,
        body in prop::collection::vec(any::<u8>(), 0..32),
    ) {
        let spec = TensorSpec { name: "x".into(), datatype, shape: shape.into(), optional: false };
        let target = InferTarget { model: "m", inputs: &[spec], max_batch_size, max_json_size: 64 << 20 };
        if let Ok(decoded) = decode_infer_request(&target, &body.into(), Some("0"), &mut |_| Ok(())) {
            let _tensor = decoded.request.inputs[0].clone().check();
        }
    }
}
