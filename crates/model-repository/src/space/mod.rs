//! The space of a model's answers: a digest of what decides each row. Vectors of one space can be compared with one another, those of two spaces
//! perhaps not.
//!
//! A space is made of meanings, where a content ([`RepositoryModel::digest`]) is made of bytes: a graph counts by its operations and weights,
//! whatever their names; JSON counts by its values, whatever its form. Settings that change no row do not count: instances, batches,
//! providers, names of models.

mod json;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use trireme_model_files::canonical;

use crate::digest::{Digest, digest_of_file, visit_files};
use crate::repository::{CONFIG_FILE, RepositoryModel, version_number};

/// Parameters of a configuration that change no row: how runs are made, and what shows at the load that they are right. A model of user code may
/// read them all.
const IMMATERIAL: [&str; 26] = [
    "accelerator",
    "arena_extend_strategy",
    "beside_model",
    "cost_model",
    "do_copy_in_default_stream",
    "enable_mem_arena",
    "enable_mem_pattern",
    "execution_mode",
    "gpu_mem_limit",
    "inter_op_thread_count",
    "intra_op_thread_count",
    "layouts",
    "longest_row",
    "max_overtake_microseconds",
    "max_rows",
    "max_rows_per_message",
    "memory.enable_memory_arena_shrinkage",
    "pad_to_multiple_of",
    "packing",
    "sample_rows",
    "served_names",
    "session.use_device_allocator_for_initializers",
    "share_weights",
    "task",
    "token_budget",
    "unpad_outputs",
];

/// Keys of Hugging Face's JSON files that say where a model came from.
const ORIGINS: [&str; 3] = ["_name_or_path", "name_or_path", "transformers_version"];

/// Hexadecimal digits of a space.
const DIGITS: usize = 32;

// === impl RepositoryModel ===

impl RepositoryModel {
    /// The space of the version's answers, as 32 hexadecimal digits. Reads its files; the error names the path.
    pub fn space(&self, version: i64) -> io::Result<String> {
        let (config, directory) = (self.config_of(version), self.version_path(version));
        let mut digest = Digest::new();
        digest.add(config.backend.as_bytes());
        let is_material = |key: &str| !IMMATERIAL.contains(&key) || (config.runs_user_code() && key != "served_names");
        for (key, value) in config.parameters.iter().filter(|(key, _)| is_material(key)) {
            digest.add(key.as_bytes());
            digest.add(value.as_bytes());
        }
        for output in &config.outputs {
            digest.add(self.labels(&output.name).unwrap_or_default().join("\n").as_bytes());
        }
        let inputs = config.inputs.iter().map(|input| &input.reshape);
        let reshapes = inputs.chain(config.outputs.iter().map(|output| &output.reshape)).enumerate();
        for (place, reshape) in reshapes.filter_map(|(place, reshape)| Some((place, reshape.as_ref()?))) {
            digest.add(format!("reshape {place} {:?}", &reshape[..]).as_bytes());
        }
        if config.backend == "tokenizer" {
            // An output's name says its contents: another name may make it the mask of the pooling.
            let names: BTreeSet<&str> = config.outputs.iter().map(|output| output.name.as_str()).collect();
            names.into_iter().for_each(|name| digest.add(name.as_bytes()));
        }
        if config.runs_user_code() {
            // Programs read what lies beside their version, too.
            let is_beside = |name: &str| name != CONFIG_FILE && version_number(name).is_none();
            visit_files(&self.path, is_beside, |name, path| digest.add_file(name, path))?;
        }
        match config.backend.as_str() {
            "onnxruntime" => {
                let file = Some(config.default_model_filename.as_str()).filter(|name| !name.is_empty());
                let path = directory.join(file.unwrap_or("model.onnx"));
                let path = if path.is_dir() { path.join("model.onnx") } else { path };
                let outputs: Vec<&str> = config.outputs.iter().map(|output| output.name.as_str()).collect();
                digest.add(&canonical::digest(&path, &outputs)?);
            }
            _ => visit_files(
                &directory,
                |name| name != CONFIG_FILE,
                |name, path| {
                    digest.add(name.as_bytes());
                    digest.add(of_file(path)?.as_ref());
                    Ok(())
                },
            )?,
        }
        let mut digits = digest.digits();
        digits.truncate(DIGITS);
        Ok(digits)
    }
}

/// The meaning of a JSON file, or the bytes of another one.
fn of_file(path: &Path) -> io::Result<Vec<u8>> {
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let meaning = is_json.then(|| json::meaning(BufReader::new(File::open(path)?), &ORIGINS)).transpose();
    match meaning {
        Ok(Some(meaning)) => Ok(meaning.to_vec()),
        // JSON that cannot be read is read by no backend either.
        _ => digest_of_file(path).map(String::into_bytes),
    }
}

#[cfg(test)]
mod tests;
