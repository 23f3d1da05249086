//! Models of Triton's backend `pytorch`: the errors about them as they are, and the files that `trireme export` makes of them. Tests that
//! need torch say that they are skipped where no Python has it, as those of [`super::optimize`].

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use trireme_e2e::{Mode, ModelFolder, Setup, product, python};

use super::optimize::{python_with, run, said};

/// As in a published post, but for the size of a batch.
const CONFIG: &str = "backend: 'pytorch' max_batch_size: 4
    input [ { name: 'INPUT__0' data_type: TYPE_INT64 dims: [ -1 ] }, { name: 'INPUT__1' data_type: TYPE_INT64 dims: [ -1 ] } ]
    output [ { name: 'OUTPUT__0' data_type: TYPE_FP32 dims: [ 3 ] } ]";

/// Writes a classifier's file by `argv[2]` (trace, script, or export) to `argv[1]`, and prints its answer to two rows.
const MAKE: &str = r"
import json, sys, torch

class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(300, 8), torch.nn.Linear(8, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor):
        states = self.words(input_ids)
        mask = attention_mask.unsqueeze(-1).to(states.dtype)
        return self.head((states * mask).sum(1) / mask.sum(1).clamp(min=1))

torch.manual_seed(0)
model, file, how = Classifier().eval(), sys.argv[1], sys.argv[2]
one = torch.ones(1, 100, dtype=torch.int64)
if how == 'trace':
    torch.jit.trace(model, (one, one.clone())).save(file)
elif how == 'script':
    torch.jit.script(model).save(file)
elif how == 'one':
    class One(torch.nn.Module):
        def forward(self, input_ids, attention_mask):
            return (input_ids * attention_mask).view(1, -1)[:, :3].float()

    torch.jit.trace(One(), (one, one.clone())).save(file)
elif how == 'fixed':
    torch.export.save(torch.export.export(model, (one, one.clone())), file)
else:
    two = torch.ones(2, 16, dtype=torch.int64)
    axes = {0: torch.export.Dim('batch'), 1: torch.export.Dim('length')}
    torch.export.save(torch.export.export(model, (two, two.clone()), dynamic_shapes=(axes, axes)), file)
ids, mask = torch.tensor([[5, 60, 299], [7, 8, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
print(json.dumps(model(ids, mask).detach().tolist()))
";

/// Writes a file of torch, and returns the answer of its model.
fn make(python: &Path, file: &Path, how: &str) -> Vec<f64> {
    fs::create_dir_all(file.parent().expect("a file lies in a folder")).expect("a folder can be made");
    // torch.jit.script reads the source of the class.
    let script = tempfile::Builder::new().suffix(".py").tempfile().expect("a temporary file");
    fs::write(script.path(), MAKE).expect("a file can be written");
    let made = Command::new(python).arg(script.path()).arg(file).arg(how).output().expect("Python runs");
    assert!(made.status.success(), "{}", said(&made));
    let rows: Vec<Vec<f64>> = serde_json::from_slice(&made.stdout).expect("it prints its answer");
    rows.concat()
}

fn request(names: [&str; 2]) -> Value {
    let tensor = |name: &str, data: [i64; 6]| json!({"name": name, "datatype": "INT64", "shape": [2, 3], "data": data});
    json!({"inputs": [tensor(names[0], [5, 60, 299, 7, 8, 0]), tensor(names[1], [1, 1, 1, 1, 1, 0])]})
}

#[test]
fn a_file_of_torch_is_refused_with_the_command_that_makes_its_onnx_file() {
    let models = ModelFolder::new().model("m", CONFIG).file("m/1/model.pt", "");
    let path = models.path().join("m");
    let command = format!("with: trireme export {}", path.display());
    let validated = product("trireme").arg("validate").arg(models.path()).output().expect("the command runs");
    assert!(!validated.status.success() && said(&validated).contains(&command), "{}", said(&validated));
    // The configuration may also name the backend that serves the file to come.
    let onnx = ModelFolder::new().model("m", &CONFIG.replace("pytorch", "onnxruntime")).file("m/1/model.pt", "");
    let validated = product("trireme").arg("validate").arg(onnx.path()).output().expect("the command runs");
    assert!(!validated.status.success() && said(&validated).contains("with: trireme export "), "{}", said(&validated));
}

#[test]
fn an_export_of_a_model_says_what_is_missing() {
    let export = |config: &str, file: &str| {
        let models = ModelFolder::new().model("m", config).file(&format!("m/1/{file}"), "");
        let exported = run("export", &models.path().join("m"), &python(), &[]);
        assert_eq!(exported.status.code(), Some(1), "{}", said(&exported));
        assert!(!models.path().join("m/1/model.onnx.rejected").exists());
        assert!(fs::read_dir(models.path()).expect("it is there").count() == 1, "nothing is left behind");
        said(&exported)
    };
    let found = export("backend: 'pytorch'", "model.pt");
    assert!(found.contains("declares no inputs") && found.contains("name: \"INPUT__0\""), "{found}");
    let found = export(CONFIG, "model.bin");
    assert!(found.contains("holds neither model.pt nor model.pt2, but: model.bin"), "{found}");
    let found = export(&CONFIG.replace("pytorch", "identity"), "model.pt");
    assert!(found.contains("model 'm' is of backend 'identity'"), "{found}");
    let models = ModelFolder::new().model("m", CONFIG).file("m/1/model.pt", "").file("m/1/model.onnx", "");
    let there = said(&run("export", &models.path().join("m"), &python(), &[]));
    assert!(there.contains("1/model.onnx is there already"), "{there}");
}

#[test]
fn an_exported_model_answers_as_torch_does() {
    let Some(python) = python_with("torch, onnx") else { return };
    let by_names = CONFIG
        .replace("INPUT__0", "mask")
        .replace("INPUT__1", "ids")
        .replace("mask", "attention_mask")
        .replace("'ids'", "'input_ids'");
    let aoti =
        format!("platform: 'torch_aoti' {}", CONFIG.replace("INPUT__0", "ARGS[0]").replace("INPUT__1", "ARGS[1]"));
    let reshaped = CONFIG.replace("dims: [ 3 ]", "dims: [ 3, 1 ] reshape { shape: [ 3 ] }");
    let forms = [
        ("traced", CONFIG, "model.pt", "trace", ["INPUT__0", "INPUT__1"]),
        ("scripted", &by_names, "model.pt", "script", ["input_ids", "attention_mask"]),
        ("exported", &aoti.replace("OUTPUT__0", "RESULT"), "model.pt2", "export", ["ARGS[0]", "ARGS[1]"]),
        ("reshaped", &reshaped, "model.pt", "trace", ["INPUT__0", "INPUT__1"]),
    ];
    let has_onnxscript = python_with("torch, onnxscript").is_some();
    let models = forms.iter().fold(ModelFolder::new(), |folder, (name, config, ..)| folder.model(name, config));
    let mut expected = Vec::new();
    for (name, _, file, how, inputs) in &forms {
        let folder = models.path().join(name);
        if *how == "export" && !has_onnxscript {
            fs::remove_dir_all(folder).expect("it was made");
            continue;
        }
        let answer = make(&python, &folder.join("1").join(file), how);
        let exported = run("export", &folder, &python, &["--log-level", "warning"]);
        assert!(exported.status.success(), "{}", said(&exported));
        assert!(said(&exported).contains(&format!("model '{name}' serves what torch")), "{}", said(&exported));
        expected.push((*name, *inputs, answer));
    }
    let sandbox = Setup::new(Mode::AllInOne).repository(models.path()).start();
    for (name, inputs, answer) in expected {
        let response = sandbox.infer(name, &request(inputs));
        assert_eq!(response.status, 200, "{name}: {}", response.text());
        let found = response.json()["outputs"][0].clone();
        let shape = if name == "reshaped" { json!([2, 3, 1]) } else { json!([2, 3]) };
        assert_eq!(found["shape"], shape, "{name}");
        let found: Vec<f64> = serde_json::from_value(found["data"].clone()).expect("numbers");
        let difference = found.iter().zip(&answer).map(|(f, e)| (f - e).abs()).fold(0.0, f64::max);
        assert!(difference < 1e-5, "{name}: {found:?} {answer:?}");
        let log = sandbox.processes().map(|process| process.log()).collect::<String>();
        let words = "serves this file in place of ";
        assert!(log.contains(words) && log.contains(&format!("{name}/1/model.pt")), "{log}");
    }
}

#[test]
fn an_export_says_why_a_file_of_torch_cannot_be_served() {
    let Some(python) = python_with("torch, onnx") else { return };
    let export = |config: &str, file: &str, how: &str| {
        let models = ModelFolder::new().model("m", config);
        make(&python, &models.path().join("m/1").join(file), how);
        let exported = run("export", &models.path().join("m"), &python, &["--log-level", "warning"]);
        assert_eq!(exported.status.code(), Some(1), "{}", said(&exported));
        assert!(!models.path().join("m/1/model.onnx").exists());
        said(&exported)
    };
    let found = export(&CONFIG.replace("INPUT__1", "INPUT__7"), "model.pt", "trace");
    assert!(found.contains("the model has 2: name them INPUT__0 to INPUT__1"), "{found}");
    let found = export(&CONFIG.replace("dims: [ 3 ]", "dims: [ 4 ]"), "model.pt", "trace");
    assert!(found.contains("'OUTPUT__0'") && found.contains("4"), "{found}");
    let found = export(&CONFIG.replace("TYPE_FP32", "TYPE_INT64"), "model.pt", "trace");
    assert!(found.contains("the model's output 'OUTPUT__0' is torch.float32, config.pbtxt says INT64"), "{found}");
    let found = export(CONFIG, "model.pt", "one");
    assert!(found.contains("takes one row at a time") && found.contains("INPUT__0 dims: [1, -1]"), "{found}");
    let found = export(CONFIG, "model.pt2", "fixed");
    assert!(found.contains("was exported for the shape [1, 100] of 'INPUT__0'"), "{found}");
    // Answers that are not alike enough: the file is kept where no process serves it.
    let models = ModelFolder::new().model("m", CONFIG);
    make(&python, &models.path().join("m/1/model.pt"), "trace");
    let rejected = run("export", &models.path().join("m"), &python, &["--min-cosine", "1.1"]);
    assert_eq!(rejected.status.code(), Some(1), "{}", said(&rejected));
    assert!(models.path().join("m/1/model.onnx.rejected").is_file() && !models.path().join("m/1/model.onnx").exists());
}
