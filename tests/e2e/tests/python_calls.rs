//! Requests of models in Python to other models: all in one, and over NATS.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{Mode, ModelFolder, Request, Sandbox, Setup, Stage, python, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

/// Models with one INT32 input and output of any size.
const NUMBERS: &str = "backend: 'python' input [{ name: 'IN' data_type: TYPE_INT32 dims: [-1] }]
                       output [{ name: 'OUT' data_type: TYPE_INT32 dims: [-1] }]
                       instance_group [{ count: 1 kind: KIND_CPU }]";

/// `run` computes the array of numbers that answers an array; `ask` makes a request to another model.
const COMMON: &str = "
import asyncio, os, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

def ask(model, numbers, **more):
    tensor = pb_utils.Tensor('IN', np.asarray(numbers, dtype=np.int32))
    return pb_utils.InferenceRequest(model_name=model, inputs=[tensor], requested_output_names=['OUT'], **more)

def numbers(response):
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return pb_utils.get_output_tensor_by_name(response, 'OUT').as_numpy().tolist()

def all_numbers(response):
    return numbers(response) if response.has_error() or response.output_tensors() else []

class TritonPythonModel:
    def initialize(self, args):
        self.folder = args['model_repository']
    def execute(self, requests):
        made = []
        for request in requests:
            made.append(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.asarray(self.run(request), dtype=np.int32))]))
        return made
";

const DOUBLE: &str = "
    def run(self, request):
        return request.inputs()[0].as_numpy() * 2
";

/// A model, an ensemble, one of several responses, and one with an error.
const CALLER: &str = "
    def run(self, request):
        given = request.inputs()[0].as_numpy()
        found = numbers(ask('double', given).exec())
        found += numbers(ask('quadruple', given, model_version=1, request_id='mine').exec())
        responses = ask('count', [3]).exec(decoupled=True)
        found += [number for response in responses for number in all_numbers(response)]
        # A second loop gives them again; the last one only says that nothing follows.
        assert [len(response.output_tensors()) for response in responses] == [1, 1, 1, 0]
        cancelled = ask('count', [3]).exec(decoupled=True)
        cancelled.cancel()
        assert [response.error().code() for response in cancelled] == [pb_utils.TritonError.CANCELLED]
        failed = ask('nothing', given).exec()
        assert failed.has_error() and 'nothing' in failed.error().message(), failed.error().message()
        assert failed.error().code() == pb_utils.TritonError.NOT_FOUND, failed.error().code()
        return found
";

/// All of its requests have to be under way at once, or the model `meet` does not answer.
const AT_ONCE: &str = "
    async def execute(self, requests):
        calls = [ask('meet', [[number]]).async_exec() for number in range(4)]
        several = await ask('count', [2]).async_exec(decoupled=True)
        found = [number for response in await asyncio.gather(*calls) for [number] in numbers(response)]
        found += [number for response in several for number in all_numbers(response)]
        tensor = pb_utils.Tensor('OUT', np.asarray(found, dtype=np.int32))
        return [pb_utils.InferenceResponse([tensor]) for request in requests]
";

const MEET: &str = "
    def execute(self, requests):
        assert len(requests) == 4
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', r.inputs()[0].as_numpy() + 10)]) for r in requests]
";

const COUNT: &str = "
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(request.inputs()[0].as_numpy()[0]):
                tensor = pb_utils.Tensor('OUT', np.array([number], dtype=np.int32))
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
";

/// Sends a request to the model that its file `next` names, and answers with the result or the error.
const ASKS: &str = "
    def run(self, request):
        response = ask(open(os.path.join(self.folder, 'next')).read(), [1]).exec()
        if not response.has_error():
            return numbers(response)
        error = response.error()
        raise pb_utils.TritonModelException(error.message())
";

/// Waits for an answer in a thread, and sees meanwhile that its own request is cancelled.
const IMPATIENT: &str = "
    def run(self, request):
        outcome = []
        thread = threading.Thread(target=lambda: outcome.append(ask('endless', [1]).exec()))
        thread.start()
        while not request.is_cancelled():
            time.sleep(0.01)
        thread.join()
        with open(os.path.join(self.folder, 'outcome'), 'w') as file:
            file.write(outcome[0].error().message())
        return [0]
";

/// Ends when nobody waits any more.
const ENDLESS: &str = "
    def run(self, request):
        open(os.path.join(self.folder, 'begun'), 'w').close()
        while not request.is_cancelled():
            time.sleep(0.01)
        open(os.path.join(self.folder, 'cancelled'), 'w').close()
        return [0]
";

const QUADRUPLE: &str = "platform: 'ensemble' input [{ name: 'IN' data_type: TYPE_INT32 dims: [-1] }]
    output [{ name: 'OUT' data_type: TYPE_INT32 dims: [-1] }]
    ensemble_scheduling { step [
      { model_name: 'double' model_version: -1 input_map { key: 'IN' value: 'IN' } output_map { key: 'OUT' value: 'twice' } },
      { model_name: 'double' model_version: -1 input_map { key: 'IN' value: 'twice' } output_map { key: 'OUT' value: 'OUT' } }] }";

fn start(mode: Mode, models: &ModelFolder) -> Sandbox {
    setup(mode, models).start()
}

fn setup(mode: Mode, models: &ModelFolder) -> Setup {
    let python = python().display().to_string();
    [Stage::Tokenizer, Stage::Model, Stage::Postprocess]
        .into_iter()
        .fold(Setup::new(mode), |setup, stage| setup.replicas(stage, 0))
        .replicas(Stage::Python, 1)
        .repository(models.path())
        .worker_arguments(&["--python", &python])
}

fn model(models: ModelFolder, name: &str, code: &str) -> ModelFolder {
    configured(models, name, "", code)
}

fn configured(models: ModelFolder, name: &str, config: &str, code: &str) -> ModelFolder {
    let config = format!("{NUMBERS} {config}");
    models.model(name, &config).file(&format!("{name}/1/model.py"), format!("{COMMON}{code}"))
}

fn numbers(numbers: &[i32]) -> Value {
    json!({"inputs": [{"name": "IN", "datatype": "INT32", "shape": [numbers.len()], "data": numbers}]})
}

const DECOUPLED: &str = "model_transaction_policy { decoupled: true }";

fn models_are_asked(mode: Mode) {
    let models = model(ModelFolder::new().model("quadruple", QUADRUPLE), "double", DOUBLE);
    let models = configured(models, "count", DECOUPLED, COUNT);
    let batches = "dynamic_batching { preferred_batch_size: [4] max_queue_delay_microseconds: 60000000 }";
    let models = configured(models, "meet", &format!("max_batch_size: 4 {batches}"), MEET);
    let models = model(model(models, "caller", CALLER), "at_once", AT_ONCE);
    let sandbox = start(mode, &models);
    let response = sandbox.infer("caller", &numbers(&[1, 2]));
    assert_eq!(response.output("OUT")["data"], json!([2, 4, 4, 8, 0, 1, 2]));
    let response = sandbox.infer("at_once", &numbers(&[1]));
    assert_eq!(response.output("OUT")["data"], json!([10, 11, 12, 13, 0, 1]));
    // More than a question or an answer holds: it travels by claim.
    let large: Vec<i32> = (0..512 << 10).collect();
    let response = sandbox.infer("caller", &numbers(&large));
    let data = &response.output("OUT")["data"];
    assert_eq!(
        (&data[5], &data[large.len() + 5]),
        (&json!(10), &json!(20)),
        "{} numbers",
        data.as_array().expect("a list").len()
    );
}

#[test]
fn models_are_asked_in_one_process() {
    models_are_asked(Mode::AllInOne);
}

#[test]
fn models_are_asked_over_nats() {
    models_are_asked(Mode::Services);
}

fn who_would_wait_for_itself_is_refused(mode: Mode) {
    let chain = [("a", "b"), ("b", "c"), ("c", "a")];
    let models = chain
        .into_iter()
        .fold(ModelFolder::new(), |models, (name, next)| model(models, name, ASKS).file(&format!("{name}/next"), next));
    let sandbox = start(mode, &models);
    let response = sandbox.infer("a", &numbers(&[1]));
    let text = response.text();
    assert!(text.contains("model 'a:1' would wait for itself: a:1 -> b:1 -> c:1 -> a:1"), "{text}");
}

#[test]
fn who_would_wait_for_itself_is_refused_in_one_process() {
    who_would_wait_for_itself_is_refused(Mode::AllInOne);
}

#[test]
fn who_would_wait_for_itself_is_refused_over_nats() {
    who_would_wait_for_itself_is_refused(Mode::Services);
}

fn requests_end_with_those_that_they_are_sent_for(mode: Mode) {
    let models = model(model(ModelFolder::new(), "endless", ENDLESS), "impatient", IMPATIENT);
    let sandbox = start(mode, &models);
    let there = |file: &str| {
        let file = models.path().join(file);
        wait_until("the file is there", LIMIT, || file.exists().then_some(()));
        file
    };
    let mut body = numbers(&[1]);
    body["parameters"] = json!({"trireme_timeout_ms": 1_000});
    let response = sandbox.infer("impatient", &body);
    assert_eq!(response.status, 503, "{}", response.text());
    there("endless/cancelled");
    let outcome = wait_until("the outcome is written", LIMIT, || {
        fs::read_to_string(models.path().join("impatient/outcome")).ok().filter(|text| !text.is_empty())
    });
    assert!(outcome.contains("Request timeout expired") || outcome.contains("nobody waits"), "{outcome}");

    // A client that leaves cancels it, too.
    for file in ["endless/cancelled", "endless/begun", "impatient/outcome"] {
        fs::remove_file(there(file)).expect("it is there");
    }
    let client = Request::infer("impatient", &numbers(&[1])).start(sandbox.address).expect("the server listens");
    there("endless/begun");
    drop(client);
    there("endless/cancelled");
    there("impatient/outcome");
}

#[test]
fn requests_end_with_those_that_they_are_sent_for_in_one_process() {
    requests_end_with_those_that_they_are_sent_for(Mode::AllInOne);
}

#[test]
fn requests_end_with_those_that_they_are_sent_for_over_nats() {
    requests_end_with_those_that_they_are_sent_for(Mode::Services);
}

/// Loads and unloads the model `double`, in `initialize` and for a request, and says each time whether it is ready.
const CONTROLS: &str = "
    def initialize(self, args):
        pb_utils.load_model('double')
        self.found = [pb_utils.is_model_ready('double')]
        pb_utils.unload_model('double')
        self.found += ['only while' in ask('double', [1]).exec().error().message()]
    def run(self, request):
        found = self.found + [pb_utils.is_model_ready('double'), pb_utils.is_model_ready('controls', '1')]
        pb_utils.load_model('double')
        found += [pb_utils.is_model_ready('double')] + numbers(ask('double', [21]).exec())
        pb_utils.unload_model('double')
        found += [pb_utils.is_model_ready('double')]
        try:
            pb_utils.load_model('of_no_such_name')
        except pb_utils.TritonModelException as error:
            found += ['of_no_such_name' in str(error)]
        return found
";

fn models_are_loaded_for_models(mode: Mode) {
    let models = model(model(ModelFolder::new(), "controls", CONTROLS), "double", DOUBLE);
    let (python, explicit) =
        (python().display().to_string(), ["--model-control-mode=explicit", "--load-model=controls"]);
    let setup = setup(mode, &models).gateway_arguments(&explicit);
    let sandbox = match mode {
        Mode::AllInOne => setup.start(),
        Mode::Services => setup.worker_arguments(&["--python", &python, explicit[0], explicit[1]]).start(),
    };
    let response = sandbox.infer("controls", &numbers(&[1]));
    assert_eq!(response.output("OUT")["data"], json!([1, 1, 0, 1, 1, 42, 0, 1]));
}

#[test]
fn models_are_loaded_for_models_in_one_process() {
    models_are_loaded_for_models(Mode::AllInOne);
}

#[test]
fn models_are_loaded_for_models_over_nats() {
    models_are_loaded_for_models(Mode::Services);
}
