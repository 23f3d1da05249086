//! The Python package that children run: part of this binary, written to a private folder once per process.

use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use trireme_model_repository::TemporaryFolder;

macro_rules! files {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_str!(concat!("../python/", $path)))),*]
    };
}

/// Its files, by their paths within the folder.
const FILES: [(&str, &str); 17] = files![
    "c_python_backend_utils.py",
    "triton_python_backend_utils.py",
    "trireme_python/__init__.py",
    "trireme_python/__main__.py",
    "trireme_python/calls.py",
    "trireme_python/channel.py",
    "trireme_python/configuration.py",
    "trireme_python/current.py",
    "trireme_python/dlpack.py",
    "trireme_python/errors.py",
    "trireme_python/host.py",
    "trireme_python/metrics.py",
    "trireme_python/requests.py",
    "trireme_python/responses.py",
    "trireme_python/stage.py",
    "trireme_python/tensors.py",
    "trireme_python/values.py",
];

/// The folder that the package lies in; deleted with the last clone.
#[derive(Clone, Debug)]
pub struct Package(Arc<TemporaryFolder>);

static WRITTEN: Mutex<Weak<TemporaryFolder>> = Mutex::new(Weak::new());

// === impl Package ===

impl Package {
    /// The folder, which is written if no other model of this process has it.
    pub fn get() -> io::Result<Package> {
        let mut written = WRITTEN.lock();
        if let Some(folder) = written.upgrade() {
            return Ok(Package(folder));
        }
        let folder = Arc::new(TemporaryFolder::new("python")?);
        std::fs::create_dir(folder.path().join("trireme_python"))?;
        for (path, text) in FILES {
            std::fs::write(folder.path().join(path), text)?;
        }
        *written = Arc::downgrade(&folder);
        Ok(Package(folder))
    }

    /// Where it is: what PYTHONPATH has to begin with.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_package_is_in_the_binary() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
        let python = |folder: &str| -> Vec<String> {
            let entries = std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().file_name());
            let names = entries.map(|name| name.into_string().unwrap()).filter(|name| name.ends_with(".py"));
            names.map(|name| Path::new(folder).join(name).to_str().unwrap().to_owned()).collect()
        };
        let mut there = [python(""), python("trireme_python")].concat();
        there.sort();
        let mut embedded: Vec<_> = FILES.iter().map(|(path, _)| (*path).to_owned()).collect();
        embedded.sort();
        assert_eq!(there, embedded);
        let (one, other) = (Package::get().unwrap(), Package::get().unwrap());
        assert_eq!(one.path(), other.path(), "written once");
        assert!(one.path().join("trireme_python/host.py").is_file());
    }
}
