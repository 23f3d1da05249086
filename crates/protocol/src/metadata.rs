//! JSON bodies that describe the server and its models, and the body of every error.

use bytes::Bytes;
use trireme_inference::TensorSpec;

use crate::json::Writer;

/// A model's properties beside the protocol's fields, by name.
pub type Properties = Vec<(&'static str, String)>;

/// The properties that say which space a model's answers are of, and which other spaces it was measured to equal.
pub fn spaces<S: AsRef<str>>(space: Option<&str>, equivalent: &[S]) -> Properties {
    let list = equivalent.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join(", ");
    let equivalent = Some(list).filter(|list| !list.is_empty()).map(|list| ("equivalent_spaces", list));
    space.map(|space| ("space", space.to_owned())).into_iter().chain(equivalent).collect()
}

/// The answer to `GET /v2`. `name` is `triton` for clients that expect it; `extensions` are the names of the protocol
/// extensions that are implemented.
pub fn server_metadata(name: &str, version: &str, extensions: &[&str]) -> Bytes {
    body(|w| {
        w.name("name").string(name);
        w.name("version").string(version);
        w.name("extensions").array(|w| extensions.iter().for_each(|extension| w.string(extension)));
    })
}

/// The answer to `GET /v2/models/{m}`. `versions` are the ready ones; shapes include the batch dimension. `properties` is the
/// Open Inference Protocol's field for additions of a server.
pub fn model_metadata(
    name: &str,
    versions: &[i64],
    platform: &str,
    inputs: &[TensorSpec],
    outputs: &[TensorSpec],
    properties: &Properties,
) -> Bytes {
    body(|w| {
        w.name("name").string(name);
        w.name("versions").array(|w| versions.iter().for_each(|version| w.string(version.to_string())));
        w.name("platform").string(platform);
        w.name("inputs").array(|w| inputs.iter().for_each(|spec| tensor(w, spec)));
        w.name("outputs").array(|w| outputs.iter().for_each(|spec| tensor(w, spec)));
        if !properties.is_empty() {
            w.name("properties").object(|w| properties.iter().for_each(|(name, value)| w.name(name).string(value)));
        }
    })
}

/// The Open Inference Protocol's answer to `GET /v2/health/live`.
pub fn server_live(live: bool) -> Bytes {
    body(|w| w.name("live").bool(live))
}

/// The Open Inference Protocol's answer to `GET /v2/health/ready`. The protocol's text has `live` here, its clients
/// read `ready`.
pub fn server_ready(live: bool, ready: bool) -> Bytes {
    body(|w| {
        w.name("live").bool(live);
        w.name("ready").bool(ready);
    })
}

/// The Open Inference Protocol's answer to `GET /v2/models/{m}/ready`.
pub fn model_ready(name: &str, ready: bool) -> Bytes {
    body(|w| {
        w.name("name").string(name);
        w.name("ready").bool(ready);
    })
}

/// The body of every error.
pub fn error_body(message: &str) -> Bytes {
    body(|w| w.name("error").string(message))
}

fn tensor(w: &mut Writer, spec: &TensorSpec) {
    w.object(|w| {
        w.name("name").string(&spec.name);
        w.name("datatype").string(spec.datatype.name());
        w.name("shape").array(|w| spec.shape.iter().for_each(|&dimension| w.integer(dimension)));
    });
}

fn body(fill: impl FnOnce(&mut Writer)) -> Bytes {
    let mut writer = Writer::default();
    writer.object(fill);
    writer.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use trireme_inference::{DataType, Shape};

    #[test]
    fn server_metadata_lists_what_is_implemented() {
        let expected = r#"{"name":"triton","version":"0.1.0","extensions":["binary_tensor_data","statistics"]}"#;
        assert_eq!(server_metadata("triton", "0.1.0", &["binary_tensor_data", "statistics"]), expected);
    }

    #[test]
    fn model_metadata_has_versions_as_text_and_full_shapes() {
        let spec = |name: &str, datatype, shape: &[i64]| TensorSpec {
            name: name.into(),
            datatype,
            shape: Shape::from(shape),
            optional: false,
        };
        let inputs = [spec("text", DataType::Bytes, &[-1, 1])];
        let outputs = [spec("embedding", DataType::Fp32, &[-1, 384])];
        assert_eq!(
            model_metadata("minilm", &[1, 3], "ensemble", &inputs, &outputs, &Vec::new()),
            concat!(
                r#"{"name":"minilm","versions":["1","3"],"platform":"ensemble","#,
                r#""inputs":[{"name":"text","datatype":"BYTES","shape":[-1,1]}],"#,
                r#""outputs":[{"name":"embedding","datatype":"FP32","shape":[-1,384]}]}"#
            )
        );
        let known = model_metadata("m", &[1], "p", &[], &[], &spaces(Some("ab.cd"), &["ef", "gh"]));
        assert!(
            known.ends_with(br#""outputs":[],"properties":{"space":"ab.cd","equivalent_spaces":"ef, gh"}}"#),
            "{known:?}"
        );
    }

    #[test]
    fn health_bodies_are_those_of_the_open_inference_protocol() {
        assert_eq!(server_live(true), r#"{"live":true}"#);
        assert_eq!(server_ready(true, false), r#"{"live":true,"ready":false}"#);
        assert_eq!(model_ready("m", true), r#"{"name":"m","ready":true}"#);
    }

    #[test]
    fn error_body_escapes_its_message() {
        assert_eq!(error_body("no \"x\""), r#"{"error":"no \"x\""}"#);
    }
}
