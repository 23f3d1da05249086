//! Reads model repositories where a file system that hangs holds up nobody else: on threads of their own.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use trireme_engine::on_thread;
use trireme_model_repository::{Repository, RepositoryError, RepositoryModel};

use super::model_control::Override;

/// How long a model's directory may take to be read for a command; only its small files are.
const LIMIT: Duration = Duration::from_secs(60);

/// Time between two log lines about a repository that takes long.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// The model `name` under `paths`, as [`RepositoryModel::find`] reads it. A directory that cannot be read for a minute is an error.
pub fn find_model<'a>(
    paths: &'a [PathBuf],
    name: &'a str,
    with: &'a Override,
) -> BoxFuture<'a, Result<Option<RepositoryModel>, RepositoryError>> {
    Box::pin(async move {
        let path = || paths.first().map(|path| path.join(name)).unwrap_or_default();
        let cannot = |source| RepositoryError::Read { path: path(), source };
        let (paths, name, with) = (paths.to_vec(), name.to_owned(), with.clone());
        let reading = on_thread("model-files", move || RepositoryModel::find(&paths, &name, with.replacement(), &[]));
        match tokio::time::timeout(LIMIT, reading).await {
            Ok(read) => read.map_err(cannot)?,
            Err(_) => {
                let why = format!("not read within {} s: its file system may hang", LIMIT.as_secs());
                Err(cannot(std::io::Error::new(std::io::ErrorKind::TimedOut, why)))
            }
        }
    })
}

/// The repositories under `paths`, as [`Repository::read`] reads them, for those who follow their changes. While a file system hangs, this
/// waits and says so.
pub fn read_again(paths: &[PathBuf]) -> BoxFuture<'static, Result<Repository, Vec<RepositoryError>>> {
    let (paths, path) = (paths.to_vec(), paths.first().cloned().unwrap_or_default());
    Box::pin(async move {
        let began = Instant::now();
        let mut reading = std::pin::pin!(on_thread("model-files", move || Repository::read(&paths, &[])));
        loop {
            match tokio::time::timeout(SAY_AGAIN, &mut reading).await {
                Ok(read) => return read.unwrap_or_else(|source| Err(vec![RepositoryError::Read { path, source }])),
                Err(_) => {
                    let seconds = began.elapsed().as_secs();
                    tracing::error!(
                        seconds,
                        "the model repository is still being read: a file system may hang; the served models stay"
                    );
                }
            }
        }
    })
}
