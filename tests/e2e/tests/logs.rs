//! The log: a line for each event that somebody has to know, and no more.

use std::time::Duration;

use trireme_e2e::{Mode, ModelFolder, Setup, Stage, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

/// Models on one worker, each in an ensemble.
const MODELS: usize = 30;

#[test]
fn many_models_come_and_go_in_few_lines() {
    let models = (0..MODELS).fold(ModelFolder::new(), |models, number| {
        let part = format!("part{number}");
        let steps = format!(
            "platform: 'ensemble' input [{{ name: 'A' data_type: TYPE_FP32 dims: [-1] }}]
             output [{{ name: 'B' data_type: TYPE_FP32 dims: [-1] }}]
             ensemble_scheduling {{ step [{{ model_name: '{part}' model_version: -1
             input_map {{ key: 'INPUT0' value: 'A' }} output_map {{ key: 'OUTPUT0' value: 'B' }} }}] }}"
        );
        models.slow(&part, 0).model(&format!("whole{number}"), &steps)
    });
    let setup = Setup::new(Mode::Services).repository(models.path());
    let mut sandbox = setup.replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0).start();
    let said = |level: &str, sandbox: &trireme_e2e::Sandbox| {
        sandbox.gateway.events().iter().filter(|event| event["level"] == level).count()
    };
    assert_eq!(sandbox.gateway.count("model is ready"), 2 * MODELS);
    assert_eq!(sandbox.gateway.count("model is not ready"), 0, "the ensembles were ready in a moment");
    assert_eq!(said("WARN", &sandbox), 0, "{}", sandbox.gateway.log_tail());

    sandbox.worker(Stage::Model, 0).terminate();
    let gone = || (0..MODELS).all(|number| sandbox.model_ready(&format!("whole{number}")) != 200).then_some(());
    wait_until("the models are gone", LIMIT, gone);
    wait_until("the gateway has said so", LIMIT, || (said("WARN", &sandbox) > 0).then_some(()));
    std::thread::sleep(Duration::from_millis(500));
    let warnings = said("WARN", &sandbox);
    // Their registry entries go one after the other, and the gateway sees some at a time.
    assert!(warnings <= MODELS / 2, "{warnings} warnings about {} models: {}", 2 * MODELS, sandbox.gateway.log_tail());
    sandbox.gateway.terminate();
    assert!(sandbox.gateway.wait_exit(LIMIT).success());
    let errors: Vec<_> = sandbox.gateway.events().into_iter().filter(|event| event["level"] == "ERROR").collect();
    assert!(errors.is_empty(), "{errors:?}");
    let longest = sandbox.gateway.log().lines().map(str::len).max().unwrap_or_default();
    assert!(longest < 2000, "a line of {longest} characters");
}
