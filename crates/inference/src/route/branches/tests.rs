//! Checks how graphs are split, and that their branches produce the same tensors as the linear route.

use std::hash::{DefaultHasher, Hash, Hasher};

use proptest::prelude::*;

use super::*;
use crate::{InferError, ModelKey, StepInput, StepOutput};

/// A step with these inputs and outputs; names at the model are those of the tensors.
fn step(model: &str, takes: &[&str], makes: &[&str]) -> Step {
    let input = |&name: &&str| StepInput {
        name: name.into(),
        tensor: name.into(),
        optional: false,
        reshapes: Vec::new(),
        crosses: false,
    };
    let output = |&name: &&str| StepOutput { name: name.into(), tensor: name.into() };
    Step {
        model: ModelKey { name: model.into(), version: 1 },
        inputs: takes.iter().map(input).collect(),
        outputs: makes.iter().map(output).collect(),
        dead: Vec::new(),
        level: 0,
        content: None,
    }
}

/// A route of these steps that ends with `outputs`.
fn route(mut steps: Vec<Step>, inputs: &[&str], outputs: &[&str]) -> Route {
    let_die(&mut steps, inputs, |tensor| outputs.contains(&tensor));
    Route::resume(ModelKey { name: "e".into(), version: 1 }, true, 0, steps)
}

fn tensor(name: &str, value: u64) -> Tensor {
    Tensor::from_values(name, [1], vec![value as i64]).unwrap()
}

fn names(tensors: &[Tensor]) -> Vec<&str> {
    tensors.iter().map(Tensor::name).collect()
}

fn models(route: &Route) -> Vec<&str> {
    route.remaining().iter().map(|step| step.model.name.as_str()).collect()
}

/// A fake model whose outputs depend on the model, the output name and all inputs. Sometimes it leaves an output out.
fn execute(step: &Step, inputs: &[Tensor]) -> Vec<Tensor> {
    let make = |output: &StepOutput| {
        let mut hasher = DefaultHasher::new();
        (&step.model.name, &output.name).hash(&mut hasher);
        inputs.iter().for_each(|input| (input.name(), input.data()).hash(&mut hasher));
        let value = hasher.finish();
        (!value.is_multiple_of(11)).then(|| tensor(&output.name, value))
    };
    step.outputs.iter().filter_map(make).collect()
}

/// Runs a route to its end, and records the models that ran.
fn walk(mut route: Route, mut live: Vec<Tensor>, ran: &mut Vec<String>) -> Result<Vec<Tensor>, InferError> {
    while let Some(step) = route.current().cloned() {
        let inputs = route.step_inputs(&live)?;
        ran.push(step.model.name.to_string());
        route.advance(&mut live, execute(&step, &inputs));
    }
    Ok(live)
}

/// All branches that can begin.
fn begin(branches: &mut Branches) -> Vec<Branch> {
    std::iter::from_fn(|| branches.begin()).collect()
}

fn brought(tensors: &[&str]) -> Vec<Tensor> {
    tensors.iter().map(|name| tensor(name, 1)).collect()
}

/// tok -> (left -> left2, right) -> join -> last
fn diamond() -> Route {
    let steps = vec![
        step("tok", &["TEXT"], &["ids", "mask"]),
        step("left", &["ids", "mask"], &["l"]),
        step("right", &["ids"], &["r"]),
        step("left2", &["l", "mask"], &["l2"]),
        step("join", &["l2", "r", "mask"], &["j"]),
        step("last", &["j"], &["out"]),
    ];
    route(steps, &["TEXT"], &["out"])
}

#[test]
fn a_chain_has_no_branches() {
    let steps = vec![
        step("tok", &["TEXT"], &["ids", "mask"]),
        step("bert", &["ids", "mask"], &["hidden"]),
        step("pool", &["hidden", "mask"], &["out"]),
    ];
    assert!(route(steps, &["TEXT"], &["out"]).branches(&brought(&["TEXT"])).is_none());
    assert!(route(vec![step("m", &["a"], &["b"])], &["a"], &["b"]).branches(&brought(&["a"])).is_none());
}

#[test]
fn a_diamond_is_cut_where_it_forks_and_joins() {
    let mut branches = diamond().branches(&brought(&["TEXT"])).unwrap();
    let first = begin(&mut branches);
    assert_eq!(first.iter().map(|branch| models(&branch.route)).collect::<Vec<_>>(), [["tok"]]);
    assert_eq!(names(&first[0].tensors), ["TEXT"]);
    assert_eq!(first[0].route.remaining()[0].dead, ["TEXT"]);

    branches.end(0, brought(&["ids", "mask"]));
    let middle = begin(&mut branches);
    let found: Vec<_> = middle.iter().map(|b| (b.number, models(&b.route), names(&b.tensors))).collect();
    assert_eq!(found, [(1, vec!["left", "left2"], vec!["ids", "mask"]), (2, vec!["right"], vec!["ids"])]);
    let dead: Vec<_> = middle[0].route.remaining().iter().map(|step| step.dead.clone()).collect();
    assert_eq!(dead, [vec!["ids"], vec!["mask", "l"]], "the mask is needed again, but the gateway has it");

    branches.end(2, brought(&["r"]));
    assert!(begin(&mut branches).is_empty(), "the other half is under way");
    branches.end(1, brought(&["l2"]));
    let last = begin(&mut branches);
    assert_eq!(models(&last[0].route), ["join", "last"]);
    assert_eq!(names(&last[0].tensors), ["l2", "r", "mask"]);
    branches.end(3, brought(&["out"]));
    assert_eq!(names(&branches.outputs()), ["out"]);
}

#[test]
fn branches_that_never_join_end_in_the_order_of_the_route() {
    let steps = vec![step("b", &["x"], &["second"]), step("a", &["x"], &["first"])];
    let mut branches = route(steps, &["x", "stray"], &["first", "second"]).branches(&brought(&["x", "stray"])).unwrap();
    assert_eq!(begin(&mut branches).len(), 2);
    branches.end(1, brought(&["first"]));
    branches.end(0, brought(&["second"]));
    assert_eq!(names(&branches.outputs()), ["second", "first"]);
}

#[test]
fn a_branch_waits_for_none_but_those_it_takes_from() {
    // Two roots; the step after the quick one begins while the slow one runs.
    let steps = vec![
        step("slow", &["x"], &["s"]),
        step("quick", &["x"], &["q"]),
        step("after", &["q"], &["a"]),
        step("beside", &["q"], &["b"]),
        step("join", &["s", "a", "b"], &["out"]),
    ];
    let mut branches = route(steps, &["x"], &["out"]).branches(&brought(&["x"])).unwrap();
    let begun = begin(&mut branches);
    assert_eq!(begun.iter().map(|branch| models(&branch.route)).collect::<Vec<_>>(), [["slow"], ["quick"]]);
    branches.end(1, brought(&["q"]));
    let begun = begin(&mut branches);
    assert_eq!(begun.iter().map(|branch| models(&branch.route)).collect::<Vec<_>>(), [["after"], ["beside"]]);
}

#[test]
fn levels_and_versions_go_along() {
    let level = |model: &ModelKey| if model.name == "right" { 2 } else { 0 };
    let mut branches = diamond().at_levels(level).branches(&brought(&["TEXT"])).unwrap();
    begin(&mut branches);
    branches.end(0, brought(&["ids", "mask"]));
    let levels: Vec<u32> = begin(&mut branches).iter().map(|b| b.route.remaining()[0].level).collect();
    assert_eq!(levels, [0, 2]);
}

/// For each step: its inputs (as indices among all tensors that exist by then, each with whether it is optional) and
/// its number of outputs. Then the indices of the requested outputs.
type Graph = (Vec<(Vec<(usize, bool)>, usize)>, Vec<usize>);

fn graph() -> impl Strategy<Value = Graph> {
    let input = (any::<usize>(), any::<bool>());
    let step = (proptest::collection::vec(input, 1..4), 1..3usize);
    (proptest::collection::vec(step, 1..12), proptest::collection::vec(any::<usize>(), 1..4))
}

/// The steps of a graph, and its requested outputs.
fn build((steps, asked): &Graph) -> (Vec<Step>, Vec<String>) {
    let mut tensors = vec!["in0".to_owned(), "in1".to_owned()];
    let mut built = Vec::new();
    for (number, (takes, makes)) in steps.iter().enumerate() {
        let mut inputs: Vec<StepInput> = Vec::new();
        for &(take, optional) in takes {
            let tensor = &tensors[take % tensors.len()];
            let name = format!("i{}", inputs.len());
            inputs.push(StepInput {
                name: name.into(),
                tensor: tensor.as_str().into(),
                optional,
                reshapes: Vec::new(),
                crosses: false,
            });
        }
        let made: Vec<String> = (0..*makes).map(|output| format!("t{number}.{output}")).collect();
        let made: Vec<&str> = made.iter().map(String::as_str).collect();
        built.push(Step { inputs, ..step(&format!("m{number}"), &[], &made) });
        tensors.extend(made.iter().map(|&name| name.to_owned()));
    }
    let made = &tensors[2..];
    (built, asked.iter().map(|&ask| made[ask % made.len()].clone()).collect())
}

proptest! {
    /// In whatever order branches end, every step runs once, after its inputs exist, and the result is that of the
    /// linear route.
    #[test]
    fn branches_give_what_the_linear_walk_gives(graph in graph(), order in proptest::collection::vec(any::<usize>(), 24)) {
        let (steps, asked) = build(&graph);
        let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
        let count = steps.len();
        let route = route(steps, &["in0", "in1"], &asked);
        let request = brought(&["in0", "in1"]);
        let mut linear = Vec::new();
        let expected = walk(route.clone(), request.clone(), &mut linear);
        let told: Vec<Name> = route.in_ledger_order().into_iter().map(|step| step.model.name.clone()).collect();
        let Some(mut branches) = route.branches(&request) else {
            prop_assert_eq!(told, models(&route));
            return Ok(());
        };
        let mut hops = BTreeMap::new();

        let (mut under_way, mut ran, mut failed) = (Vec::new(), Vec::new(), None);
        for choice in order {
            under_way.extend(begin(&mut branches));
            if under_way.is_empty() {
                break;
            }
            let branch: Branch = under_way.swap_remove(choice % under_way.len());
            hops.insert(branch.number, models(&branch.route).into_iter().map(Name::from).collect::<Vec<_>>());
            match walk(branch.route, branch.tensors, &mut ran) {
                Ok(tensors) => branches.end(branch.number, tensors),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        match (expected, failed) {
            (Ok(expected), None) => {
                prop_assert_eq!(branches.outputs(), expected);
                prop_assert_eq!(told, hops.into_values().flatten().collect::<Vec<_>>());
                linear.sort();
                ran.sort();
                prop_assert_eq!(ran.len(), count);
                prop_assert_eq!(ran, linear);
            }
            // A required input is missing. Which one is found first depends on the order.
            (Err(_), Some(error)) => prop_assert!(error.message.contains("was not produced by any step before it")),
            (expected, failed) => prop_assert!(false, "linear {:?}, branches {:?}", expected, failed),
        }
    }
}
