//! Models of Triton's backend `pytorch`: the ONNX file that is served in place of a file of torch, made by torch in the user's Python and
//! compared with what torch computes from that file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, ensure};
use serde_json::{Value, json};
use trireme_inference::{DataType, Shape};
use trireme_model_repository::{ModelConfig, RepositoryModel, is_model_folder, torch_file};
use trireme_runtime::service;

use super::files::{NOT_COMPARED, ask, exporter, names, print, print_files, put, reject};
use super::options::ExportArgs;
use crate::serve::{Server, own_server};

/// The script that makes and compares.
const SCRIPT: &str = include_str!("torch_model.py");

/// The backends whose models may be files of torch: the second one serves the ONNX files that are made of them.
const BACKENDS: [&str; 2] = ["pytorch", "onnxruntime"];

/// How the answers of torch and of the server to the same requests compare.
struct Comparison {
    lowest: f64,
    words: String,
}

/// A version whose ONNX file is missing.
struct Version<'a> {
    number: i64,
    config: &'a ModelConfig,
    /// Its folder.
    path: PathBuf,
    /// The file of torch.
    file: PathBuf,
    /// The ONNX file to write.
    graph: PathBuf,
}

/// Whether a folder is a model of a model repository, and no model folder.
pub fn is_model(folder: &Path) -> bool {
    let version = |name: &String| name.parse::<u64>().is_ok() && torch_file(&folder.join(name), "").is_some();
    !is_model_folder(folder) && (folder.join("config.pbtxt").is_file() || names(folder).iter().any(version))
}

/// Makes the files of all versions that are served and lack one.
pub async fn export(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let folder = fs::canonicalize(&args.folder).with_context(|| format!("cannot read {}", args.folder.display()))?;
    let name = folder.file_name().context("the file system's root is no model")?.to_string_lossy().into_owned();
    let model = RepositoryModel::open(&name, &folder, &[])?;
    let versions = versions(&model)?;
    ensure!(
        versions.iter().any(|version| !version.graph.exists()),
        "{} is there already: serve the model as it is, or move the file away first",
        versions[0].graph.display()
    );
    let mut code = ExitCode::SUCCESS;
    for version in versions.iter().filter(|version| !version.graph.exists()) {
        match one(args, &model, version).await? {
            code if code == ExitCode::SUCCESS => {}
            failed => code = failed,
        }
    }
    Ok(code)
}

fn versions(model: &RepositoryModel) -> anyhow::Result<Vec<Version<'_>>> {
    let one = |&number: &i64| {
        let (config, path) = (model.config_of(number).as_ref(), model.version_path(number));
        ensure!(
            BACKENDS.contains(&config.backend.as_str()),
            "model '{}' is of backend '{}': a file of torch is exported for backend 'pytorch', or for 'onnxruntime'",
            model.name,
            config.backend
        );
        let file = torch_file(&path, &config.default_model_filename);
        let file = file.with_context(|| {
            format!("{} holds neither model.pt nor model.pt2, but: {}", path.display(), names(&path).join(", "))
        })?;
        for (kind, is_empty) in [("input", config.inputs.is_empty()), ("output", config.outputs.is_empty())] {
            ensure!(
                !is_empty,
                "model '{}' declares no {kind}s: a file of torch does not say their shapes, so that config.pbtxt has to: {kind} [{{ \
                 name: \"{}__0\" data_type: TYPE_FP32 dims: [ -1 ] }}]",
                model.name,
                kind.to_uppercase()
            );
        }
        let graph = path.join(&config.default_model_filename).with_extension("onnx");
        Ok(Version { number, config, path, file, graph })
    };
    model.versions.iter().map(one).collect()
}

/// Makes and compares the file of one version.
async fn one(args: &ExportArgs, model: &RepositoryModel, version: &Version<'_>) -> anyhow::Result<ExitCode> {
    let repository = model.path.parent().context("the model has no repository")?;
    // Beside the model, so that its server sees no change before the file is there. Servers take no folder with a dot for a model.
    let work = tempfile::Builder::new().prefix(".export-").tempdir_in(repository);
    let work = work.with_context(|| format!("cannot write into {}", repository.display()))?;
    let place = stand(work.path(), model, version)?;
    let graph = place.join(version.graph.file_name().context("the graph has a name")?);
    let mut question = question(version, "make");
    question["output"] = json!(graph);
    let answer = ask(&args.python, SCRIPT, &question)?;
    ensure!(graph.is_file(), "the export made no {}, but: {}", graph.display(), names(&place).join(", "));
    let compared = match version.config.sequence_batching {
        _ if args.skip_verify => None,
        // Their requests belong together, which the samples do not.
        Some(_) => None,
        None => Some(compare(args, work.path(), model, version).await),
    };
    let own = names(&place).into_iter().filter(|name| !place.join(name).is_symlink()).collect();
    let files = put(&place, own, &version.path)?;
    print_files(&files, &exporter(&answer));
    match compared {
        None => {
            if !args.skip_verify {
                print("answers of models with sequences are not compared: look at some before you serve them\n");
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(Ok(found)) if found.lowest >= args.min_cosine => {
            let (model, file) = (&model.name, version.file.display());
            print(&format!(
                "model '{model}' serves what {} computes from {file}: {}\n",
                exporter(&answer),
                found.words
            ));
            Ok(ExitCode::SUCCESS)
        }
        Some(Ok(found)) => {
            let kept = reject(&version.graph)?;
            let fault = anyhow!(
                "model '{}' does not serve what {} computes from {}: {}, expected a cosine of at least {}; it is kept as {}",
                model.name,
                exporter(&answer),
                version.file.display(),
                found.words,
                args.min_cosine,
                kept.display()
            );
            Ok(service::fail(&fault))
        }
        Some(Err(error)) => {
            service::fail(&error.context("the exported file is there, but was not compared"));
            Ok(ExitCode::from(NOT_COMPARED))
        }
    }
}

/// Lays down a repository in `work` with this version alone, whose file of torch is left out. The version's folder there.
fn stand(work: &Path, model: &RepositoryModel, version: &Version<'_>) -> anyhow::Result<PathBuf> {
    let number = version.number.to_string();
    let own = work.join(&model.name);
    let place = own.join(&number);
    fs::create_dir_all(&place)?;
    for name in names(&model.path).iter().filter(|name| name.parse::<u64>().is_err()) {
        symlink(model.path.join(name), own.join(name))?;
    }
    for name in names(&version.path).iter().filter(|name| version.path.join(name) != version.file) {
        symlink(version.path.join(name), place.join(name))?;
    }
    Ok(place)
}

/// The question to the script about a version.
fn question(version: &Version<'_>, step: &str) -> Value {
    let numbers = |dims: &Shape| dims.iter().copied().collect::<Vec<i64>>();
    let tensor = |name: &str, datatype: DataType, dims: &Shape, reshape: Option<&Shape>| {
        let mut tensor =
            json!({ "name": name, "datatype": datatype.to_string(), "dims": numbers(reshape.unwrap_or(dims)) });
        if reshape.is_some() {
            tensor["client_dims"] = json!(numbers(dims));
        }
        tensor
    };
    let config = version.config;
    let inputs = config.inputs.iter();
    let inputs = inputs.map(|input| tensor(&input.name, input.datatype, &input.dims, input.reshape.as_ref()));
    let outputs = config.outputs.iter();
    let outputs = outputs.map(|output| tensor(&output.name, output.datatype, &output.dims, output.reshape.as_ref()));
    json!({
        "step": step,
        "file": version.file,
        "inputs": inputs.collect::<Vec<_>>(),
        "outputs": outputs.collect::<Vec<_>>(),
        "max_batch_size": config.max_batch_size,
    })
}

/// Serves the model of `work` for itself, and has the script ask it.
async fn compare(
    args: &ExportArgs,
    work: &Path,
    model: &RepositoryModel,
    version: &Version<'_>,
) -> anyhow::Result<Comparison> {
    let path = work.display().to_string();
    let flags = ["--model-repository", &path, "--model-control-mode=explicit", "--load-model", &model.name];
    let server = Server::open(&own_server(&flags, &args.onnxruntime)?).await?;
    let outcome = match server.load().await {
        Ok(()) => {
            let address = server.http_address().context("the server does not listen for HTTP")?;
            let mut question = question(version, "compare");
            question["url"] = json!(format!("http://{address}/v2/models/{}/versions/{}", model.name, version.number));
            // On a thread of its own, because it blocks and the server in this process has to go on.
            let python = args.python.clone();
            let asking = tokio::task::spawn_blocking(move || {
                crate::python::ask(&python, SCRIPT, &question, "could not compare the model")
            });
            asking.await.context("comparing ended early")?
        }
        Err(error) => Err(error),
    };
    server.drain().await;
    let answer: Value = serde_json::from_str(outcome?.trim()).context("the script wrote no JSON")?;
    if let Some(reason) = answer["refused"].as_str() {
        return Err(anyhow!("{reason}"));
    }
    let (lowest, requests) = (answer["lowest"].as_f64().unwrap_or(f64::NAN), &answer["requests"]);
    let difference = answer["difference"].as_f64().map_or("none of numbers".to_owned(), |found| format!("{found:.2e}"));
    let worst = match answer["worst"].as_str() {
        Some(worst) if !worst.is_empty() => format!(" (in {worst})"),
        _ => String::new(),
    };
    let words = format!(
        "lowest cosine {lowest:.7}{worst}, largest difference {difference}, in {requests} requests of several shapes"
    );
    Ok(Comparison { lowest, words })
}
