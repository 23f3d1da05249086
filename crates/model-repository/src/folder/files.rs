//! Reads the small files of a model folder and gathers their faults.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use trireme_model_files::regular;

use super::choices::Choices;
use super::origin::Derived;
use super::precision::Precision;

/// No JSON file of a model is larger than this by intent; vocabularies take some 20 MB.
const MAX_JSON_BYTES: u64 = 256 << 20;

/// The beginning of a pointer of Git LFS.
const POINTER: &[u8; 27] = b"version https://git-lfs.git";

/// A model folder while it is read, and its faults so far.
pub(crate) struct Reader<'a> {
    root: &'a Path,
    choices: Choices,
    /// The route whose modules are read, where the folder has a Router.
    route: Option<String>,
    faults: RefCell<Vec<String>>,
    /// Whether no file that a command makes would mend the faults.
    is_beyond_files: Cell<bool>,
    warnings: RefCell<Vec<String>>,
}

/// A JSON file that holds an object. A field that is null counts as left out.
#[derive(Clone, Debug)]
pub(crate) struct Json {
    /// Its path within the folder.
    pub(crate) file: String,
    fields: Map<String, Value>,
}

// === impl Reader ===

impl<'a> Reader<'a> {
    pub(crate) fn new(root: &'a Path, choices: Choices) -> Reader<'a> {
        let (faults, warnings, is_beyond_files) = (RefCell::default(), RefCell::default(), Cell::default());
        Reader { root, choices, route: None, faults, is_beyond_files, warnings }
    }

    /// A reader of the modules of one route.
    pub(crate) fn on_route(self, route: &str) -> Reader<'a> {
        Reader { route: Some(route.to_owned()), ..self }
    }

    /// The route whose modules are read.
    pub(crate) fn route(&self) -> Option<&str> {
        self.route.as_deref()
    }

    /// The flags about the folder.
    pub(crate) fn choices(&self) -> &Choices {
        &self.choices
    }

    /// Which of several ONNX files is served.
    pub(crate) fn precision(&self) -> Precision {
        self.choices.precision
    }

    /// The folder.
    pub(crate) fn root(&self) -> &'a Path {
        self.root
    }

    /// Notes a fault.
    pub(crate) fn fault(&self, fault: impl Display) {
        let fault = fault.to_string();
        let mut faults = self.faults.borrow_mut();
        if !faults.contains(&fault) {
            faults.push(fault);
        }
    }

    /// Notes that folders of this kind are not served: the commands that make missing files would not help.
    pub(crate) fn refuse(&self, fault: impl Display) {
        self.is_beyond_files.set(true);
        self.fault(fault);
    }

    /// Notes that a file is missing, and how it is made, unless that would not help.
    pub(crate) fn lacks(&self, fault: impl Display) {
        if !self.is_beyond_files.get() {
            self.fault(fault);
        }
    }

    /// Notes a warning for a person; the folder is served all the same.
    pub(crate) fn warn(&self, warning: impl Display) {
        let warning = warning.to_string();
        let mut warnings = self.warnings.borrow_mut();
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }

    /// Notes a contradiction, which is a fault as long as nobody has accepted it by its `name`. `instead` says how it is served then.
    pub(crate) fn contradiction(&self, name: &str, what: impl Display, instead: &str) {
        match self.choices.accept.iter().any(|accepted| accepted == name) {
            true => self.warn(format_args!("{what}; {instead}, because of --accept {name}")),
            false => self.fault(format_args!("{what}. With --accept {name} {instead}")),
        }
    }

    /// Notes that a file is a pointer of Git LFS, if it is one, else the `fault` of its content.
    pub(crate) fn unreadable(&self, file: &str, fault: impl Display) {
        match self.is_pointer(file) {
            true => self.fault(format_args!(
                "{file} is a Git LFS pointer, which stands for the file: fetch the files with git lfs pull, in the folder that was cloned"
            )),
            false => self.fault(format_args!("{file} {fault}")),
        }
    }

    /// Whether a file is what git has in place of a large one.
    pub(crate) fn is_pointer(&self, file: &str) -> bool {
        let mut head = [0; POINTER.len()];
        regular::open(&self.path(file)).and_then(|mut file| file.read_exact(&mut head)).is_ok() && head == *POINTER
    }

    /// The faults so far.
    pub(crate) fn faults(&self) -> Vec<String> {
        self.faults.borrow().clone()
    }

    pub(crate) fn into_faults(self) -> Vec<String> {
        self.faults.into_inner()
    }

    /// The warnings so far.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        self.warnings.take()
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.root.join(file)
    }

    pub(crate) fn has(&self, file: &str) -> bool {
        self.path(file).is_file()
    }

    /// The names of the entries of a folder within this one, sorted; none where it is missing.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The content of a JSON file; `None` where the file is missing or cannot be read, which is a fault.
    pub(crate) fn value(&self, file: &str) -> Option<Value> {
        let read = || {
            let path = self.path(file);
            match fs::metadata(&path)?.len() {
                size if size > MAX_JSON_BYTES => Err(io::Error::other(format!("larger than {MAX_JSON_BYTES} bytes"))),
                _ => regular::read(&path),
            }
        };
        let bytes = match read() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                self.unreadable(file, format_args!("cannot be read: {error}"));
                return None;
            }
        };
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
        let read = serde_json::from_slice(bytes).or_else(|error| {
            let finite = without_infinities(bytes).ok_or(error)?;
            let value = serde_json::from_slice(&finite)?;
            self.warn(format_args!("{file} has NaN or Infinity, which JSON does not have; they count as null"));
            Ok(value)
        });
        match read {
            Ok(value) => Some(value),
            Err::<_, serde_json::Error>(error) => {
                self.unreadable(file, format_args!("is not JSON: {error}"));
                None
            }
        }
    }

    /// A JSON file that may be missing: it has no fields then.
    pub(crate) fn json_or_empty(&self, file: &str) -> Json {
        self.json(file).unwrap_or_else(|| Json { file: file.to_owned(), fields: Map::new() })
    }

    /// A JSON file that has to hold an object.
    pub(crate) fn json(&self, file: &str) -> Option<Json> {
        match self.value(file)? {
            Value::Object(fields) => Some(Json { file: file.to_owned(), fields }),
            other => {
                self.fault(format_args!("{file} holds {}, expected an object", kind(&other)));
                None
            }
        }
    }
}

// === impl Json ===

impl Json {
    /// An object within a file, by its place.
    pub(crate) fn of(place: &str, fields: Map<String, Value>) -> Json {
        Json { file: place.to_owned(), fields }
    }

    /// The names of the fields.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.fields.keys().map(String::as_str)
    }

    /// A field that exists and is not null.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.fields.get(key).filter(|value| !value.is_null())
    }

    /// Whether a field exists and is null.
    pub(crate) fn is_null(&self, key: &str) -> bool {
        self.fields.get(key).is_some_and(Value::is_null)
    }

    /// The object in the field `key`; its name in faults is `file: key`.
    pub(crate) fn object(&self, reader: &Reader<'_>, key: &str) -> Option<Map<String, Value>> {
        let found = self.get(key)?;
        let object = found.as_object().cloned();
        if object.is_none() {
            self.unexpected(reader, key, found, "an object");
        }
        object
    }

    pub(crate) fn text(&self, reader: &Reader<'_>, key: &str) -> Option<Derived<String>> {
        let found = self.get(key)?;
        self.typed(reader, key, found.as_str().map(str::to_owned), "a text")
    }

    pub(crate) fn flag(&self, reader: &Reader<'_>, key: &str) -> Option<Derived<bool>> {
        self.typed(reader, key, self.get(key)?.as_bool(), "true or false")
    }

    /// A number that is 0 or more.
    pub(crate) fn number(&self, reader: &Reader<'_>, key: &str) -> Option<Derived<u64>> {
        let found = self.get(key)?;
        // Python writes some whole numbers as floating point ones.
        let whole = |number: f64| (number >= 0.0 && number.fract() == 0.0).then_some(number as u64);
        self.typed(reader, key, found.as_u64().or_else(|| found.as_f64().and_then(whole)), "a whole number from 0")
    }

    fn typed<T>(&self, reader: &Reader<'_>, key: &str, value: Option<T>, expected: &str) -> Option<Derived<T>> {
        if value.is_none() {
            self.unexpected(reader, key, self.get(key)?, expected);
        }
        value.map(|value| Derived::field(value, &self.file, key))
    }

    fn unexpected(&self, reader: &Reader<'_>, key: &str, found: &Value, expected: &str) {
        reader.fault(format_args!("{}: {key} is {}, expected {expected}", self.file, kind(found)));
    }
}

/// The text with null in place of `NaN`, `Infinity` and `-Infinity` outside of strings, which Python writes; `None` where there are
/// none.
fn without_infinities(text: &[u8]) -> Option<Vec<u8>> {
    const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let mut out = Vec::with_capacity(text.len());
    let (mut at, mut quoted, mut found) = (0, false, false);
    while at < text.len() {
        let word = WORDS.iter().find(|word| !quoted && text[at..].starts_with(word));
        match word {
            Some(word) => {
                out.extend(b"null");
                (at, found) = (at + word.len(), true);
                continue;
            }
            None if text[at] == b'"' => quoted = !quoted,
            None if text[at] == b'\\' && at + 1 < text.len() => {
                out.push(text[at]);
                at += 1;
            }
            None => {}
        }
        out.push(text[at]);
        at += 1;
    }
    found.then_some(out)
}

/// A value as a message names it: scalars as they are.
pub(crate) fn kind(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        scalar => scalar.to_string(),
    }
}
