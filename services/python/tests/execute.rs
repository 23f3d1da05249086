//! Everything that a model.py may do, with a real interpreter.

use std::sync::Arc;

use super::model::{Model, answer, execute, request, texts};
use trireme_inference::{DataType, ErrorCode, InferError, ParameterValue, Tensor};
use trireme_runtime::{ExecuteRequest, Instance, Progress};

#[test]
fn tensors_of_every_datatype_and_size_come_back_as_they_went() {
    let io = |kind: &str, name: &str| {
        let declared = DataType::ALL.iter().filter(|datatype| **datatype != DataType::Bf16);
        let tensors = declared
            .map(|datatype| format!("{{ name: '{name}{datatype}' data_type: {} dims: [-1] }}", datatype.config_name()));
        format!("{kind} [{}]", tensors.collect::<Vec<_>>().join(", "))
    };
    let code = "
class TritonPythonModel:
    def execute(self, requests):
        # Twice through numpy: a view of what came, and a copy in another order of memory.
        return [pb_utils.InferenceResponse([
            pb_utils.Tensor('O' + tensor.name()[1:], np.asfortranarray(tensor.as_numpy())) for tensor in request.inputs()
        ]) for request in requests]
";
    let model = Model::new(&format!("{} {}", io("input", "I"), io("output", "O")), code);
    let mut instance = model.instance();
    for elements in [1, 7, 20_000] {
        let inputs: Vec<Tensor> = DataType::ALL
            .into_iter()
            .filter(|datatype| *datatype != DataType::Bf16)
            .map(|datatype| {
                let name = format!("I{datatype}");
                let text = |index: usize| format!("{}\0é", "x".repeat(index % 5));
                match datatype.element_size() {
                    None => Tensor::from_bytes_elements(
                        name,
                        [elements as i64],
                        &(0..elements).map(text).collect::<Vec<_>>(),
                    ),
                    Some(size) => {
                        let bytes: Vec<u8> = (0..elements * size).map(|index| (index / size % 2) as u8).collect();
                        Tensor::new(name, datatype, [elements as i64], bytes.into())
                    }
                }
                .unwrap()
            })
            .collect();
        let asked =
            ExecuteRequest::made_up("r", inputs.clone(), inputs.iter().map(|input| format!("O{}", input.datatype())));
        let response = execute(&mut instance, &[asked]).remove(0).unwrap();
        let expected: Vec<_> = inputs
            .into_iter()
            .map(|input| {
                let name = format!("O{}", input.datatype());
                input.renamed(name)
            })
            .collect();
        assert_eq!(response.outputs, expected);
    }
}

#[test]
fn dlpack_takes_and_gives_every_datatype_of_numbers() {
    let code = "
from trireme_python import dlpack
class TritonPythonModel:
    def execute(self, requests):
        outputs = []
        for tensor in requests[0].inputs():
            name, unused = tensor.name()[1:], tensor.to_dlpack()
            by_capsule = pb_utils.Tensor.from_dlpack('C' + name, tensor.to_dlpack())
            outputs += [by_capsule, pb_utils.Tensor.from_dlpack('O' + name, by_capsule)]
            del unused
        assert not dlpack.KEPT, 'tensors are freed'
        return [pb_utils.InferenceResponse(outputs)]
";
    let datatypes = [DataType::Bf16, DataType::Fp16, DataType::Fp32, DataType::Int64, DataType::Uint8];
    let io = |kind: &str, name: &str| {
        let tensors =
            datatypes.map(|of| format!("{{ name: '{name}{of}' data_type: {} dims: [-1, 2] }}", of.config_name()));
        format!("{kind} [{}]", tensors.join(", "))
    };
    let mut instance =
        Model::new(&format!("{} {} {}", io("input", "I"), io("output", "C"), io("output", "O")), code).instance();
    for rows in [0, 3] {
        let inputs = datatypes.map(|datatype| {
            let size = rows * 2 * datatype.element_size().unwrap();
            let bytes: Vec<u8> = (0..size).map(|index| index as u8).collect();
            Tensor::new(format!("I{datatype}"), datatype, [rows as i64, 2], bytes.into()).unwrap()
        });
        let names = datatypes.iter().flat_map(|datatype| ["C", "O"].map(|letter| format!("{letter}{datatype}")));
        let asked = ExecuteRequest::made_up("r", inputs.to_vec(), names);
        let outputs = execute(&mut instance, &[asked]).remove(0).unwrap().outputs;
        let expected = inputs
            .into_iter()
            .flat_map(|input| ["C", "O"].map(|letter| input.clone().renamed(format!("{letter}{}", input.datatype()))));
        assert_eq!(outputs, expected.collect::<Vec<_>>());
    }
}

#[test]
fn a_batch_is_a_list_and_one_requests_error_is_its_own() {
    let code = "
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, 'IN').as_numpy()[0].decode()
            if text == 'bad':
                error = pb_utils.TritonError('this one is bad', pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=error))
            elif text == 'raise':
                raise ValueError('nothing goes')
            elif text == 'none':
                responses.append(None)
            else:
                out = np.array([f'{text} of {len(requests)}'], dtype=np.object_)
                responses.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor('OUT', out)]))
        return responses[:1] if text == 'few' else responses
";
    let mut instance = Model::texts("max_batch_size: 8 dynamic_batching {}", code).instance();
    let batch = |instance: &mut _, names: &[&str]| {
        execute(instance, &names.iter().map(|name| request(&[name])).collect::<Vec<_>>())
    };
    let results = batch(&mut instance, &["a", "bad", "c"]);
    let said = |index: usize| texts(&results[index].as_ref().unwrap().outputs[0]);
    assert_eq!((said(0), said(2)), (vec!["a of 3".to_owned()], vec!["c of 3".to_owned()]));
    let error = results[1].as_ref().unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (ErrorCode::InvalidArg, "this one is bad"));

    for (names, expected) in [
        (
            &["a", "raise"][..],
            "Failed to process the request(s) for model 'm_0_0', message: ValueError: nothing goes\n\nAt:\n",
        ),
        (&["a", "few"], "InferenceRequest(s) size is:2, and InferenceResponse(s) size is:1"),
    ] {
        for result in batch(&mut instance, names) {
            let error = result.unwrap_err();
            assert!(error.code == ErrorCode::Internal && error.message.contains(expected), "{error:?}");
        }
    }
    let error = batch(&mut instance, &["a", "none"]).pop().unwrap().unwrap_err();
    assert!(error.message.contains("Expected an 'InferenceResponse' object"), "{error}");
    assert_eq!(answer(&mut instance, &["still there"]).unwrap(), ["still there of 1"]);
}

#[test]
fn without_dynamic_batching_each_request_is_a_call() {
    let code = "
import time
class TritonPythonModel:
    def execute(self, requests):
        assert len(requests) == 1
        text = requests[0].inputs()[0].as_numpy()[0].decode()
        if text == 'raise':
            raise ValueError('not this one')
        if text == 'slow':
            time.sleep(0.3)
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array([text], dtype=np.object_))])]
";
    let mut instance = Model::texts("", code).instance();
    let mut results = |names: &[&str]| {
        let requests: Vec<_> = names.iter().map(|name| request(&[name])).collect();
        let results = execute(&mut instance, &requests).into_iter();
        results.map(|result| result.map(|response| texts(&response.outputs[0]).remove(0))).collect::<Vec<_>>()
    };
    let [first, failed, last] = results(&["a", "raise", "c"]).try_into().unwrap();
    assert_eq!((first.unwrap(), last.unwrap()), ("a".to_owned(), "c".to_owned()));
    let error = failed.unwrap_err();
    assert!(error.code == ErrorCode::Internal && error.message.contains("not this one"), "{error:?}");
    // The others are tried again, by whichever process is free.
    let [slow, given_back] = results(&["slow", "b"]).try_into().unwrap();
    assert_eq!(slow.unwrap(), "slow");
    assert_eq!(given_back.unwrap_err().code, ErrorCode::Unavailable);
    assert_eq!(results(&["b", "c"]).into_iter().map(Result::unwrap).collect::<Vec<_>>(), ["b", "c"]);
}

#[test]
fn a_model_may_keep_inputs_and_memory_files_are_used_again() {
    let code = "
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []
    def execute(self, requests):
        array = requests[0].inputs()[0].as_numpy()
        if array[0] < 0:
            self.kept.append(array)
        sums = np.array([array.sum()] + [kept.sum() for kept in self.kept], dtype=np.float32)
        array += 1
        return [pb_utils.InferenceResponse([pb_utils.Tensor('SAME', array), pb_utils.Tensor('SUMS', sums)])]
";
    let config = "input { name: 'IN' data_type: TYPE_FP32 dims: [-1] }
                  output [{ name: 'SAME' data_type: TYPE_FP32 dims: [-1] }, { name: 'SUMS' data_type: TYPE_FP32 dims: [-1] }]";
    let mut instance = Model::new(config, code).instance();
    const ELEMENTS: usize = 100_000;
    let mut kept = Vec::new();
    for value in [1.0f32, 2.0, -3.0, 4.0, -5.0, 6.0] {
        let input = Tensor::from_values("IN", [ELEMENTS as i64], vec![value; ELEMENTS]).unwrap();
        let asked = ExecuteRequest::made_up("r", vec![input], ["SAME".to_owned(), "SUMS".to_owned()]);
        let outputs = execute(&mut instance, &[asked]).remove(0).unwrap().outputs;
        let values = |index: usize| outputs[index].values::<f32>().unwrap().to_vec();
        assert!(values(0).iter().all(|&found| found == value + 1.0), "{value}");
        let mut expected = vec![value * ELEMENTS as f32];
        // The model has added 1 to the arrays that it keeps; to the array of this call it adds 1 after the sums.
        expected.extend(kept.iter().map(|kept: &f32| (kept + 1.0) * ELEMENTS as f32));
        if value < 0.0 {
            expected.push(value * ELEMENTS as f32);
            kept.push(value);
        }
        assert_eq!(values(1), expected);
    }
}

#[test]
fn a_model_is_told_what_triton_tells() {
    let code = "
import json
class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args['model_config'])
        self.known = [args[key] for key in ('model_name', 'model_version', 'model_instance_name', 'model_instance_kind')]
        self.known += [config['parameters']['greeting']['string_value'], args['model_repository'].rsplit('/', 1)[1]]
        self.known += [pb_utils.triton_string_to_numpy(pb_utils.get_output_config_by_name(config, 'OUT')['data_type']).__name__]
    def execute(self, requests):
        request, = requests
        known = self.known + [request.request_id(), request.parameters(), str(request.timeout()), str(request.correlation_id())]
        known += request.requested_output_names()
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array(known, dtype=np.object_))])]
";
    let config = "parameters { key: 'greeting' value { string_value: 'hello' } }";
    let mut instance = Model::texts(config, code).instance();
    let parameters = [
        ("mine", ParameterValue::Bool(true)),
        ("timeout", ParameterValue::Int64(5)),
        ("sequence_id", ParameterValue::Uint64(9)),
    ];
    let parameters = parameters.map(|(key, value)| (key.to_owned(), value)).into();
    let asked = ExecuteRequest { parameters: Arc::new(parameters), ..request(&["x"]) };
    let response = execute(&mut instance, &[asked]).remove(0).unwrap();
    let expected = ["m", "1", "m_0_0", "CPU", "hello", "m", "object_", "client's", "{\"mine\": true}", "5", "9", "OUT"];
    assert_eq!(texts(&response.outputs[0]), expected);
}

#[test]
fn instances_on_gpus_are_told_which() {
    let code = "
class TritonPythonModel:
    def initialize(self, args):
        self.told = [args[key] for key in ('model_instance_kind', 'model_instance_device_id', 'model_instance_name')]
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array(self.told, dtype=np.object_))])]
";
    let mut model = Model::texts("instance_group [{ kind: KIND_GPU gpus: [0, 3] }]", code).load().unwrap();
    let told: Vec<_> = model.instances.iter_mut().map(|instance| answer(instance, &["x"]).unwrap()).collect();
    assert_eq!(told, [["GPU", "0", "m_0_gpu0_0"], ["GPU", "3", "m_0_gpu3_0"]]);
}

#[test]
fn a_model_completes_its_configuration() {
    let code = "
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({'name': 'IN', 'data_type': 'TYPE_STRING', 'dims': [1]})
        config.add_output({'name': 'OUT', 'data_type': 'TYPE_STRING', 'dims': [1]})
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        return config
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', request.inputs()[0].as_numpy())]) for request in requests]
";
    let model = Model::new("instance_group [{ count: 2 kind: KIND_CPU }]", code).load().unwrap();
    assert_eq!((model.config.max_batch_size, model.config.inputs[0].name.as_str()), (8, "IN"));
    assert_eq!((model.policy.max_rows(), model.instances.len()), (8, 2));
    let fault = Model::new("max_batch_size: 16", code).fault();
    assert!(fault.contains("auto_complete_config sets max_batch_size to 8, but the configuration has 16"), "{fault}");
}

#[test]
fn a_model_needs_neither_inputs_nor_outputs() {
    let code = "
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(parameters={'inputs': len(request.inputs())}) for request in requests]
";
    let response = execute(&mut Model::new("", code).instance(), &[ExecuteRequest::made_up("r", vec![], [""; 0])]);
    let response = response.into_iter().next().unwrap().unwrap();
    assert_eq!((response.outputs, response.parameters["inputs"].clone()), (vec![], ParameterValue::Int64(0)));
}

/// With the shapes of `reshape` on the model's side, as Triton's core has it for all backends.
#[test]
fn inputs_and_outputs_are_reshaped() {
    let code = "
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            scalars, square = (tensor.as_numpy() for tensor in request.inputs())
            assert (scalars.shape, square.shape) == ((3,), (3, 4)), (scalars.shape, square.shape)
            outputs = [pb_utils.Tensor('SCALARS', scalars + 1), pb_utils.Tensor('SQUARE', square)]
            answers.append(pb_utils.InferenceResponse(outputs))
        return answers
";
    let tensors = |role: &str, prefix: &str| {
        format!(
            "{role} [{{ name: '{prefix}SCALARS' data_type: TYPE_INT32 dims: [1] reshape: {{ shape: [] }} }},
                     {{ name: '{prefix}SQUARE' data_type: TYPE_FP32 dims: [2, 2] reshape: {{ shape: [4] }} }}]"
        )
    };
    let config = format!("max_batch_size: 4 {} {}", tensors("input", "IN_"), tensors("output", ""));
    let tensor = |name: &str, datatype, shape: &[i64], byte: u8| {
        let elements = shape.iter().product::<i64>() as usize;
        Tensor::new(name, datatype, shape, [byte, 0, 0, 0].repeat(elements).into()).unwrap()
    };
    let inputs = |names: [&str; 2], byte| {
        let [scalars, square] = names;
        vec![tensor(scalars, DataType::Int32, &[3, 1], byte), tensor(square, DataType::Fp32, &[3, 2, 2], 0)]
    };
    let request = ExecuteRequest::made_up("r", inputs(["IN_SCALARS", "IN_SQUARE"], 6), ["SCALARS", "SQUARE"]);
    let whole = execute(&mut Model::new(&config, code).instance(), std::slice::from_ref(&request)).remove(0).unwrap();
    assert_eq!(whole.outputs, inputs(["SCALARS", "SQUARE"], 7));
    let decoupled = format!("{config} model_transaction_policy {{ decoupled: true }}");
    let sends = code.replace("answers.append(", "request.get_response_sender().send(").replace(
        "InferenceResponse(outputs))",
        "InferenceResponse(outputs), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)",
    );
    let mut instance = Model::new(&decoupled, &sends.replace("return answers", "return None")).instance();
    let instance = instance.as_stepwise().unwrap();
    instance.join(1, request).unwrap();
    let progress = std::iter::from_fn(|| Some(instance.step())).flatten().next();
    let Some((1, Progress::Done(Ok(response)))) = progress else { panic!("{progress:?}") };
    assert_eq!(response.outputs, inputs(["SCALARS", "SQUARE"], 7));
}

#[test]
fn execute_may_be_async_and_may_answer_by_response_senders() {
    let code = "
import asyncio, threading
class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.sleep(0)
        responses = []
        for request in requests:
            text = request.inputs()[0].as_numpy()
            response = pb_utils.InferenceResponse([pb_utils.Tensor('OUT', text)])
            if text[0] == b'later':
                sender = request.get_response_sender()
                send = lambda: sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                threading.Timer(0.05, send).start()
                return None
            responses.append(response)
        return responses
";
    let mut instance = Model::texts("", code).instance();
    assert_eq!(answer(&mut instance, &["now"]).unwrap(), ["now"]);
}

#[test]
fn coroutines_of_several_requests_overlap() {
    let code = "
import asyncio
class TritonPythonModel:
    async def execute(self, requests):
        self.second_is_there = getattr(self, 'second_is_there', None) or asyncio.Event()
        text = requests[0].inputs()[0].as_numpy()
        if text[0] == b'first':
            await self.second_is_there.wait()
        self.second_is_there.set()
        response = pb_utils.InferenceResponse([pb_utils.Tensor('OUT', text)])
        requests[0].get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
";
    let mut instance = Model::texts("model_transaction_policy { decoupled: true }", code).instance();
    let instance = instance.as_stepwise().unwrap();
    let (mut waiting, mut done) = (vec![(2, "second"), (1, "first")], Vec::new());
    while done.len() < 2 {
        if instance.room() > 0
            && let Some((ticket, text)) = waiting.pop()
        {
            instance.join(ticket, request(&[text])).unwrap();
        }
        done.extend(instance.step().into_iter().map(|(ticket, progress)| match progress {
            Progress::Done(Ok(_)) => ticket,
            other => panic!("{other:?}"),
        }));
    }
    done.sort();
    assert_eq!(done, [1, 2]);
}

#[test]
fn a_response_may_come_after_execute_has_returned() {
    let code = "
import threading
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            response = pb_utils.InferenceResponse([pb_utils.Tensor('OUT', request.inputs()[0].as_numpy())])
            final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            threading.Timer(0.05, request.get_response_sender().send, (response, final)).start()
";
    // As Triton has it: a list of None says that senders are used.
    let code = code.to_owned() + "        return [None] * len(requests)\n";
    let mut instance = Model::texts(
        "model_transaction_policy { decoupled: true }",
        &code.replace("        return [None] * len(requests)\n", ""),
    )
    .instance();
    let instance = instance.as_stepwise().unwrap();
    instance.join(1, ExecuteRequest { in_parts: true, ..request(&["late"]) }).unwrap();
    let done = loop {
        if let Some((1, progress)) = instance.step().pop() {
            break progress;
        }
    };
    let Progress::Done(Ok(response)) = done else { panic!("{done:?}") };
    assert_eq!(texts(&response.outputs[0]), ["late"]);
}

#[test]
fn a_decoupled_model_gives_any_number_of_responses() {
    let code = "
class TritonPythonModel:
    def execute(self, requests):
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        for request in requests:
            sender = request.get_response_sender()
            words = request.inputs()[0].as_numpy()
            for word in words:
                if word == b'error':
                    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError('no', pb_utils.TritonError.NOT_FOUND)), final)
                    break
                if word == b'raise':
                    raise pb_utils.TritonModelException('all of them')
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array([word]))]))
            else:
                sender.send(flags=final)
";
    let mut instance = Model::texts("model_transaction_policy { decoupled: true }", code).instance();
    let instance = instance.as_stepwise().unwrap();
    // As in a worker, no two requests have the same ticket: a request that has failed may still be answered by the model.
    let mut ticket = 0;
    let mut run = |words: &[&str], in_parts: bool| {
        ticket += 1;
        instance.join(ticket, ExecuteRequest { in_parts, ..request(words) }).unwrap();
        let mut seen = Vec::new();
        loop {
            for (_, progress) in instance.step() {
                match progress {
                    Progress::Part(outputs, _) => seen.push(texts(&outputs[0]).concat()),
                    Progress::Done(Ok(last)) => {
                        seen.extend(last.outputs.first().map(|output| texts(output).concat()));
                        return Ok(seen);
                    }
                    Progress::Done(Err(error)) => return Err((seen, error)),
                }
            }
        }
    };
    assert_eq!(run(&["a", "b", "c"], true).unwrap(), ["a", "b", "c"]);
    assert_eq!(run(&[], true).unwrap(), [""; 0]);
    assert_eq!(run(&["a"], false).unwrap(), ["a"]);
    assert!(run(&["a", "b"], false).is_err(), "whoever takes one answer gets one");
    let (seen, error) = run(&["a", "error"], true).unwrap_err();
    assert_eq!((seen, error.code, error.message.as_str()), (vec!["a".to_owned()], ErrorCode::NotFound, "no"));
    let (_, error) = run(&["raise"], true).unwrap_err();
    assert!(error.message.contains("TritonModelException: all of them"), "{error}");
}

/// Gives and raises whatever a model's code may, by the text of a request.
const RUBBISH: &str = include_str!("model/rubbish.py");

/// Has a model answer one request, in whichever way it does.
fn ask(instance: &mut Instance, ticket: u64, text: &str) -> Result<Vec<String>, InferError> {
    let Instance::Stepwise(stepwise) = instance else { return answer(instance, &[text]) };
    stepwise.join(ticket, request(&[text])).unwrap();
    loop {
        if let Some((_, Progress::Done(result))) = stepwise.step().pop() {
            return result.map(|response| texts(&response.outputs[0]));
        }
    }
}

#[test]
fn whatever_a_model_gives_or_raises_is_the_answer_to_that_request() {
    for (sends, config) in [("false", ""), ("true", ""), ("true", "model_transaction_policy { decoupled: true }")] {
        let config = format!("parameters {{ key: 'sends' value {{ string_value: '{sends}' }} }} {config}");
        let mut instance = Model::texts(&config, RUBBISH).instance();
        let mut tickets = 1..;
        let mut ask = |text: &str| ask(&mut instance, tickets.next().unwrap(), text);
        let (process, kinds) = (ask("who").unwrap(), ask("every").unwrap());
        assert!(kinds.len() > 40);
        for kind in kinds {
            let error = ask(&kind).expect_err(&kind);
            assert!(error.of_model && error.code == ErrorCode::Internal, "{kind}: {error:?}");
            assert!(!error.message.is_empty() && error.message.len() < 70_000, "{kind}: {}", error.message.len());
            assert_eq!(ask("who").unwrap(), process, "{kind} has cost the process");
        }
    }
}

#[test]
fn whatever_the_model_s_other_functions_raise_is_an_error() {
    let model = |code: &str| {
        format!(
            "
import sys
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', request.inputs()[0].as_numpy())]) for request in requests]
{code}"
        )
    };
    for (raised, expected) in [
        ("sys.exit('half \\ud83d')", "SystemExit: half ?"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: <EMPTY MESSAGE>"),
        ("raise ValueError('x' * (70 << 20))", "ValueError: xxx"),
    ] {
        let fault = Model::texts("", &model(&format!("    def initialize(self, args): {raised}\n"))).fault();
        assert!(fault.contains(expected) && fault.len() < 70_000, "{fault}");
        let code = format!("    @staticmethod\n    def auto_complete_config(config): {raised}\n");
        let fault = Model::texts("", &model(&code)).fault();
        assert!(fault.contains(expected), "{fault}");
        let code = format!("    def finalize(self): {raised}\n    def is_ready(self): {raised}\n");
        let mut instance = Model::texts("", &model(&code)).instance();
        assert_eq!(answer(&mut instance, &["x"]).unwrap(), ["x"]);
    }
    for wrong in ["float('nan')", "'\\ud83d'", "object()", "np.int64(1)", "config"] {
        let code =
            "    @staticmethod\n    def auto_complete_config(config):\n        config.as_dict()['parameters'] = ";
        let fault = Model::texts("", &model(&format!("{code}{wrong}\n        return config\n"))).fault();
        assert!(!fault.contains("ended before"), "{wrong}: {fault}");
    }
}

#[test]
fn a_coroutine_that_ends_the_event_loop_ends_one_request() {
    let code = "
import asyncio, sys
class TritonPythonModel:
    async def execute(self, requests):
        text = requests[0].inputs()[0].as_numpy()
        if text[0] == b'exit':
            sys.exit('not so')
        if text[0] == b'cancel':
            asyncio.current_task().cancel()
        if text[0] == b'task':
            asyncio.get_running_loop().create_task(self.exits())
        await asyncio.sleep(0.001)
        sender, response = requests[0].get_response_sender(), pb_utils.InferenceResponse([pb_utils.Tensor('OUT', text)])
        sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    async def exits(self):
        sys.exit('not so')
";
    for config in ["", "model_transaction_policy { decoupled: true }"] {
        let mut instance = Model::texts(config, code).instance();
        for (ticket, text) in [(1, "exit"), (3, "cancel"), (5, "task")] {
            let answered = ask(&mut instance, ticket, text);
            assert_eq!(answered.is_ok(), text == "task", "{answered:?}");
            assert_eq!(ask(&mut instance, ticket + 1, "x").unwrap(), ["x"]);
        }
    }
}

#[test]
fn what_is_not_there_says_so() {
    let code = "
class TritonPythonModel:
    def execute(self, requests):
        said = []
        for what in (lambda: pb_utils.shared_memory.get('x'), lambda: requests[0].set_release_flags(2)):
            try:
                what()
            except pb_utils.TritonModelException as error:
                said.append(str(error))
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array(said, dtype=np.object_))])]
";
    let said = answer(&mut Model::texts("", code).instance(), &["x"]).unwrap();
    assert!(said.len() == 2 && said.iter().all(|text| text.ends_with("is not supported by Trireme")), "{said:?}");
}

/// Compares names and parameters with those of Triton's modules, which tests/compat/surface.py lists: calls that Triton takes are
/// taken here.
const COMPARES: &str = "
import importlib, inspect, json, os
# Of Triton's inside.
OWN = ('async_event_future_done_callback', 'SharedMemory.free_memory')
class TritonPythonModel:
    def execute(self, requests):
        with open(os.path.join(pb_utils.get_model_dir(), 'surface.json')) as file:
            surface = json.load(file)
        differences = []
        for module, names in surface.items():
            for name in names.keys() - OWN:
                difference = differs(importlib.import_module(module), name, names[name])
                if difference is not None:
                    differences.append(f'{module}.{name} {difference}')
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array(differences, dtype=object))]) for _ in requests]
def differs(value, name, theirs):
    for part in name.split('.'):
        if not hasattr(value, part):
            return 'is missing'
        owner, value = value, getattr(value, part)
    if theirs is None:
        return None
    ours = list(inspect.signature(value).parameters.values())
    if isinstance(owner, type) and not isinstance(inspect.getattr_static(owner, part), staticmethod):
        ours = ours[1:]
    required = [parameter.name for parameter in ours[len(theirs):]
                if parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)]
    if len(ours) < len(theirs) or required:
        return f'takes {[parameter.name for parameter in ours]}, not {theirs}'
    for our, their in zip(ours, theirs):
        wants_default = their.endswith('=') and our.default is our.empty
        if wants_default or their.rstrip('=') not in ('_', our.name) or our.kind == our.KEYWORD_ONLY:
            return f'takes {our}, not {their}'
";

#[test]
fn every_name_of_triton_s_modules_is_there_with_its_parameters() {
    let compare = |surface: &str| {
        let model = Model::texts("", COMPARES);
        std::fs::write(model.path().join("surface.json"), surface).unwrap();
        answer(&mut model.instance(), &["x"]).unwrap()
    };
    assert_eq!(compare(include_str!("model/triton-surface.json")), [""; 0]);
    for different in [
        r#"{"triton_python_backend_utils": {"nothing": null}}"#,
        r#"{"c_python_backend_utils": {"Tensor.nothing": []}}"#,
        r#"{"c_python_backend_utils": {"Tensor.name": ["of"]}}"#,
        r#"{"c_python_backend_utils": {"TritonError.__init__": ["message=", "code="]}}"#,
    ] {
        assert_eq!(compare(different).len(), 1, "{different} is noticed");
    }
}

#[test]
fn names_of_triton_s_modules_are_what_they_are_there() {
    let code = "
import os
import c_python_backend_utils
from typing import List, Optional
FOLDER = pb_utils.get_model_dir()
class TritonPythonModel:
    def initialize(self, args):
        assert FOLDER == os.path.dirname(os.path.abspath(__file__)) == pb_utils.get_model_dir()
    def execute(self, requests: List[pb_utils.InferenceRequest]) -> List[pb_utils.InferenceResponse]:
        assert isinstance(requests[0], c_python_backend_utils.InferenceRequest)
        error: pb_utils.TritonError = pb_utils.TritonError('x', pb_utils.TritonError.NOT_FOUND)
        assert error.code() == c_python_backend_utils.TritonError.NOT_FOUND and error.code().name == 'NOT_FOUND'
        sender: c_python_backend_utils.InferenceResponseSender = requests[0].get_response_sender()
        assert isinstance(sender, c_python_backend_utils.InferenceResponseSender)
        pb_utils.Logger.log('x', pb_utils.Logger.LogLevel.ERROR)
        made = pb_utils.InferenceRequest('id', 7, [], [], 'm', 1, 0, 5, pb_utils.PreferredMemory(
            pb_utils.TRITONSERVER_MEMORY_CPU, 0), requests[0].trace(), {'a': 1})
        assert (made.request_id(), made.correlation_id(), made.timeout()) == ('id', 7, 5)
        names = c_python_backend_utils.MetricKind.COUNTER.name, self.first(made.exec(decoupled=True)).error().message()
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array(names, dtype=object))])]
    def first(self, responses: pb_utils.ResponseIterator) -> Optional[pb_utils.InferenceResponse]:
        return next(iter(responses))
";
    let said = answer(&mut Model::texts("", code).instance(), &["x"]).unwrap();
    assert!(said[0] == "COUNTER" && said[1].contains("a request to model 'm'"), "{said:?}");
}

#[test]
fn imports_are_looked_for_where_triton_does() {
    let said = |imports: &str, word: &str, prepare: &dyn Fn(&std::path::Path)| {
        let code = format!(
            "
{imports}
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array([{word}], dtype=object))]) for _ in requests]
"
        );
        let model = Model::texts("", &code);
        let write = |path: &str, text: &str| {
            let path = model.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("helper.py", "WORD = 'helper'");
        write("utils.py", "from . import helper\nWORD = 'utils ' + helper.WORD");
        write("inner/deep.py", "from ..helper import WORD");
        write("../beside/code.py", "WORD = 'beside'");
        prepare(&model.path());
        answer(&mut model.instance(), &["x"]).unwrap().remove(0)
    };
    let nothing = |_: &std::path::Path| {};
    for (imports, word, expected) in [
        ("from . import helper", "helper.WORD", "helper"),
        ("from .helper import WORD", "WORD", "helper"),
        ("from .utils import WORD", "WORD", "utils helper"),
        ("import helper", "helper.WORD", "helper"),
        ("from .inner.deep import WORD", "WORD", "helper"),
        ("from beside.code import WORD", "WORD", "beside"),
        ("import pickle", "pickle.loads(pickle.dumps(TritonPythonModel)).__name__", "TritonPythonModel"),
    ] {
        let said_so = std::panic::catch_unwind(|| said(imports, word, &nothing));
        assert_eq!(said_so.ok().as_deref(), Some(expected), "{imports}");
    }
    let package = |folder: &std::path::Path| std::fs::write(folder.join("__init__.py"), "WORD = 'package'").unwrap();
    assert_eq!(said("from . import WORD, helper", "WORD + helper.WORD", &package), "packagehelper");
    let linked = |folder: &std::path::Path| {
        let elsewhere = folder.join("../elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        std::fs::write(elsewhere.join("shared.py"), "WORD = 'shared'").unwrap();
        std::fs::rename(folder.join("model.py"), elsewhere.join("model.py")).unwrap();
        std::os::unix::fs::symlink(elsewhere.join("model.py"), folder.join("model.py")).unwrap();
    };
    assert_eq!(said("import helper, shared", "helper.WORD + shared.WORD", &linked), "helpershared");
}

#[test]
fn requests_without_a_gateway_have_an_error_for_a_response() {
    let code = "
class TritonPythonModel:
    def execute(self, requests):
        made = pb_utils.InferenceRequest(inputs=requests[0].inputs(), requested_output_names=[], model_name='m')
        error = made.exec().error()
        said = [error.message(), str(error.code() == pb_utils.TritonError.UNAVAILABLE)]
        try:
            pb_utils.load_model('m')
        except pb_utils.TritonModelException as error:
            said.append(str(error))
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array(said, dtype=np.object_))])]
";
    let said = answer(&mut Model::texts("", code).instance(), &["x"]).unwrap();
    assert!(said[0].starts_with("a request to model 'm' can be sent only while"), "{said:?}");
    assert!(said[1] == "True" && said[2] == said[0], "{said:?}");
}

/// Asks another model while nothing is executed: in `initialize`, in a thread once there is a file `go`, and in a process of its own.
const ASKS_IDLY: &str = "
import os, threading, time
def ask():
    made = pb_utils.InferenceRequest(inputs=[], requested_output_names=[b'OUT'], model_name=b'other', model_version=np.int64(1))
    error = made.exec().error()
    return f'{error.code().name} {error.message()}'
class TritonPythonModel:
    def initialize(self, args):
        self.said, self.folder = [ask()], pb_utils.get_model_dir()
        try:
            pb_utils.load_model('other')
        except pb_utils.TritonModelException as error:
            self.said.append(f'raised {error}')
        threading.Thread(target=self.idle, daemon=True).start()
    def idle(self):
        while not os.path.exists(os.path.join(self.folder, 'go')):
            time.sleep(0.001)
        self.said.append(ask())
        # More than fits between the processes.
        for line in range(1000):
            pb_utils.Logger.log_verbose(f'{line} ' + 'x' * 2000)
        open(os.path.join(self.folder, 'gone'), 'w').close()
    def execute(self, requests):
        reader, writer = os.pipe()
        if os.fork() == 0:
            try:
                pb_utils.Logger.log_info('forked')
                assert not requests[0].is_cancelled()
                ask()
            except pb_utils.TritonModelException as error:
                os.write(writer, str(error).encode())
            os._exit(0)
        os.close(writer)
        with open(reader) as file:
            said = self.said + [file.read()]
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array(said, dtype=np.object_))])]
    def finalize(self):
        with open(os.path.join(self.folder, 'finalized'), 'w') as file:
            file.write(ask())
";

#[test]
fn a_model_may_ask_and_log_while_nothing_is_executed() {
    let model = Model::texts("", ASKS_IDLY);
    let mut instance = model.instance();
    std::fs::write(model.path().join("go"), "").unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !model.path().join("gone").exists() {
        assert!(std::time::Instant::now() < until, "its thread waits for a request");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let said = answer(&mut instance, &["x"]).unwrap();
    let refused = "a request to model 'other' can be sent only while";
    assert_eq!(said.len(), 4, "{said:?}");
    assert!(said[0].starts_with(&format!("UNAVAILABLE {refused}")) && said[2] == said[0], "{said:?}");
    assert!(said[1].starts_with(&format!("raised {refused}")), "{said:?}");
    assert!(said[3].contains("a process that a model has forked cannot send requests"), "{said:?}");
    drop(instance);
    assert_eq!(std::fs::read_to_string(model.path().join("finalized")).unwrap(), said[0]);
}

#[test]
fn none_in_the_place_of_a_response_may_have_one_later() {
    let code = "
import threading
class TritonPythonModel:
    def execute(self, requests):
        text = requests[0].inputs()[0].as_numpy()
        if text[0] == b'later':
            response = pb_utils.InferenceResponse([pb_utils.Tensor('OUT', text)])
            final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            threading.Timer(0.05, requests[0].get_response_sender().send, (response, final)).start()
        return [None]
";
    let mut instance = Model::texts("", code).instance();
    assert_eq!(answer(&mut instance, &["later"]).unwrap(), ["later"]);
    let error = answer(&mut instance, &["never"]).unwrap_err();
    assert!(error.message.contains("Expected an 'InferenceResponse' object"), "{error}");
}

#[test]
fn a_decoupled_model_may_log_when_all_of_its_requests_were_cancelled() {
    let code = "
import os, threading, time
class TritonPythonModel:
    def execute(self, requests):
        threading.Thread(target=self.until_cancelled, args=[requests[0].get_response_sender()], daemon=True).start()
    def until_cancelled(self, sender):
        while not sender.is_cancelled():
            time.sleep(0.001)
        # More than fits between the processes.
        for line in range(1000):
            pb_utils.Logger.log_verbose(f'{line} ' + 'x' * 2000)
        open(os.path.join(pb_utils.get_model_dir(), 'gone'), 'w').close()
";
    let model = Model::texts("model_transaction_policy { decoupled: true }", code);
    let mut instance = model.instance();
    let instance = instance.as_stepwise().unwrap();
    instance.join(1, ExecuteRequest { in_parts: true, ..request(&["x"]) }).unwrap();
    instance.step();
    // There is room again once `execute` has returned.
    while instance.room() == 0 {
        instance.step();
    }
    instance.leave(1);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !model.path().join("gone").exists() {
        assert!(std::time::Instant::now() < until, "its thread waits for a request");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
fn a_model_that_is_not_decoupled_sends_one_response() {
    let code = "
class TritonPythonModel:
    def execute(self, requests):
        sender, said = requests[0].get_response_sender(), []
        def tried(*arguments):
            try:
                sender.send(*arguments)
            except pb_utils.TritonModelException as error:
                said.append(str(error))
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        tried(None, final)
        for parameters in [1], {1: 'x'}, {'a': None}, {'a': [1]}, {'a': np.int64(1)}:
            try:
                pb_utils.InferenceResponse([], parameters=parameters)
            except pb_utils.TritonModelException as error:
                said.append(str(error))
        made = lambda: pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array(said, dtype=np.object_))])
        tried(made())
        tried(made())
        assert said[-1] == 'Unable to send response. Non-decoupled model cannot send more than one response.'
        tried(None, final)
        return [None]
";
    let said = answer(&mut Model::texts("", code).instance(), &["x"]).unwrap();
    let values = "Expect parameters values to have type bool/int/str, found type <class";
    assert_eq!(
        said,
        [
            "Unable to send response. Non-decoupled model cannot send complete final before sending a response.",
            "Expect a dict, or the JSON of one, as parameters, got <class 'list'>",
            "Expect parameters keys to have type str, found type <class 'int'>",
            &format!("{values} 'NoneType'> in parameter 'a'"),
            &format!("{values} 'list'> in parameter 'a'"),
            &format!("{values} 'numpy.int64'> in parameter 'a'"),
        ]
    );
}

#[test]
fn wrong_arguments_raise_what_they_raise_in_triton() {
    let code = "
class TritonPythonModel:
    def execute(self, requests):
        times, used = pb_utils.MetricFamily('times', 'T', pb_utils.MetricFamily.HISTOGRAM), pb_utils.Tensor('A', np.zeros(1)).to_dlpack()
        pb_utils.Tensor.from_dlpack('A', used)
        said = []
        for wrong in (lambda: pb_utils.Logger.log('x', None), lambda: pb_utils.Logger.log('x', 1), lambda: pb_utils.Logger.log_info(None),
                      lambda: pb_utils.Tensor('A', None), lambda: pb_utils.Tensor(None, np.zeros(1)),
                      lambda: pb_utils.Tensor.from_dlpack('A', None), lambda: pb_utils.Tensor.from_dlpack('A', used),
                      lambda: times.Metric(buckets=[1, 1, 2])):
            try:
                wrong()
            except Exception as error:
                said.append(type(error).__name__)
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array(said, dtype=np.object_))])]
";
    let said = answer(&mut Model::texts("", code).instance(), &["x"]).unwrap();
    assert_eq!(said, [["TypeError"; 5].as_slice(), &["TritonModelException"; 3]].concat());
}

#[test]
fn models_have_metrics_of_their_own() {
    let code = "
class TritonPythonModel:
    def initialize(self, args):
        family = pb_utils.MetricFamily('seen_total', 'Texts', pb_utils.MetricFamily.COUNTER)
        self.seen = family.Metric({'kind': 'text'})
        self.level = pb_utils.MetricFamily(name='level', description='L', kind=pb_utils.MetricFamily.GAUGE).Metric()
        self.times = pb_utils.MetricFamily('times', 'T', pb_utils.MetricFamily.HISTOGRAM).Metric(buckets=[1, 10])
    def execute(self, requests):
        self.seen.increment(2)
        self.level.set(7)
        self.level.increment(-1.5)
        self.times.observe(3)
        same = pb_utils.MetricFamily('seen_total', 'Texts', pb_utils.MetricFamily.COUNTER).Metric({'kind': 'text'})
        assert same.value() == self.seen.value() != 0
        said = [str(self.seen.value()), str(self.level.value())]
        for wrong in (lambda: self.seen.set(1), lambda: self.seen.increment(-1), lambda: self.times.value(),
                      lambda: self.level.set(float('nan')), lambda: pb_utils.MetricFamily('a b', '', 0),
                      lambda: pb_utils.MetricFamily('level', 'L', pb_utils.MetricFamily.COUNTER)):
            try:
                wrong()
            except pb_utils.TritonModelException:
                said.append('refused')
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array(said, dtype=np.object_))])]
";
    let model = Model::texts("", code);
    let mut instance = model.instance();
    let metrics = || {
        let mut out = trireme_telemetry::metrics::Exposition::default();
        trireme_runtime::statistics::own::export(&mut out);
        out.into_text()
    };
    assert!(metrics().contains("seen_total{kind=\"text\",model=\"m\"} 0\n"), "{}", metrics());
    let said = answer(&mut instance, &["x"]).unwrap();
    assert_eq!(said, ["2.0", "5.5", "refused", "refused", "refused", "refused", "refused", "refused"]);
    assert!(answer(&mut instance, &["y"]).is_ok());
    for line in [
        "seen_total{kind=\"text\",model=\"m\"} 4\n",
        "level{model=\"m\"} 5.5\n",
        "times_bucket{model=\"m\",le=\"10\"} 2\n",
    ] {
        assert!(metrics().contains(line), "{line} in {}", metrics());
    }
    drop(instance);
    assert!(!metrics().contains("seen_total"));
}
