//! The record of the spaces that a model folder's was measured to equal: `equivalent_spaces.json` at its top, which `trireme verify A B --record`
//! writes beside B.
//!
//! Invariant: the record is part of neither the content nor the space of the model.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use trireme_inference::{Equivalence, Name, is_space};

use super::FolderError;

/// The file's name.
pub const EQUIVALENT_SPACES: &str = "equivalent_spaces.json";

/// Most equivalences of a record: each is in every entry of a worker, and in a header of every answer.
const MOST: usize = 16;

/// The record of a model folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EquivalentSpaces {
    /// The spaces of the steps of the model that was measured, each once.
    pub steps: Vec<Name>,
    /// The comparisons.
    pub measured: Vec<Measured>,
}

/// A comparison that the model has passed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The spaces.
    #[serde(flatten)]
    pub equivalence: Equivalence,
    /// The operation, as `--task` names it.
    pub task: String,
    /// The other model, as the command line named it.
    pub model: String,
    /// The likeness that was asked for.
    pub min_cosine: f64,
    /// The results, as `trireme verify --json` prints them for the task.
    pub figures: serde_json::Value,
}

// === impl EquivalentSpaces ===

impl EquivalentSpaces {
    /// The record in a model folder; `None` where there is none.
    ///
    /// # Errors
    /// The file cannot be read, or is no such record.
    pub fn read(folder: &Path) -> Result<Option<EquivalentSpaces>, FolderError> {
        let text = match fs::read_to_string(folder.join(EQUIVALENT_SPACES)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(fault(folder, &error.to_string())),
        };
        let record: EquivalentSpaces =
            serde_json::from_str(&text).map_err(|error| fault(folder, &error.to_string()))?;
        let pairs = record.measured.iter().flat_map(|one| [&one.equivalence.space, &one.equivalence.to]);
        if let Some(other) = pairs.chain(&record.steps).find(|space| !is_space(space)) {
            return Err(fault(folder, &format!("'{other}' is no space")));
        }
        match record.measured.len() {
            found if found > MOST => Err(fault(folder, &format!("{found} comparisons, expected {MOST} at most"))),
            _ => Ok(Some(record)),
        }
    }

    /// Adds a comparison to the record of a model with these steps. Comparisons of a model with other steps are dropped, and one of
    /// the same spaces and task is replaced. The oldest goes where there is no room.
    pub fn add(&mut self, steps: &[Name], measured: Measured) {
        if self.steps != steps {
            *self = EquivalentSpaces { steps: steps.to_vec(), measured: Vec::new() };
        }
        self.measured.retain(|one| (&one.equivalence, &one.task) != (&measured.equivalence, &measured.task));
        self.measured.push(measured);
        let spare = self.measured.len().saturating_sub(MOST);
        self.measured.drain(..spare);
    }

    /// Writes the record into a model folder. Returns the file.
    pub fn write(&self, folder: &Path) -> io::Result<PathBuf> {
        let path = folder.join(EQUIVALENT_SPACES);
        fs::write(&path, serde_json::to_string_pretty(self)? + "\n")?;
        Ok(path)
    }

    /// The record's equivalences, for a step of this space; `None` where the measured model had no such step.
    pub fn of_step(&self, space: &str) -> Option<Vec<Equivalence>> {
        let is_of_it = self.steps.iter().any(|step| space.starts_with(step.as_str()));
        is_of_it.then(|| self.measured.iter().map(|measured| measured.equivalence.clone()).collect())
    }
}

/// The error of a file that is no record.
fn fault(folder: &Path, found: &str) -> FolderError {
    let fault = format!(
        "{EQUIVALENT_SPACES}: {found}; expected what 'trireme verify OTHER THIS --record' writes: remove the file, and write it again by that"
    );
    FolderError { path: folder.to_owned(), faults: vec![fault] }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn measured(space: &str, to: &str, lowest: f64) -> Measured {
        Measured {
            equivalence: Equivalence { space: space.into(), to: to.into() },
            task: "embed".to_owned(),
            model: "./other".to_owned(),
            min_cosine: 0.9999,
            figures: json!({"all": {"lowest": lowest}}),
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_told_by_the_steps_that_were_measured() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(EquivalentSpaces::read(folder.path()), Ok(None));
        let mut record = EquivalentSpaces::default();
        let steps: Vec<Name> = vec!["ab12".into(), "cd34".into()];
        record.add(&steps, measured("ab12.cd34", "ab12.ef56", 0.99991));
        record.write(folder.path()).unwrap();
        assert_eq!(EquivalentSpaces::read(folder.path()), Ok(Some(record.clone())));
        let told = record.of_step("cd34ffffffff").unwrap();
        assert_eq!((told.len(), told[0].to.as_str()), (1, "ab12.ef56"));
        assert_eq!(record.of_step("cd35ffffffff"), None);

        // Measured again, and then of another model under the same name.
        record.add(&steps, measured("ab12.cd34", "ab12.ef56", 0.99995));
        assert_eq!((record.measured.len(), &record.measured[0].figures["all"]["lowest"]), (1, &json!(0.99995)));
        for number in 0..2 * MOST {
            record.add(&steps, measured("ab12.cd34", &format!("{number}"), 1.0));
        }
        assert_eq!((record.measured.len(), record.measured[0].equivalence.to.as_str()), (MOST, "16"));
        record.add(&["99".into()], measured("99", "ab12.ef56", 1.0));
        assert_eq!((record.measured.len(), record.steps.len()), (1, 1));
    }

    #[test]
    fn a_broken_record_is_refused_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let whole = json!({"steps": ["ab"], "measured": [measured("ab", "cd", 1.0)]});
        let with = |pointer: &str, value: serde_json::Value| {
            let mut record = whole.clone();
            *record.pointer_mut(pointer).unwrap() = value;
            record.to_string()
        };
        for (text, words) in [
            ("{".to_owned(), "EOF"),
            ("{}".to_owned(), "missing field `steps`"),
            (with("/measured/0/to", json!("a b")), "'a b' is no space"),
            (with("/steps/0", json!("")), "'' is no space"),
            (
                with("/measured", json!(vec![measured("ab", "cd", 1.0); MOST + 1])),
                "17 comparisons, expected 16 at most",
            ),
        ] {
            fs::write(folder.path().join(EQUIVALENT_SPACES), text).unwrap();
            let refused = EquivalentSpaces::read(folder.path()).unwrap_err().to_string();
            assert!(
                refused.contains(words) && refused.contains("--record") && refused.contains(EQUIVALENT_SPACES),
                "{refused}"
            );
        }
    }
}
