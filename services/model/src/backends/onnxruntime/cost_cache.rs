//! Measured costs on disk, so that a model need not be measured again when it is loaded again.
//!
//! An entry is a small text file. Its name is the model's name and a hash of its *key*; the file contains the key too,
//! which has everything that the costs depend on. It is written whole and renamed into place, so that processes may
//! share a directory. An entry that cannot be read or does not match is ignored, and one that cannot be written is a
//! warning: the cache only saves time.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::files;
use crate::batcher::Steps;
use crate::batcher::cost::{CostModel, Fit};

/// First line of an entry; another format, or another rule for the budget, gets another number.
const HEADER: &str = "trireme cost model 3";

/// First line of an entry about a choice by two rates.
const RATES: &str = "trireme rates 1";

/// First line of an entry about a packed graph: the two rates, and its budget of tokens.
const PACKING: &str = "trireme packing 1";

/// The entry of one model in the cache.
#[derive(Clone, Debug)]
pub struct Entry {
    path: PathBuf,
    key: String,
}

/// Tokens per second of a model as it is and in another form, by which one is chosen: with another provider, or with a packed graph. Of a
/// form that cannot be used 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// With the plain provider and graph.
    pub plain: f64,
    /// In the other form.
    pub other: f64,
}

/// The default directory of the cache: `trireme/cost-models` in the user's cache directory; `None` if the user has no
/// cache directory.
pub fn default_directory() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    Some(caches.join("trireme/cost-models"))
}

// === impl Entry ===

impl Entry {
    /// The entry of `model`, whose file is at `model_file`, in `directory`. `circumstances` are the other things that
    /// its costs depend on: library, threads, instances.
    pub fn new(directory: &Path, model: &str, model_file: &Path, circumstances: &str) -> Entry {
        let key = format!("{} {} {circumstances}", files_beside(model_file), processor());
        let key = key.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let readable: String =
            model.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(64).collect();
        Entry { path: directory.join(format!("{readable}-{:016x}", hasher.finish())), key }
    }

    /// The stored costs, if they have the same key.
    pub fn read(&self) -> Option<Fit> {
        let [run, token, pair, token_budget, error, multiple, longest] = self.numbers(HEADER)?;
        let model = CostModel { run, token, pair };
        let steps = Steps { multiple: multiple as u32, longest: longest as u32 };
        let fit = Fit { model, token_budget: token_budget as u32, error, steps };
        (fit.token_budget > 0 && steps.multiple > 0 && model.cost(1, 1) > 0.0).then_some(fit)
    }

    /// Stores `fit`.
    pub fn write(&self, fit: &Fit) -> std::io::Result<()> {
        let Fit { model: CostModel { run, token, pair }, token_budget, error, steps } = fit;
        let (multiple, longest) = (steps.multiple, steps.longest);
        self.store(&format!(
            "{HEADER}\n{}\nrun: {run}\ntoken: {token}\npair: {pair}\nbudget: {token_budget}\nerror: {error}\nmultiple: \
             {multiple}\nlongest: {longest}\n",
            self.key
        ))
    }

    /// The stored rates, if they have the same key.
    pub fn read_rates(&self) -> Option<Rates> {
        self.numbers(RATES).map(|[plain, other]| Rates { plain, other })
    }

    /// Stores rates.
    pub fn write_rates(&self, Rates { plain, other }: Rates) -> std::io::Result<()> {
        self.store(&format!("{RATES}\n{}\nplain: {plain}\nother: {other}\n", self.key))
    }

    /// The stored rates of a packed graph and the most tokens of its runs, if they have the same key.
    pub fn read_packing(&self) -> Option<(Rates, u32)> {
        let [plain, other, budget] = self.numbers(PACKING)?;
        (budget >= 1.0).then_some((Rates { plain, other }, budget as u32))
    }

    /// Stores the rates of a packed graph and the most tokens of its runs.
    pub fn write_packing(&self, Rates { plain, other }: Rates, budget: u32) -> std::io::Result<()> {
        self.store(&format!("{PACKING}\n{}\nplain: {plain}\nother: {other}\nbudget: {budget}\n", self.key))
    }

    /// The numbers of an entry with this first line and the same key.
    fn numbers<const N: usize>(&self, header: &str) -> Option<[f64; N]> {
        let text = std::fs::read_to_string(&self.path).ok()?;
        let mut lines = text.lines();
        (lines.next()? == header && lines.next()? == self.key).then_some(())?;
        let number = |line: &str| line.split_once(": ")?.1.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
        lines.map(number).collect::<Option<Vec<_>>>()?.try_into().ok()
    }

    fn store(&self, text: &str) -> std::io::Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(directory)?;
        let unfinished = self.path.with_extension(format!("{}.tmp", std::process::id()));
        let mut file = std::fs::File::create(&unfinished)?;
        file.write_all(text.as_bytes())?;
        std::fs::rename(&unfinished, &self.path)
    }
}

/// Name, size and time of change of all files of the model.
fn files_beside(model_file: &Path) -> String {
    let describe = |path: &PathBuf| {
        let metadata = std::fs::metadata(path).ok()?;
        let changed = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        let name = path.file_name().unwrap_or_default();
        Some(format!("{}={}@{}", name.display(), metadata.len(), changed.as_micros()))
    };
    let files = files::beside(model_file).unwrap_or_default();
    files.iter().filter_map(describe).collect::<Vec<_>>().join(" ")
}

/// The processor's name, as the kernel has it, or its architecture. The cache may be on a disk shared by different machines.
pub fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':')).map(|(_, name)| name);
    name.unwrap_or(std::env::consts::ARCH).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit() -> Fit {
        let model = CostModel { run: 2.25e-3, token: 2.1e-4, pair: 1.5e-7 };
        Fit { model, token_budget: 512, error: 0.031, steps: Steps { multiple: 16, longest: 512 } }
    }

    #[test]
    fn what_is_kept_comes_back_until_something_changes() {
        let directory = tempfile::tempdir().unwrap();
        let (cache, file) = (directory.path().join("new/cache"), directory.path().join("model/model.onnx"));
        std::fs::create_dir(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "one").unwrap();
        let entry = |circumstances: &str| Entry::new(&cache, "my/model", &file, circumstances);
        assert_eq!(entry("1 thread").read(), None);
        entry("1 thread").write(&fit()).unwrap();
        assert_eq!(entry("1 thread").read(), Some(fit()));
        assert_eq!(entry("2 threads").read(), None);
        std::fs::write(&file, "another").unwrap();
        assert_eq!(entry("1 thread").read(), None, "the model changed");
        assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 1, "nothing unfinished stays behind");
        let rates = Rates { plain: 298.5, other: 812.0 };
        entry("accelerator").write_rates(rates).unwrap();
        assert_eq!((entry("accelerator").read_rates(), entry("accelerator").read()), (Some(rates), None));
    }

    #[test]
    fn a_damaged_entry_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let entry = Entry::new(directory.path(), "m", Path::new("/nowhere/model.onnx"), "");
        entry.write(&fit()).unwrap();
        let whole = std::fs::read_to_string(&entry.path).unwrap();
        for damaged in [
            whole.replace(HEADER, "trireme cost model 0"),
            whole.replace("token: ", "token: -"),
            whole.replace("budget: 512", "budget: 0"),
            whole.replace("multiple: 16", "multiple: 0"),
            whole.replace("longest: 512\n", ""),
            whole.replace("0.00225", "x"),
            whole[..whole.len() / 2].to_owned(),
            String::new(),
        ] {
            std::fs::write(&entry.path, &damaged).unwrap();
            assert_eq!(entry.read(), None, "{damaged}");
        }
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_an_error_not_a_panic() {
        let entry = Entry::new(Path::new("/proc/nowhere"), "m", Path::new("/nowhere/model.onnx"), "");
        assert!(entry.write(&fit()).is_err());
        assert_eq!(entry.read(), None);
    }
}
