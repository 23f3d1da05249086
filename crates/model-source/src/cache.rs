//! Puts the files of a place into a cache, one after the other, until none is missing.

use std::fs;
use std::path::Path;

use trireme_model_repository::{needed_files, needed_to_export};

use crate::FetchError;
use crate::folder_cache::FolderCache;
use crate::hub_cache::HubCache;
use crate::progress::Progress;
use crate::remote::RemoteFile;
use crate::settings::Settings;
use crate::source::Source;
use crate::transfer::download;

/// Where files go.
pub(crate) enum CachePlace<'a> {
    Hub(&'a HubCache),
    /// A cache, and the state of the folder.
    Folder(&'a FolderCache, &'a str),
}

/// Downloads into `staging` what the model needs of the files `listed`.
pub(crate) async fn gather(
    word: &str,
    source: &Source,
    listed: &[RemoteFile],
    place: &CachePlace<'_>,
    staging: &Path,
    settings: &Settings,
) -> Result<(), FetchError> {
    let mut progress = Progress::new(word);
    loop {
        let missing = missing(word, staging, listed, settings)?;
        if missing.is_empty() {
            progress.finish();
            return Ok(());
        }
        for name in missing {
            let Some(file) = listed.iter().find(|file| file.name == name) else {
                return Err(FetchError::Empty { url: format!("{word}: {name}") });
            };
            place.put(source, file, staging, &mut progress).await?;
        }
    }
}

/// The names of needed files that the folder `local` lacks.
pub(crate) fn missing(
    word: &str,
    local: &Path,
    listed: &[RemoteFile],
    settings: &Settings,
) -> Result<Vec<String>, FetchError> {
    let names: Vec<&str> = listed.iter().map(|file| file.name.as_str()).collect();
    let needed = if settings.to_export { needed_to_export } else { needed_files };
    needed(local, &names, &settings.choices).map_err(|source| FetchError::Needed { word: word.to_owned(), source })
}

// === impl CachePlace ===

impl CachePlace<'_> {
    async fn put(
        &self,
        source: &Source,
        file: &RemoteFile,
        staging: &Path,
        progress: &mut Progress,
    ) -> Result<(), FetchError> {
        match (self, source) {
            (CachePlace::Hub(cache), Source::Hub(hub)) => {
                let file = hub.complete(file).await?;
                let etag = file.etag.clone().unwrap_or_default();
                let blob = cache.blob(&etag);
                // The cache's content is named by its digest: a file that another program downloaded is the same one.
                let is_there = fs::metadata(&blob).is_ok_and(|found| file.size.is_none_or(|size| size == found.len()));
                if !is_there {
                    download(source, &file, &cache.partial(&etag), &blob, progress).await?;
                }
                cache.link(staging, &file.name, &etag)
            }
            (CachePlace::Hub(_), _) => Err(FetchError::Empty { url: source.url(file) }),
            (CachePlace::Folder(cache, state), _) => {
                let target = staging.join(&file.name);
                download(source, file, &cache.partial(state, &file.name), &target, progress).await
            }
        }
    }
}

/// Object stores and git hold no empty folders, but the versions of ensembles and of some backends have nothing in them: a
/// model without a version gets version 1.
pub(crate) fn add_versions(folder: &Path) -> Result<(), FetchError> {
    let models = fs::read_dir(folder).map_err(FetchError::io(folder))?;
    for model in models.flatten().map(|entry| entry.path()).filter(|model| model.join("config.pbtxt").is_file()) {
        let is_version =
            |entry: fs::DirEntry| entry.file_name().to_string_lossy().parse::<i64>().is_ok() && entry.path().is_dir();
        if !fs::read_dir(&model).map_err(FetchError::io(&model))?.flatten().any(is_version) {
            let version = model.join("1");
            fs::create_dir(&version).map_err(FetchError::io(&version))?;
        }
    }
    Ok(())
}
