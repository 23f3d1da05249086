//! Faults of ensembles in Triton's words, and the plans of sound ones.

use std::sync::Arc;

use trireme_inference::{PlanStep, Reshape, Tensor};

use super::*;

/// Dims as config.pbtxt has them: `TYPE_FP32 [-1]`.
fn tensors(role: &str, tensors: &[(&str, &str)]) -> String {
    let one = |(name, kind): &(&str, &str)| {
        let (datatype, dims) = kind.split_once(' ').unwrap();
        format!("{role} {{ name: '{name}' data_type: {datatype} dims: {dims} }}\n")
    };
    tensors.iter().map(one).collect()
}

fn model(name: &str, more: &str, inputs: &[(&str, &str)], outputs: &[(&str, &str)]) -> ModelConfig {
    let text = format!("backend: 'b' {more}\n{}{}", tensors("input", inputs), tensors("output", outputs));
    ModelConfig::parse(&text, name).unwrap_or_else(|error| panic!("{error}"))
}

/// `model: a=A b=B -> c=C`, with `model@2` for version 2.
fn step(text: &str) -> String {
    let (model, maps) = text.split_once(": ").unwrap();
    let (name, version) = model.split_once('@').unwrap_or((model, "-1"));
    let (inputs, outputs) = maps.split_once("->").unwrap();
    let map = |role: &str, entries: &str| {
        let entry = |entry: &str| {
            let (key, value) = entry.split_once('=').unwrap();
            format!("{role} {{ key: '{key}' value: '{value}' }} ")
        };
        entries.split_whitespace().map(entry).collect::<String>()
    };
    format!(
        "step {{ model_name: '{name}' model_version: {version} {}{} }}\n",
        map("input_map", inputs),
        map("output_map", outputs)
    )
}

fn ensemble_text(more: &str, inputs: &[(&str, &str)], outputs: &[(&str, &str)], steps: &[&str]) -> String {
    let steps: String = steps.iter().map(|text| step(text)).collect();
    format!(
        "platform: 'ensemble' {more}\n{}{}ensemble_scheduling {{ {steps} }}",
        tensors("input", inputs),
        tensors("output", outputs)
    )
}

fn ensemble(name: &str, inputs: &[(&str, &str)], outputs: &[(&str, &str)], steps: &[&str]) -> ModelConfig {
    ModelConfig::parse(&ensemble_text("", inputs, outputs, steps), name).unwrap_or_else(|error| panic!("{error}"))
}

/// Compiles the first of `models`; all of them exist, each in version 1 only.
fn compile(models: Vec<ModelConfig>) -> Result<RoutePlan, String> {
    let models: Vec<_> = models.into_iter().map(Arc::new).collect();
    let lookup = |name: &str, version: Option<i64>| {
        models.iter().find(|model| model.name == name && version.is_none_or(|v| v == 1)).cloned()
    };
    let compiled = compile_ensemble(&models[0], &lookup).map_err(|error| error.to_string())?;
    assert!(!compiled.config.decoupled);
    Ok(compiled.plan)
}

const V: &str = "TYPE_FP32 [-1]";
const FP: &str = "TYPE_FP32 [4]";

/// A model of one input `i` and one output `o`, both [`FP`].
fn plain(name: &str) -> ModelConfig {
    model(name, "", &[("i", FP)], &[("o", FP)])
}

fn show(step: &PlanStep) -> String {
    let inputs = step.inputs.iter().map(|i| format!("{}={}{}", i.name, i.tensor, if i.optional { "?" } else { "" }));
    let outputs = step.outputs.iter().map(|o| format!("{}={}", o.name, o.tensor));
    let join = |parts: Vec<String>| parts.join(" ");
    format!("{}: {} -> {}", step.model, join(inputs.collect()), join(outputs.collect()))
}

fn shown(plan: &RoutePlan) -> Vec<String> {
    plan.steps.iter().map(show).collect()
}

#[test]
fn static_faults_have_triton_texts() {
    let (a, b) = ([("A", V)], [("B", V)]);
    let with = |more: &str| ensemble_text(more, &a, &b, &["n: i=A -> o=B"]);
    let flow = |steps: &[&str]| ensemble_text("", &a, &b, steps);
    let bare = |step: &str| format!("platform: 'ensemble' ensemble_scheduling {{ {step} }}");
    let table = [
        (with("instance_group {}"), "instance group should not be specified for ensemble 'e'"),
        (with("optimization {}"), "optimization should not be specified for ensemble 'e'"),
        (with("model_warmup {}"), "model_warmup can not be specified for ensemble 'e'"),
        (bare(""), "must specify 'step' for ensemble 'e'"),
        (bare("step {}"), "must specify 'model_name' in step 0 of ensemble 'e'"),
        (bare("step { model_name: 'n' }"), "must specify 'input_map' in step 0 of ensemble 'e'"),
        (
            bare("step { model_name: 'n' input_map { key: 'i' value: 'A' } }"),
            "must specify 'output_map' in step 0 of ensemble 'e'",
        ),
        (
            flow(&["n: i=A -> o=B", "n: i=A -> o=B"]),
            "ensemble tensor 'B' can appear in an output map only once for ensemble 'e' step 1",
        ),
        (
            flow(&["n: i=A -> o=B p=B"]),
            "ensemble tensor 'B' can appear in an output map only once for ensemble 'e' step 0",
        ),
        (
            flow(&["n: i=A -> o=B", "n: i=B -> o=A"]),
            "ensemble tensor 'A' is an input of ensemble 'e' and cannot appear in the output map of step 1",
        ),
        (flow(&["n: i=A -> o=B", "n: i=A -> o=x"]), "ensemble tensor 'x' is unused in ensemble 'e'"),
        (flow(&["n: i=A -> o=B", "n: i=x -> o=y", "n: i=y -> o=x"]), "ensemble tensor 'x' is unused in ensemble 'e'"),
        (flow(&["n: i=x -> o=B"]), "ensemble input 'A' for ensemble e' is not used"),
        (flow(&["n: i=A -> o=x"]), "ensemble output 'B' for ensemble e' is not used"),
        (
            flow(&["n: i=A j=x -> o=y", "n: i=y -> o=B"]),
            "output 'B' for ensemble 'e' is not written: at least one of its depending tensors, 'x', is not connected",
        ),
        (flow(&["n: i=A j=B -> o=B"]), "output 'B' for ensemble 'e' is not written"),
        (flow(&["n: i=A j=x -> o=B", "n: i=B -> o=x"]), "output 'B' for ensemble 'e' is not written"),
    ];
    for (text, expected) in table {
        assert_eq!(ModelConfig::parse(&text, "e").unwrap_err().to_string(), expected, "{text}");
    }
}

#[test]
fn faults_against_composing_models_have_triton_texts_and_say_where() {
    let e = |steps: &[&str]| ensemble("e", &[("A", FP)], &[("B", FP)], steps);
    let table = [
        (
            vec![e(&["n: i=A -> o=x", "q: i=x -> o=B"])],
            "ensemble e contains models that are not available or ambiguous: n, q",
        ),
        (
            vec![e(&["n@2: i=A -> o=B"]), plain("n")],
            "ensemble 'e' depends on 'n' whose required version 2 is not loaded.",
        ),
        (
            vec![e(&["n@0: i=A -> o=B"]), plain("n")],
            "ensemble 'e' depends on 'n' whose required version 0 is not loaded. A step without 'model_version' asks \
             for version 0; -1 asks for the latest",
        ),
        (
            vec![e(&["n: i=A -> o=B"]), model("n", "", &[("i", FP), ("j", FP)], &[("o", FP)])],
            "in ensemble e, input j in model n is not mapped to any ensemble tensors",
        ),
        (
            vec![e(&["n: i=A j=A -> o=B"]), plain("n")],
            "in ensemble e, ensemble tensor A is mapping to non-existing input j in model n",
        ),
        (
            vec![e(&["n: i=A -> p=B"]), plain("n")],
            "in ensemble e, ensemble tensor B is mapped from non-existing output p in model n",
        ),
        (
            vec![e(&["n: i=A -> o=B"]), model("n", "", &[("i", "TYPE_INT32 [4]")], &[("o", FP)])],
            "in ensemble e, ensemble tensor A: inconsistent data type: TYPE_FP32 is inferred from model e while \
             TYPE_INT32 is inferred from model n; step 0 'n' input 'i' expects TYPE_INT32 [4], ensemble input 'A' gives \
             TYPE_FP32 [4]",
        ),
        (
            vec![
                e(&["n: i=A -> o=x", "q: i=x -> o=B"]),
                model("n", "", &[("i", FP)], &[("o", "TYPE_FP32 [-1, 768]")]),
                model("q", "", &[("i", "TYPE_FP32 [-1, 384]")], &[("o", FP)]),
            ],
            "in ensemble e, ensemble tensor x: inconsistent shape: [-1,768] is inferred from model n while [-1,384] is \
             inferred from model q; step 1 'q' input 'i' expects TYPE_FP32 [-1,384], step 0 'n' output 'o' gives \
             TYPE_FP32 [-1,768]",
        ),
        (
            vec![e(&["n: i=A -> o=B"]), model("n", "", &[("i", FP)], &[("o", "TYPE_FP32 [5]")])],
            "in ensemble e, ensemble tensor B: inconsistent shape: [4] is inferred from model e while [5] is inferred \
             from model n; step 0 'n' output 'o' gives TYPE_FP32 [5], ensemble output 'B' expects TYPE_FP32 [4]",
        ),
        // Neither the dims agree, nor the full shapes.
        (
            vec![e(&["n: i=A -> o=B"]), model("n", "max_batch_size: 8", &[("i", "TYPE_FP32 [5]")], &[("o", FP)])],
            "in ensemble e, ensemble tensor A: inconsistent shape: [4] is inferred from model e while [-1,5] is \
             inferred from model n; step 0 'n' input 'i' expects TYPE_FP32 [-1,5], ensemble input 'A' gives TYPE_FP32 \
             [4]",
        ),
        (vec![e(&["e: i=A -> o=B"])], "circular dependency between ensembles: e -> ... -> e -> e"),
        (
            vec![
                e(&["f: A=A -> B=B"]),
                ensemble("f", &[("A", FP)], &[("B", FP)], &["g: A=A -> B=B"]),
                ensemble("g", &[("A", FP)], &[("B", FP)], &["e: A=A -> B=B"]),
            ],
            "circular dependency between ensembles: e -> ... -> g -> e",
        ),
        (
            vec![
                e(&["p: i=A -> o=x", "q: i=A -> o=y", "n: i=x j=y -> o=B"]),
                model("p", "model_transaction_policy { decoupled: true }", &[("i", FP)], &[("o", FP)]),
                model("q", "model_transaction_policy { decoupled: true }", &[("i", FP)], &[("o", FP)]),
                model("n", "", &[("i", FP), ("j", FP)], &[("o", FP)]),
            ],
            "in ensemble e, step of model 'n' receives inputs originated from different decoupled models",
        ),
        (
            vec![
                e(&["p: i=A -> o=x", "q: i=x -> o=B"]),
                model("p", "model_transaction_policy { decoupled: true }", &[("i", FP)], &[("o", FP)]),
                model("q", "model_transaction_policy { decoupled: true }", &[("i", FP)], &[("o", FP)]),
            ],
            "in ensemble e, step of decoupled model 'q' receives inputs originated from another decoupled model, which is \
             not supported",
        ),
    ];
    for (models, expected) in table {
        assert_eq!(compile(models).unwrap_err(), expected);
    }
}

#[test]
fn an_ensemble_with_a_decoupled_model_is_decoupled() {
    let text = ensemble_text("", &[("A", FP)], &[("B", FP)], &["p: i=A -> o=x", "n: i=x -> o=B"]);
    let e = Arc::new(ModelConfig::parse(&text, "e").unwrap());
    let p = model("p", "model_transaction_policy { decoupled: true }", &[("i", FP)], &[("o", FP)]);
    let n = model("n", "", &[("i", FP)], &[("o", FP)]);
    let models = [Arc::new(p), Arc::new(n)];
    let lookup = |name: &str, _| models.iter().find(|model| model.name == name).cloned();
    let compiled = compile_ensemble(&e, &lookup).unwrap();
    assert!(compiled.config.decoupled && !e.decoupled);
    assert!(compiled.config.to_json().contains(r#""decoupled":true"#), "{}", compiled.config.to_json());
}

#[test]
fn an_ensemble_may_not_batch_more_than_its_models() {
    let text = ensemble_text("max_batch_size: 3", &[("A", FP)], &[("B", FP)], &["n: i=A -> o=B"]);
    let e = ModelConfig::parse(&text, "e").unwrap();
    let n = |max: &str| model("n", max, &[("i", FP)], &[("o", FP)]);
    assert_eq!(
        compile(vec![e.clone(), n("max_batch_size: 2")]).unwrap_err(),
        "ensemble e allows maximum batch size 3, but it contains model n which only allows maximum batch size to be 2"
    );
    compile(vec![e, n("max_batch_size: 3")]).unwrap();
}

#[test]
fn steps_that_batch_mix_with_steps_that_do_not_where_full_shapes_agree() {
    let text = ensemble_text("max_batch_size: 8", &[("A", FP)], &[("B", FP)], &["n: i=A -> o=x", "q: i=x -> o=B"]);
    let full = "TYPE_FP32 [-1, 4]";
    let plan = compile(vec![
        ModelConfig::parse(&text, "e").unwrap(),
        model("n", "", &[("i", full)], &[("o", full)]),
        model("q", "max_batch_size: 8", &[("i", FP)], &[("o", FP)]),
    ]);
    assert_eq!(shown(&plan.unwrap()), ["n: i=A -> o=x", "q: i=x -> o=B"]);
}

#[test]
fn an_ensemble_without_a_batch_dimension_goes_over_steps_that_batch() {
    let dims = ensemble("e", &[("A", FP)], &[("B", FP)], &["n: i=A -> o=B"]);
    let full = ensemble("e", &[("A", "TYPE_FP32 [-1, 4]")], &[("B", "TYPE_FP32 [-1, 4]")], &["n: i=A -> o=B"]);
    let batching = model("n", "max_batch_size: 8", &[("i", FP)], &[("o", FP)]);
    for e in [dims, full] {
        assert_eq!(shown(&compile(vec![e, batching.clone()]).unwrap()), ["n: i=A -> o=B"]);
    }
    let text = ensemble_text("max_batch_size: 8", &[("A", FP)], &[("B", FP)], &["n: i=A -> o=B"]);
    compile(vec![ModelConfig::parse(&text, "e").unwrap(), plain("n")]).unwrap();
}

#[test]
fn reshapes_are_done_where_a_tensor_enters_a_step_or_leaves_for_the_client() {
    let reshape = |dims: &str, shape: &str| format!("TYPE_FP32 {dims} reshape {{ shape: {shape} }}");
    let view = |from: &[i64], to: &[i64]| Reshape { from: from.into(), to: to.into() };
    let (a, b) = (reshape("[4]", "[2, 2]"), reshape("[1, 4]", "[2, 2]"));
    let (x, y) = (reshape("[2, 2]", "[4]"), reshape("[2, 2]", "[4]"));
    let outer = ensemble("e", &[("A", &a)], &[("B", &b)], &["f: X=A -> Y=B"]);
    let nested = ensemble("f", &[("X", &x)], &[("Y", &y)], &["n: i=X -> o=Y"]);
    let plan = compile(vec![outer, nested, plain("n")]).unwrap();
    assert_eq!(plan.steps[0].inputs[0].reshapes, [view(&[4], &[2, 2]), view(&[2, 2], &[4])]);
    assert_eq!(plan.reshapes["B"], [view(&[4], &[2, 2]), view(&[2, 2], &[1, 4])]);
    // An output of a nested ensemble reaches a step beside it under the shape that the nested one declares.
    let outer = ensemble("e", &[("A", &a)], &[("B", FP)], &["f: X=A -> Y=m", "q: i=m -> o=B"]);
    let nested = ensemble("f", &[("X", &x)], &[("Y", &y)], &["n: i=X -> o=Y"]);
    let q = model("q", "", &[("i", "TYPE_FP32 [2, 2]")], &[("o", FP)]);
    let plan = compile(vec![outer, nested, plain("n"), q]).unwrap();
    assert_eq!(plan.steps[1].inputs[0].reshapes, [view(&[4], &[2, 2])]);
    assert!(plan.reshapes.is_empty());
}

#[test]
fn steps_run_when_their_tensors_exist_else_in_configured_order() {
    let e = ensemble(
        "e",
        &[("A", FP)],
        &[("B", FP), ("C", FP)],
        &["n: i=y -> o=B", "q: i=x -> o=y", "p: i=A -> o=x", "r: i=x -> o=C"],
    );
    let plan = compile(vec![e, plain("n"), plain("q"), plain("p"), plain("r")]).unwrap();
    assert_eq!(shown(&plan), ["p: i=A -> o=x", "q: i=x -> o=y", "n: i=y -> o=B", "r: i=x -> o=C"]);
    assert_eq!(plan.outputs, ["B", "C"]);
    assert!(plan.ensemble);
}

#[test]
fn optional_inputs_and_spare_outputs_may_stay_unmapped() {
    let optional = "input { name: 'j' data_type: TYPE_FP32 dims: 4 optional: true }
                    input { name: 'k' data_type: TYPE_FP32 dims: 4 optional: true }";
    let n = model("n", optional, &[("i", FP)], &[("o", FP), ("spare", FP)]);
    let plan = compile(vec![ensemble("e", &[("A", FP)], &[("B", FP)], &["n: i=A k=A -> o=B"]), n]).unwrap();
    assert_eq!(shown(&plan), ["n: k=A? i=A -> o=B"]);
}

#[test]
fn nested_ensembles_are_flattened_under_names_of_their_own() {
    // Every level calls its tensors A, x and B; the outer one has a tensor called as a flattened one would be.
    let inner = ensemble("f", &[("A", FP)], &[("B", FP)], &["n: i=A -> o=x", "n: i=x -> o=B"]);
    let outer =
        ensemble("e", &[("A", FP)], &[("B", FP), ("f/x", FP)], &["f: A=A -> B=x", "f: A=x -> B=B", "n: i=x -> o=f/x"]);
    let plan = compile(vec![outer, inner, plain("n")]).unwrap();
    assert_eq!(
        shown(&plan),
        ["n: i=A -> o=f/x#2", "n: i=f/x#2 -> o=x", "n: i=x -> o=f/x#3", "n: i=f/x#3 -> o=B", "n: i=x -> o=f/x",]
    );
    assert_eq!(plan.model, "e");
}

#[test]
fn optional_inputs_of_nested_ensembles_reach_only_steps_that_can_do_without() {
    let text = format!(
        "{} input {{ name: 'O' data_type: TYPE_FP32 dims: 4 optional: true }}",
        ensemble_text("", &[("A", FP)], &[("B", FP)], &["n: i=A j=O -> o=B"])
    );
    let inner = ModelConfig::parse(&text, "f").unwrap();
    let outer = || ensemble("e", &[("A", FP)], &[("B", FP)], &["f: A=A -> B=B"]);
    let optional = "input { name: 'j' data_type: TYPE_FP32 dims: 4 optional: true }";
    let relaxed = model("n", optional, &[("i", FP)], &[("o", FP)]);
    assert_eq!(shown(&compile(vec![outer(), inner.clone(), relaxed]).unwrap()), ["n: i=A -> o=B"]);
    let strict = model("n", "", &[("i", FP), ("j", FP)], &[("o", FP)]);
    assert_eq!(
        compile(vec![outer(), inner, strict]).unwrap_err(),
        "in ensemble e, input j in model n is not mapped to any ensemble tensors"
    );
}

#[test]
fn a_nested_output_that_is_an_input_is_refused() {
    let inner = ensemble("f", &[("A", FP)], &[("A", FP), ("B", FP)], &["n: i=A -> o=B"]);
    let outer = ensemble("e", &[("A", FP)], &[("B", FP), ("C", FP)], &["f: A=A -> A=C B=B"]);
    assert_eq!(
        compile(vec![outer, inner, plain("n")]).unwrap_err(),
        "in ensemble e, output A of nested ensemble f is one of its inputs: map the input instead"
    );
}

/// Each level doubles the steps of the one below: without a limit this would be 2^40 of them.
#[test]
fn nesting_is_bounded_in_steps_and_depth() {
    let level = |number: usize, steps: &[&str]| ensemble(&format!("e{number}"), &[("A", FP)], &[("B", FP)], steps);
    let tower = |double: bool| {
        let mut models: Vec<_> = (0..40)
            .map(|number| {
                let below = format!("e{}", number + 1);
                match double {
                    true => level(number, &[&format!("{below}: A=A -> B=x"), &format!("{below}: A=x -> B=B")]),
                    false => level(number, &[&format!("{below}: A=A -> B=B")]),
                }
            })
            .collect();
        models.push(level(40, &["n: i=A -> o=B"]));
        models.push(plain("n"));
        models
    };
    assert_eq!(compile(tower(false)).unwrap_err(), "ensemble e0 nests ensembles more than 32 deep");
    let mut wide = tower(true);
    wide.drain(..25);
    assert_eq!(compile(wide).unwrap_err(), "ensemble e31 has more than 256 steps");
}

#[test]
fn a_single_model_is_a_plan_of_one_step() {
    let optional = "input { name: 'j' data_type: TYPE_FP32 dims: 4 optional: true }";
    let plan = plan_single(&model("n", optional, &[("i", FP)], &[("o", FP)]));
    assert_eq!(shown(&plan), ["n: j=j? i=i -> o=o"]);
    assert!(!plan.ensemble);
}

/// `e`, which has the steps `s` and `r`; each takes and gives `TYPE_FP32 [-1, 3]`, in batches or not.
fn chain(ensemble: bool, giver: bool, taker: bool) -> [ModelConfig; 3] {
    let batch = |batches| if batches { "max_batch_size: 8" } else { "" };
    let rows = "TYPE_FP32 [-1,3]";
    let step = |name, batches| model(name, batch(batches), &[("i", rows)], &[("o", rows)]);
    let text = ensemble_text(batch(ensemble), &[("A", rows)], &[("B", rows)], &["s: i=A -> o=x", "r: i=x -> o=B"]);
    [ModelConfig::parse(&text, "e").unwrap(), step("s", giver), step("r", taker)]
}

#[test]
fn a_tensor_changes_its_shape_only_between_a_side_that_batches_and_one_that_does_not() {
    // Whether the giver and the taker batch, and the shapes that the giver gives and the taker gets, as in Triton.
    let table: [(bool, bool, &[i64], &[i64]); 14] = [
        (false, false, &[2, 3], &[2, 3]),
        (false, false, &[1, 3], &[1, 3]),
        (false, false, &[1, 2, 3], &[1, 2, 3]),
        (true, true, &[2, 3], &[2, 3]),
        (true, true, &[1, 3], &[1, 3]),
        (true, true, &[1, 2, 3], &[1, 2, 3]),
        (false, true, &[2, 3], &[1, 2, 3]),
        (false, true, &[1, 3], &[1, 1, 3]),
        (false, true, &[2, 2, 3], &[2, 2, 3]),
        (false, true, &[3], &[3]),
        (true, false, &[1, 2, 3], &[2, 3]),
        (true, false, &[1, 3], &[1, 3]),
        (true, false, &[2, 2, 3], &[2, 2, 3]),
        (true, false, &[2, 3], &[2, 3]),
    ];
    let tensor = |name: &str, shape: &[i64]| {
        Tensor::from_values(name, shape, vec![0f32; shape.iter().product::<i64>() as usize]).unwrap()
    };
    for (giver, taker, given, expected) in table {
        let entering = |config: &ModelConfig, plan: &RoutePlan, step: usize| {
            let route = plan.route(1, &[], &["A"], |_, _| Ok(1)).unwrap();
            config.fit_inputs(&route.remaining()[step], vec![tensor("i", given)])[0].shape().to_vec()
        };
        for other in [false, true] {
            let case = format!("{given:?} between {giver} and {taker}, the third is {other}");
            let models = chain(other, giver, taker);
            let plan = compile(models.to_vec()).unwrap();
            assert_eq!(entering(&models[2], &plan, 1), expected, "from a step to another: {case}");
            let models = chain(giver, taker, other);
            let plan = compile(models.to_vec()).unwrap();
            assert_eq!(entering(&models[1], &plan, 0), expected, "from the client to a step: {case}");
            let models = chain(taker, other, giver);
            let plan = compile(models.to_vec()).unwrap();
            let output = models[0].fit_output(&plan, tensor("B", given));
            assert_eq!(output.shape()[..], *expected, "from a step to the client: {case}");
        }
    }
}

#[test]
fn a_nested_ensemble_is_no_side_of_its_own() {
    let [mut inner, giver, taker] = chain(true, false, true);
    inner.name = "inner".to_owned();
    let rows = "TYPE_FP32 [-1,3]";
    let outer = ensemble("outer", &[("X", rows)], &[("Y", rows)], &["inner: A=X -> B=Y"]);
    let plan = compile(vec![outer, inner, giver, taker]).unwrap();
    let crosses: Vec<_> = plan.steps.iter().map(|step| step.inputs[0].crosses).collect();
    assert_eq!(crosses, [false, true], "neither the outer ensemble nor the first step batches");
    assert_eq!(plan.crossing.into_iter().collect::<Vec<_>>(), ["Y"]);
}
