//! The file of `--api-key-file`: clients' keys as digests, with their owners, roles and times to live. `trireme keys` writes it, and gateways read it
//! again when it changes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use anyhow::Context;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::keys::KeyDigest;
use crate::owners::{OwnerLimits, is_owner_name};

/// Longest name of an owner, in bytes.
pub use crate::owners::LONGEST_NAME as LONGEST_OWNER;

/// The keys of a file: `{"keys": [{"owner": "alice", "sha256": "…"}]}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    /// In the order in which they were added.
    #[serde(default)]
    pub keys: Vec<KeyEntry>,
    /// The limits of owners, such as `"rpm=60,tpm=100000"`. They go before those of flags.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub owners: BTreeMap<String, OwnerLimits>,
}

/// A key of a file, without the key itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyEntry {
    /// The owner of durable work, files and batches that are made with this key; of an administrator's key a name to know it by.
    pub owner: String,
    /// What requests with this key may do.
    #[serde(default)]
    pub role: Role,
    /// SHA-256 of the key's text, as 64 hexadecimal digits.
    pub sha256: KeyDigest,
    /// When the key was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<DateTime<Utc>>,
    /// From when on the key admits nobody; never without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<DateTime<Utc>>,
}

/// What requests with a key may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Requests in the live lane, as with --api-key
    #[default]
    Live,
    /// Requests in the bulk lane, as with --bulk-api-key
    Bulk,
    /// Everything, as with --admin-api-key
    Admin,
}

// === impl KeyFile ===

impl KeyFile {
    /// Reads the file. Errors name the file, and the place in it, and never a digest.
    pub fn read(path: &Path) -> anyhow::Result<KeyFile> {
        let named = || format!("the file of keys '{}'", path.display());
        let text = fs::read(path).with_context(|| format!("{} cannot be read", named()))?;
        let file: KeyFile = serde_json::from_slice(&text).with_context(|| {
            format!("{} is not understood, expected {{\"keys\": […]}} as `trireme keys add` writes it", named())
        })?;
        for (index, entry) in file.keys.iter().enumerate() {
            anyhow::ensure!(
                is_owner_name(&entry.owner),
                "{}: keys[{index}].owner is '{}', expected 1 to {LONGEST_OWNER} letters, digits and '-', '_', '.', '@'",
                named(),
                entry.owner
            );
        }
        for owner in file.owners.keys() {
            anyhow::ensure!(
                is_owner_name(owner),
                "{}: owners has '{owner}', expected 1 to {LONGEST_OWNER} letters, digits and '-', '_', '.', '@'",
                named()
            );
        }
        Ok(file)
    }

    /// Changes the file in one step, also where others change it at the same time. A file that is not there has no keys. Errors are those of
    /// `change`, or name the file.
    pub fn change<T>(path: &Path, change: impl FnOnce(&mut KeyFile) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let folder = fs::File::open(folder_of(path)).and_then(|folder| folder.lock().map(|()| folder));
        // Held until the end of this function: a lock on the file itself would be one on a file that is replaced.
        let _locked = folder.with_context(|| format!("cannot lock the folder of '{}'", path.display()))?;
        let mut file = if path.try_exists()? { KeyFile::read(path)? } else { KeyFile::default() };
        let changed = change(&mut file)?;
        file.write(path)?;
        Ok(changed)
    }

    /// Writes the file, readable by its user alone; readers see the former file, or all of this one. Errors name the file.
    fn write(&self, path: &Path) -> anyhow::Result<()> {
        let folder = folder_of(path);
        let write = || -> anyhow::Result<()> {
            let mut file = tempfile::Builder::new().prefix(".keys").tempfile_in(folder)?;
            serde_json::to_writer_pretty(&mut file, self)?;
            std::io::Write::write_all(&mut file, b"\n")?;
            file.as_file().sync_all()?;
            file.persist(path)?;
            Ok(())
        };
        write().with_context(|| format!("cannot write the file of keys '{}'", path.display()))
    }
}

// === impl KeyEntry ===

impl KeyEntry {
    /// When the key expires, as the system's clock has it.
    pub(super) fn expiry(&self) -> Option<SystemTime> {
        self.expires.map(SystemTime::from)
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_read_as_it_was_written_and_only_its_user_may_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.json");
        let entry = KeyEntry {
            owner: "alice".to_owned(),
            role: Role::Bulk,
            sha256: KeyDigest::of("a key of alice"),
            created: None,
            expires: Some("2030-01-01T00:00:00Z".parse().unwrap()),
        };
        let owners = [("alice".to_owned(), "rpm=60".parse().unwrap())].into();
        let file = KeyFile { keys: vec![entry], owners };
        KeyFile::change(&path, |empty| {
            empty.clone_from(&file);
            Ok(())
        })
        .unwrap();
        assert_eq!(KeyFile::read(&path).unwrap(), file);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!fs::read_to_string(&path).unwrap().contains("a key of alice"));
    }

    #[test]
    fn changes_at_the_same_time_are_all_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.json");
        std::thread::scope(|scope| {
            for index in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    let sha256 = KeyDigest::of(format!("key {index}"));
                    let entry = KeyEntry { owner: "a".into(), role: Role::Live, sha256, created: None, expires: None };
                    KeyFile::change(path, |file| {
                        file.keys.push(entry);
                        Ok(())
                    })
                    .unwrap();
                });
            }
        });
        assert_eq!(KeyFile::read(&path).unwrap().keys.len(), 8);
    }

    #[test]
    fn errors_name_the_file_and_the_place_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.json");
        let digest = "ab".repeat(32);
        let cases = [
            (String::new(), "line 1 column 0"),
            (r#"{"keys": [{"owner": "alice", "sha256": "abc"}]}"#.to_owned(), "64 hexadecimal digits"),
            (
                format!(r#"{{"keys": [{{"owner": "alice", "sha256": "{digest}", "until": 1}}]}}"#),
                "unknown field `until`",
            ),
            (format!(r#"{{"keys": [{{"owner": "a b", "sha256": "{digest}"}}]}}"#), "keys[0].owner is 'a b'"),
            (r#"{"owners": {"alice": "rpm=no"}}"#.to_owned(), "'rpm=no' is no limit"),
            (r#"{"owners": {"a b": "rpm=1"}}"#.to_owned(), "owners has 'a b'"),
        ];
        for (text, expected) in cases {
            fs::write(&path, text).unwrap();
            let error = format!("{:#}", KeyFile::read(&path).unwrap_err());
            assert!(error.contains(expected) && error.contains("keys.json"), "{error}");
        }
    }
}
