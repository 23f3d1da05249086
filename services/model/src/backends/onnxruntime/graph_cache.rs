//! Optimised models on disk. Optimising the graph takes most of the time of loading a large model.
//!
//! An entry is a folder with the optimised model, its weights in files beside it, and a text file with its key and checksum. It is written under a
//! temporary name and renamed, so that processes may share a directory. An entry with a wrong checksum is replaced, and
//! one that cannot be written is a warning: the cache only saves time. Only damaged entries are ever removed.

use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::files;

/// First line of an entry's key; another format gets another number.
const HEADER: &str = "trireme optimised model 2";
const MODEL: &str = "model.onnx";
const KEY: &str = "key";

/// The entry of one model in the cache.
#[derive(Clone, Debug)]
pub struct Entry {
    path: PathBuf,
    key: String,
}

// === impl Entry ===

impl Entry {
    /// The entry of `model`, whose file is at `model_file`, in `directory`. `circumstances` are the other things that
    /// its optimised graph depends on: library, processor, provider, options.
    pub fn new(directory: &Path, model: &str, model_file: &Path, circumstances: &str) -> std::io::Result<Entry> {
        let name = model_file.file_name().unwrap_or_default().display();
        let key = format!("{HEADER} {name} {:016x} {circumstances}", hash_of_all(&files::beside(model_file)?)?);
        let key = key.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut hasher = DefaultHasher::new();
        hasher.write(key.as_bytes());
        let readable: String =
            model.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(64).collect();
        Ok(Entry { path: directory.join(format!("{readable}-{:016x}", hasher.finish())), key })
    }

    /// A directory beside the entry for a provider's own cache.
    pub fn provider_directory(&self) -> PathBuf {
        self.path.with_extension("provider")
    }

    /// The optimised model: the stored one or, if there is none, the one that `make` writes to the given path. The
    /// error says why neither is possible.
    pub fn get_or_make(&self, make: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
        match self.check() {
            Ok(model) => return Ok(model),
            Err(None) => {}
            Err(Some(fault)) => {
                tracing::warn!(entry = %self.path.display(), fault, "a damaged optimised model is made again");
                let _ = std::fs::remove_dir_all(&self.path);
            }
        }
        let unfinished = self.path.with_extension(format!("{}.tmp", std::process::id()));
        let made = self.make(&unfinished, make);
        let _ = std::fs::remove_dir_all(&unfinished);
        made?;
        self.check().map_err(|fault| fault.unwrap_or_else(|| format!("{} is not there", self.path.display())))
    }

    fn make(&self, unfinished: &Path, make: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", unfinished.display());
        let _ = std::fs::remove_dir_all(unfinished);
        std::fs::create_dir_all(unfinished).map_err(failed)?;
        let model = unfinished.join(MODEL);
        make(&model)?;
        let checksum = hash_of_all(&files::beside(&model).map_err(failed)?).map_err(failed)?;
        std::fs::write(unfinished.join(KEY), format!("{}\n{checksum:016x}\n", self.key)).map_err(failed)?;
        match std::fs::rename(unfinished, &self.path) {
            // Another process was faster; its entry has the same content.
            Err(_) if self.path.is_dir() => Ok(()),
            renamed => renamed.map_err(failed),
        }
    }

    /// The entry's model, if it is valid. The error `None` means that the entry does not exist.
    fn check(&self) -> Result<PathBuf, Option<String>> {
        if !self.path.is_dir() {
            return Err(None);
        }
        let fault = |what: &str| Some(what.to_owned());
        let text = std::fs::read_to_string(self.path.join(KEY)).map_err(|_| fault("its key cannot be read"))?;
        let (key, checksum) = text.trim_end().split_once('\n').ok_or_else(|| fault("its key is cut off"))?;
        if key != self.key {
            return Err(fault("its key is another model's"));
        }
        let model = self.path.join(MODEL);
        let mut made = files::beside(&model).map_err(|_| fault("it cannot be read"))?;
        made.retain(|file| !file.ends_with(KEY));
        match hash_of_all(&made) {
            Ok(found) if format!("{found:016x}") == checksum => Ok(model),
            Ok(_) => Err(fault("its checksum is wrong")),
            Err(_) => Err(fault("its model cannot be read")),
        }
    }
}

/// A hash of the names and the contents of files.
fn hash_of_all(files: &[PathBuf]) -> std::io::Result<u64> {
    let mut hasher = DefaultHasher::new();
    for file in files {
        hasher.write(file.file_name().unwrap_or_default().as_encoded_bytes());
        hasher.write_u64(hash_of(file)?);
    }
    Ok(hasher.finish())
}

fn hash_of(file: &Path) -> std::io::Result<u64> {
    let mut file = std::fs::File::open(file)?;
    let (mut hasher, mut buffer) = (DefaultHasher::new(), vec![0u8; 1 << 18]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finish()),
            count => hasher.write(&buffer[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(content: &'static str) -> impl FnOnce(&Path) -> Result<(), String> {
        move |path| std::fs::write(path, content).map_err(|error| error.to_string())
    }

    fn never(_: &Path) -> Result<(), String> {
        Err("it need not be made".to_owned())
    }

    #[test]
    fn an_entry_is_made_once_for_each_model_and_circumstance() {
        let directory = tempfile::tempdir().unwrap();
        let (cache, file) = (directory.path().join("cache"), directory.path().join("model/model.onnx"));
        std::fs::create_dir(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "one").unwrap();
        let entry = |circumstances: &str| Entry::new(&cache, "my/model", &file, circumstances).unwrap();
        let made = entry("level 99").get_or_make(write("optimised")).unwrap();
        assert_eq!(std::fs::read_to_string(&made).unwrap(), "optimised");
        assert_eq!(entry("level 99").get_or_make(never).unwrap(), made);
        assert!(entry("level 1").get_or_make(never).is_err());
        std::fs::write(&file, "two").unwrap();
        assert_eq!(entry("level 99").get_or_make(never).unwrap_err(), "it need not be made", "the model changed");
        assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 1, "nothing unfinished stays behind");
        let made = entry("level 99").get_or_make(write("of two")).unwrap();
        let weights = file.with_file_name("weights").join("0");
        std::fs::create_dir(weights.parent().unwrap()).unwrap();
        std::fs::write(weights, "three").unwrap();
        assert!(entry("level 99").get_or_make(never).is_err(), "weights in a folder beside the graph changed");
        std::fs::remove_dir_all(file.with_file_name("weights")).unwrap();
        assert_eq!(entry("level 99").get_or_make(never).unwrap(), made);
        std::fs::copy(&file, file.with_file_name("decoder.onnx")).unwrap();
        entry("level 99").get_or_make(write("of the first of two graphs")).unwrap();
        let decoder = Entry::new(&cache, "my/model", &file.with_file_name("decoder.onnx"), "level 99").unwrap();
        assert!(decoder.get_or_make(never).is_err(), "each graph in a folder has an entry of its own");
    }

    #[test]
    fn a_damaged_entry_is_made_anew() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("model/model.onnx");
        std::fs::create_dir(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "one").unwrap();
        let entry = Entry::new(&directory.path().join("cache"), "m", &file, "").unwrap();
        let path = entry.get_or_make(write("optimised")).unwrap();
        let damages: [&dyn Fn(); 5] = [
            &|| std::fs::write(&path, "optimisef").unwrap(),
            &|| std::fs::remove_file(&path).unwrap(),
            &|| std::fs::write(path.with_file_name("weights"), "of another model").unwrap(),
            &|| std::fs::write(path.with_file_name(KEY), "x").unwrap(),
            &|| std::fs::remove_file(path.with_file_name(KEY)).unwrap(),
        ];
        for damage in damages {
            damage();
            assert_eq!(entry.get_or_make(write("again")).unwrap(), path);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "again");
        }
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_an_error_not_a_panic() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("model.onnx");
        std::fs::write(&file, "one").unwrap();
        let entry = Entry::new(Path::new("/proc/nowhere"), "m", &file, "").unwrap();
        assert!(entry.get_or_make(write("x")).unwrap_err().starts_with("/proc/nowhere"));
    }
}
