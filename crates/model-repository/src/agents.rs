//! `model_repository_agents`: Triton's agent `checksum` compares files with the digests that the configuration has, before the model is loaded.
//! No other agent is run.

use std::io::Read;

use md5::{Digest, Md5};
use trireme_model_files::regular;

use crate::RepositoryModel;
use crate::validate::lies_beneath;

/// The agent that compares files with their digests.
const CHECKSUM: &str = "checksum";

/// The beginning of its parameters' names; the path of a file within the model's folder follows.
const MD5: &str = "MD5:";

/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;

// === impl RepositoryModel ===

impl RepositoryModel {
    /// Runs the agent `checksum`, where the configuration of the version names it. Returns the names of other agents, which are not run. The
    /// error names the file whose digest is another one.
    pub fn run_agents(&self, version: i64) -> Result<Vec<String>, String> {
        let mut others = Vec::new();
        let config = self.config_of(version);
        for agent in config.message.model_repository_agents.iter().flat_map(|all| &all.agents) {
            if agent.name != CHECKSUM {
                others.push(agent.name.clone());
                continue;
            }
            for (key, expected) in &agent.parameters {
                let file = key.strip_prefix(MD5).filter(|file| lies_beneath(file)).ok_or_else(|| {
                    format!(
                        "agent 'checksum' has parameter '{key}', expected '{MD5}' and the path of a file within the model's folder"
                    )
                })?;
                let found = self.md5_of(file)?;
                if !found.eq_ignore_ascii_case(expected.trim()) {
                    return Err(format!(
                        "Mismatched MD5 hash for file {}, expect: {expected}, got: {found}",
                        self.path.join(file).display()
                    ));
                }
            }
        }
        Ok(others)
    }

    fn md5_of(&self, file: &str) -> Result<String, String> {
        let path = self.path.join(file);
        let read = || {
            let (mut file, mut digest, mut chunk) = (regular::open(&path)?, Md5::new(), vec![0; CHUNK]);
            loop {
                match file.read(&mut chunk)? {
                    0 => break,
                    bytes => digest.update(&chunk[..bytes]),
                }
            }
            std::io::Result::Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
        };
        read().map_err(|error| format!("agent 'checksum' cannot read {}: {error}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(agents: &str) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("1")).unwrap();
        std::fs::write(folder.path().join("1/model.onnx"), "abc").unwrap();
        let config = format!(
            "backend: 'onnxruntime' input [{{ name: 'a' data_type: TYPE_FP32 dims: [1] }}]
             output [{{ name: 'b' data_type: TYPE_FP32 dims: [1] }}] model_repository_agents {{ agents [ {agents} ] }}"
        );
        std::fs::write(folder.path().join("config.pbtxt"), config).unwrap();
        RepositoryModel::open("m", folder.path(), &[]).unwrap().run_agents(1)
    }

    fn checksum(key: &str, digest: &str) -> Result<Vec<String>, String> {
        run(&format!("{{ name: 'checksum' parameters {{ key: '{key}' value: '{digest}' }} }}"))
    }

    #[test]
    fn a_file_with_another_digest_is_named() {
        assert_eq!(checksum("MD5:1/model.onnx", "900150983CD24FB0D6963F7D28E17F72"), Ok(Vec::new()));
        let other = checksum("MD5:1/model.onnx", "00").unwrap_err();
        assert!(other.starts_with("Mismatched MD5 hash for file /"), "{other}");
        assert!(other.ends_with("1/model.onnx, expect: 00, got: 900150983cd24fb0d6963f7d28e17f72"), "{other}");
        assert!(checksum("MD5:1/none", "00").unwrap_err().contains("cannot read"));
        for key in ["SHA256:1/model.onnx", "1/model.onnx", "MD5:../x", "MD5:/etc/hostname"] {
            assert!(checksum(key, "00").unwrap_err().contains("expected 'MD5:'"), "{key}");
        }
    }

    #[test]
    fn other_agents_are_told() {
        assert_eq!(run("{ name: 'decrypt' }, { name: 'checksum' }"), Ok(vec!["decrypt".to_owned()]));
    }
}
