//! Finds the files of a model, in the layout of Hugging Face's ONNX export.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use trireme_engine::LoadError;
use trireme_model_repository::ModelConfig;

/// How the decoder's graphs handle the key-value cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `decoder_model_merged.onnx`: one graph with a switch.
    Merged,
    /// `decoder_model.onnx` for the first step and `decoder_with_past_model.onnx` for the others.
    WithPast,
    /// `decoder_model.onnx` alone: every step computes the whole sequence.
    WithoutPast,
}

/// A model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFiles {
    /// The encoder's graph.
    pub encoder: PathBuf,
    /// The decoder's graphs: one, or the first step's and the others'.
    pub decoders: Vec<PathBuf>,
    /// The layout of the decoders.
    pub layout: Layout,
    /// `config.json`.
    pub config: PathBuf,
    /// `generation_config.json`, if it exists.
    pub generation_config: Option<PathBuf>,
}

const LAYOUTS: [(Layout, &str, &[&str]); 3] = [
    (Layout::Merged, "merged", &["decoder_model_merged"]),
    (Layout::WithPast, "with_past", &["decoder_model", "decoder_with_past_model"]),
    (Layout::WithoutPast, "without_past", &["decoder_model"]),
];

// === impl ModelFiles ===

impl ModelFiles {
    /// Finds the files of the version at `version_path`, or in the directory below it that `default_model_filename`
    /// names. Parameter `decoder` chooses a layout, `file_suffix` the files of one kind (`_quantized`). By default the
    /// first layout whose files exist is used, and the only suffix that exists.
    pub fn find(config: &ModelConfig, version_path: &Path) -> Result<ModelFiles, LoadError> {
        let model = &config.name;
        let root = version_path.join(&config.default_model_filename);
        let graphs = [root.clone(), root.join("onnx")];
        let names = |directory: &PathBuf| {
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>()
        };
        let is_encoder = |name: &String| name.starts_with("encoder_model") && name.ends_with(".onnx");
        let directory = graphs.iter().find(|directory| names(directory).iter().any(is_encoder));
        let Some(directory) = directory else {
            let path = root.join("encoder_model.onnx");
            return Err(LoadError::File { model: model.clone(), path, source: std::io::ErrorKind::NotFound.into() });
        };
        let names = names(directory);
        let suffix = suffix(config, &names)?;
        let file = |stem: &str| format!("{stem}{suffix}.onnx");
        let wanted = layout(config)?;
        let present = |(_, _, stems): &&(Layout, &str, &[&str])| stems.iter().all(|stem| names.contains(&file(stem)));
        let candidates = LAYOUTS.iter().filter(|(layout, _, _)| wanted.is_none_or(|wanted| wanted == *layout));
        let Some((layout, _, stems)) = candidates.clone().find(present) else {
            let sets =
                candidates.map(|(_, _, stems)| stems.iter().map(|stem| file(stem)).collect::<Vec<_>>().join(" and "));
            return Err(LoadError::Config(format!(
                "model '{model}': {} has no decoder: looked for {}",
                directory.display(),
                sets.collect::<Vec<_>>().join(", or ")
            )));
        };
        let beside = |name: &str| [root.join(name), directory.join(name)].into_iter().find(|path| path.is_file());
        Ok(ModelFiles {
            encoder: directory.join(file("encoder_model")),
            decoders: stems.iter().map(|stem| directory.join(file(stem))).collect(),
            layout: *layout,
            config: beside("config.json").unwrap_or_else(|| root.join("config.json")),
            generation_config: beside("generation_config.json"),
        })
    }
}

/// The suffix between a file's name and its extension: `_quantized`, `_fp16`, or nothing.
fn suffix(config: &ModelConfig, names: &[String]) -> Result<String, LoadError> {
    let mut found = names.iter().filter_map(|name| name.strip_prefix("encoder_model")?.strip_suffix(".onnx"));
    let found: Vec<&str> = std::iter::from_fn(|| found.next()).collect();
    let wrong =
        |reason: String| LoadError::Config(format!("model '{}': parameter 'file_suffix' {reason}", config.name));
    let mut known = found.clone();
    known.sort_unstable();
    let known = known.iter().map(|suffix| format!("'{suffix}'")).collect::<Vec<_>>().join(", ");
    match config.parameters.get("file_suffix") {
        Some(wanted) if found.contains(&wanted.as_str()) => Ok(wanted.clone()),
        Some(wanted) => Err(wrong(format!("has to be one of {known} (encoder_model….onnx), found '{wanted}'"))),
        None if found.contains(&"") => Ok(String::new()),
        None => match found[..] {
            [only] => Ok(only.to_owned()),
            _ => Err(wrong(format!("is needed: there are files of {known}"))),
        },
    }
}

fn layout(config: &ModelConfig) -> Result<Option<Layout>, LoadError> {
    let Some(wanted) = config.parameters.get("decoder") else { return Ok(None) };
    let known = LAYOUTS.iter().find(|(_, name, _)| name == wanted);
    known.map(|(layout, _, _)| Some(*layout)).ok_or_else(|| {
        let names = LAYOUTS.map(|(_, name, _)| name).join(", ");
        LoadError::Config(format!(
            "model '{}': parameter 'decoder' has to be one of {names}, found '{wanted}'",
            config.name
        ))
    })
}

/// Reads a file with a JSON object.
pub fn read_json(model: &str, path: &Path) -> Result<Map<String, Value>, LoadError> {
    let text = std::fs::read_to_string(path).map_err(|source| LoadError::File {
        model: model.to_owned(),
        path: path.to_owned(),
        source,
    })?;
    serde_json::from_str(&text).map_err(|error| {
        LoadError::Config(format!("model '{model}': {} is not a JSON object: {error}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(files: &[&str], parameters: &str) -> Result<ModelFiles, String> {
        let directory = tempfile::tempdir().unwrap();
        for file in files {
            let path = directory.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let config = ModelConfig::parse(&format!("backend: 'generation' {parameters}"), "m").unwrap();
        let name = |path: &mut PathBuf| *path = path.strip_prefix(directory.path()).unwrap().to_owned();
        let mut found = ModelFiles::find(&config, directory.path())
            .map_err(|error| error.to_string().replace(&directory.path().display().to_string(), "DIR"))?;
        name(&mut found.encoder);
        found.decoders.iter_mut().for_each(name);
        Ok(found)
    }

    fn parameter(key: &str, value: &str) -> String {
        format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}")
    }

    #[test]
    fn the_best_layout_is_taken_unless_another_is_asked_for() {
        let all =
            ["encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx", "decoder_model_merged.onnx"];
        assert_eq!(find(&all, "").unwrap().layout, Layout::Merged);
        assert_eq!(find(&all[..3], "").unwrap().layout, Layout::WithPast);
        assert_eq!(find(&all[..2], "").unwrap().layout, Layout::WithoutPast);
        let found = find(&all, &parameter("decoder", "with_past")).unwrap();
        assert_eq!(found.decoders, [Path::new("decoder_model.onnx"), Path::new("decoder_with_past_model.onnx")]);
        assert_eq!(
            find(&all[..2], &parameter("decoder", "with_past")).unwrap_err(),
            "model 'm': DIR/ has no decoder: looked for decoder_model.onnx and decoder_with_past_model.onnx"
        );
        assert_eq!(
            find(&all, &parameter("decoder", "big")).unwrap_err(),
            "model 'm': parameter 'decoder' has to be one of merged, with_past, without_past, found 'big'"
        );
    }

    #[test]
    fn quantised_files_are_found_by_their_suffix() {
        let only = ["sub/encoder_model_quantized.onnx", "sub/decoder_model_quantized.onnx"];
        let found = find(&only, "default_model_filename: 'sub'").unwrap();
        assert_eq!(found.encoder, Path::new("sub/encoder_model_quantized.onnx"));
        let both = ["onnx/encoder_model_a.onnx", "onnx/encoder_model_b.onnx", "onnx/decoder_model_a.onnx"];
        assert_eq!(find(&both, &parameter("file_suffix", "_a")).unwrap().layout, Layout::WithoutPast);
        assert_eq!(
            find(&both, "").unwrap_err(),
            "model 'm': parameter 'file_suffix' is needed: there are files of '_a', '_b'"
        );
        assert_eq!(
            find(&both, &parameter("file_suffix", "_c")).unwrap_err(),
            "model 'm': parameter 'file_suffix' has to be one of '_a', '_b' (encoder_model….onnx), found '_c'"
        );
        assert!(find(&[], "").unwrap_err().starts_with("model 'm': cannot read DIR/encoder_model.onnx: "));
    }
}
