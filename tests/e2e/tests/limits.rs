//! The largest size of a request: one flag raises it.

use trireme_e2e::{Mode, ModelFolder, Request, Setup, Stage, in_one_mode, product};

in_one_mode!(one_flag_lets_larger_bodies_in);

fn one_flag_lets_larger_bodies_in(mode: Mode) {
    // More than the flag's default.
    const BYTES: usize = 72 << 20;
    let models = ModelFolder::new().model(
        "one",
        "backend: 'identity' input [{ name: 'INPUT0' data_type: TYPE_STRING dims: [1] }]
         output [{ name: 'OUTPUT0' data_type: TYPE_STRING dims: [1] }]",
    );
    let start = |flags: &[&str]| {
        let setup = Setup::new(mode).repository(models.path()).gateway_arguments(flags);
        setup.replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0).start()
    };
    // The body is the only element of the input.
    let raw = Request::post("/v2/models/one/infer", vec![b'x'; BYTES]);
    let raw = raw.header("inference-header-content-length", "0");
    let refused = start(&[]).send(&raw);
    let expected = format!(
        "request body size of {BYTES} bytes exceeds the maximum allowed input size of {} bytes. Use --http-max-input-size \
         to increase the limit.",
        64 << 20
    );
    assert_eq!((refused.status, refused.error()), (400, expected));
    let answer = start(&["--http-max-input-size=100000000"]).send(&raw);
    assert_eq!(answer.status, 200, "{}", answer.text().chars().take(500).collect::<String>());
    assert!(answer.body.len() > BYTES, "the element comes back");
}

#[test]
fn a_limit_of_zero_is_refused() {
    for (binary, arguments) in [("trireme", &["serve"][..]), ("trireme-gateway", &[])] {
        let output = product(binary).args(arguments).args(["--http-max-input-size", "0"]).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("--http-max-input-size"), "{said}");
    }
}
