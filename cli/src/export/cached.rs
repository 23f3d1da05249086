//! `trireme serve --export`: makes the missing ONNX file of a model folder once, keeps it in a cache, and serves the folder with it.
//!
//! The folder stays as it is. The cache has a folder of links to its files under a digest of them, so that a folder whose files
//! change is exported again; the ONNX file lies in there. A folder of the cache gets its name when its ONNX file has been compared with
//! the model's own library.

use std::fs;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use trireme_model::OnnxRuntimeArgs;
use trireme_model_repository::{
    Choices, Export, FolderChoices, Task, folder_name, hub_name, is_model_folder, snapshot,
};
use trireme_model_source::is_remote;
use trireme_runtime::folder_to_export;

use super::folder::make;
use super::purpose::plan;
use crate::serve::{MissingGraphArgs, ServeArgs};
use crate::verify::{self, NoAnswer, VerifyArgs};

/// The lowest likeness to the library's answers that is good enough, as in `trireme verify`.
const MIN_COSINE: f64 = 0.9999;

/// Digits of a digest in the name of a folder of the cache.
const DIGITS: usize = 16;

/// The most levels of folders that are linked; a loop of links ends there.
const MAX_DEPTH: usize = 8;

/// Puts in place of each model folder that has no ONNX file its folder in the cache, which has one. The errors say what makes the file.
pub async fn with_graphs(args: &mut ServeArgs) -> anyhow::Result<()> {
    let (flags, onnxruntime) = (args.missing_graphs.clone(), args.onnxruntime.clone());
    let models = args.models();
    let choices = models.folders.choices()?;
    let maker = Maker { flags: &flags, choices: &choices, onnxruntime: &onnxruntime };
    let mut kept = Vec::new();
    for word in std::mem::take(&mut models.models) {
        match maker.folder_of(Path::new(&word), None).await? {
            Some((name, folder)) => models.named.push((name, folder.display().to_string())),
            None => kept.push(word),
        }
    }
    models.models = kept;
    for (name, word) in &mut models.named {
        if let Some((_, folder)) = maker.folder_of(Path::new(word.as_str()), Some(name)).await? {
            *word = folder.display().to_string();
        }
    }
    let mut kept = Vec::new();
    for path in std::mem::take(&mut models.model_repository) {
        match maker.folder_of(&path, None).await? {
            Some((name, folder)) => models.named.push((name, folder.display().to_string())),
            None => kept.push(path),
        }
    }
    models.model_repository = kept;
    Ok(())
}

/// Makes missing files by these flags.
struct Maker<'a> {
    flags: &'a MissingGraphArgs,
    choices: &'a FolderChoices,
    onnxruntime: &'a OnnxRuntimeArgs,
}

// === impl Maker ===

impl Maker<'_> {
    /// The name and the folder in the cache of a model folder that lacks its ONNX file; `None` for all others, and where nobody wants one to
    /// be made. With --export a folder that lies elsewhere is downloaded, with what an ONNX file is made of.
    async fn folder_of(&self, path: &Path, name: Option<&str>) -> anyhow::Result<Option<(String, PathBuf)>> {
        let folder = match path.to_str().is_some_and(is_remote) {
            true if self.flags.export == Some(true) => folder_to_export(path, name, self.choices).await?,
            true => return Ok(None),
            false => snapshot(path).unwrap_or_else(|| path.to_owned()),
        };
        if self.flags.export == Some(false) || !is_model_folder(&folder) {
            return Ok(None);
        }
        // A folder that needs none, or has one, or is broken: reading it says so.
        let own = folder_name(&folder);
        let choices = self.choices.of(name.and_then(|name| name.rsplit('/').next()?.split('@').next()).unwrap_or(&own));
        if Export::of(&folder, &choices).is_err() {
            return Ok(None);
        }
        let (plan, choices) = match plan(&folder, &choices) {
            Ok(planned) => planned,
            // Without --export this is no error: reading the folder says what it lacks.
            Err(_) if self.flags.export.is_none() => return Ok(None),
            Err(error) => return Err(error),
        };
        let name = hub_name(&folder).unwrap_or(own);
        let cannot = || format!("cannot read {}", folder.display());
        let digest = Export::digest(&folder).with_context(cannot)?;
        let digits: String = digest.chars().skip_while(|c| *c != ':').skip(1).take(DIGITS).collect();
        let cache = self.cache();
        let place = cache.join(format!("{}-{}-{digits}", folder_name(&folder), plan.export_task));
        if place.is_dir() {
            tracing::info!(folder = %folder.display(), cached = %place.display(), "served with the ONNX file that was made before");
            return Ok(Some((name, place)));
        }
        if self.flags.export.is_none() && !self.asks(&folder, &cache) {
            return Ok(None);
        }
        fs::create_dir_all(&cache).with_context(|| format!("cannot make --export-cache {}", cache.display()))?;
        let work = tempfile::Builder::new().prefix(".export-").tempdir_in(&cache);
        let work = work.with_context(|| format!("cannot write into --export-cache {}", cache.display()))?;
        // Under the folder's own name, which errors and reports have.
        let links = work.path().join(folder_name(&folder));
        link(&folder, &links, 0).with_context(cannot)?;
        self.make(path, &links, &plan, &choices).await?;
        match fs::rename(&links, &place) {
            Err(error) if !place.is_dir() => Err(error).with_context(|| format!("cannot make {}", place.display())),
            // Where there is an error, another process was faster.
            _ => Ok(Some((name, place))),
        }
    }

    /// Makes the ONNX files in the folder `links` of the cache, all that are missing, and compares its answers with the library's.
    async fn make(&self, folder: &Path, links: &Path, plan: &Export, choices: &Choices) -> anyhow::Result<()> {
        let task = plan.task;
        let (shown, python) = (folder.display(), self.flags.export_python.display());
        tracing::info!(folder = %shown, python = %python, "it holds no ONNX file: making one");
        // A folder with several transformers lacks several.
        while let Ok(plan) = Export::of(links, choices) {
            let (_, by) = make(&self.flags.export_python, &plan).map_err(|error| self.advice(folder, task, &error))?;
            tracing::info!(folder = %shown, by, "made its ONNX file");
        }
        let compared = VerifyArgs::of_folder(links, &self.flags.export_python, MIN_COSINE, self.onnxruntime)?;
        let compared = compared.for_task(choices.task.map(|task| task.name().to_owned()));
        match verify::verify(&compared).await {
            Ok(found) if found.passed => {
                let said = found.sentence.replace(&links.display().to_string(), &shown.to_string());
                tracing::info!(folder = %shown, "compared: {said}");
            }
            Ok(found) => bail!(
                "model folder {shown}: the ONNX file that was made gives other answers than the model's library, so that it is not served:\n\
                 {}",
                found.text
            ),
            Err(error) if error.is::<NoAnswer>() => {
                bail!(
                    "model folder {shown}: the ONNX file that was made is of no use, so that it is not served: {error:#}"
                )
            }
            Err(error) => tracing::warn!(
                folder = %shown,
                "the ONNX file that was made is not compared with the model's library: {error:#}; compare it: trireme verify {shown} --python \
                 PYTHON"
            ),
        }
        Ok(())
    }

    /// The error of a Python that cannot make the file, with the commands that make one that can.
    fn advice(&self, folder: &Path, task: Task, error: &anyhow::Error) -> anyhow::Error {
        let packages = match task {
            Task::Generate => "optimum-onnx",
            _ => "torch transformers sentence-transformers",
        };
        anyhow!(
            "model folder {0}: it holds no ONNX file, and {1} cannot make one: {error:#}; make a Python that can, and name it: python3 -m venv \
             export-python && export-python/bin/pip install {packages} && trireme serve {0} --export --export-python \
             export-python/bin/python",
            folder.display(),
            self.flags.export_python.display(),
        )
    }

    /// Asks at a terminal whether the file is to be made.
    fn asks(&self, folder: &Path, cache: &Path) -> bool {
        let (stdin, stderr) = (std::io::stdin(), std::io::stderr());
        if !stdin.is_terminal() || !stderr.is_terminal() {
            return false;
        }
        let mut stderr = stderr.lock();
        let asked = write!(
            stderr,
            "{} holds no ONNX file. Make one now with {}, and keep it in {}? [y/N] ",
            folder.display(),
            self.flags.export_python.display(),
            cache.display()
        );
        let mut answer = String::new();
        asked.and_then(|()| stderr.flush()).is_ok()
            && stdin.read_line(&mut answer).is_ok()
            && ["y", "yes"].contains(&answer.trim().to_lowercase().as_str())
    }

    fn cache(&self) -> PathBuf {
        let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = || path("HOME").unwrap_or_else(std::env::temp_dir).join(".cache");
        let usual = || path("XDG_CACHE_HOME").unwrap_or_else(home).join("trireme").join("exports");
        self.flags.export_cache.clone().unwrap_or_else(usual)
    }
}

/// Makes the folder `target` with the folders of `source`, and links to its files.
fn link(source: &Path, target: &Path, depth: usize) -> std::io::Result<()> {
    fs::create_dir_all(target)?;
    for entry in fs::read_dir(source)? {
        let entry = entry?;
        let (path, target) = (entry.path(), target.join(entry.file_name()));
        match path.is_dir() {
            true if depth < MAX_DEPTH => link(&path, &target, depth + 1)?,
            true => {}
            false => symlink(path.canonicalize()?, target)?,
        }
    }
    Ok(())
}
