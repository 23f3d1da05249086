//! From a word to a local folder.

use std::path::PathBuf;

use futures_util::future::BoxFuture;
use trireme_model_repository::Precision;
use url::Url;

use crate::FetchError;
use crate::address::Address;
use crate::cache::{CachePlace, add_versions, gather, missing};
use crate::folder_cache::{FolderCache, state};
use crate::http::shown;
use crate::hub::{Hub, MAIN};
use crate::hub_cache::HubCache;
use crate::lock::Lock;
use crate::remote::RemoteFile;
use crate::settings::Settings;
use crate::source::Source;
use crate::store::Store;
use crate::web::Web;

/// The local folder of the model that `word` names, downloaded where the cache lacks it. Where the
/// place does not answer, the files of an earlier download are served.
pub fn fetch<'a>(word: &'a str, settings: &'a Settings) -> BoxFuture<'a, Result<PathBuf, FetchError>> {
    Box::pin(async move {
        let address = Address::parse(word, &settings.hub_endpoint)?;
        match &address {
            Address::Hub { repository, revision } => {
                let fetched = fetch_hub(word, settings, repository, revision.as_deref().unwrap_or(MAIN)).await;
                fetched.map_err(|fault| hub_away(word, settings, repository, revision.as_deref(), fault))
            }
            Address::Store(url) => fetch_folder(word, settings, &address, url).await,
            Address::Web(url) => {
                fetch_folder(word, settings, &address, url).await.map_err(|fault| web_away(word, fault))
            }
        }
    })
}

async fn fetch_hub(word: &str, settings: &Settings, repository: &str, revision: &str) -> Result<PathBuf, FetchError> {
    let cache = HubCache::new(&settings.hub_cache, repository);
    if settings.hub_offline {
        let offline = || FetchError::Offline { word: word.to_owned(), cache: settings.hub_cache.clone() };
        return cache.find(revision).ok_or_else(offline);
    }
    let mut hub = Hub::new(settings, repository, revision)?;
    let (commit, listed) = match hub.list().await {
        Ok(found) => found,
        Err(fault) => return cached(word, fault, cache.find(revision)),
    };
    let _lock = Lock::take(cache.lock(), word).await?;
    let snapshot = cache.snapshot(&commit);
    let snapshot = if snapshot.is_dir() && missing(word, &snapshot, &listed, settings)?.is_empty() {
        snapshot
    } else {
        let staging = cache.staging(&commit);
        std::fs::create_dir_all(&staging).map_err(FetchError::io(&staging))?;
        gather(word, &Source::Hub(hub), &listed, &CachePlace::Hub(&cache), &staging, settings).await?;
        cache.finish(&commit, &staging)?
    };
    cache.set_commit(revision, &commit)?;
    add_versions(&snapshot)?;
    tracing::info!(model = word, commit, folder = %snapshot.display(), "model is here");
    Ok(snapshot)
}

async fn fetch_folder(word: &str, settings: &Settings, address: &Address, url: &Url) -> Result<PathBuf, FetchError> {
    let cache = FolderCache::new(&settings.cache, url.as_str().trim_end_matches('/'), &address.name());
    let (source, listed) = match list(address, url).await {
        Ok(found) => found,
        Err(fault) => return cached(word, fault, cache.latest()),
    };
    if listed.is_empty() {
        return Err(FetchError::Empty { url: url.to_string() });
    }
    // Another precision or graph is another set of files of the same folder.
    let state = match (settings.choices.precision, &settings.choices.graph) {
        (_, Some(graph)) => format!("{}-{}", state(&listed), graph.replace('/', "-")),
        (Precision::Exact, None) => state(&listed),
        (other, None) => format!("{}-{}", state(&listed), other.name()),
    };
    let _lock = Lock::take(&cache.lock(), word).await?;
    let folder = cache.folder(&state);
    if !folder.is_dir() {
        let staging = cache.staging(&state);
        std::fs::create_dir_all(&staging).map_err(FetchError::io(&staging))?;
        gather(word, &source, &listed, &CachePlace::Folder(&cache, &state), &staging, settings).await?;
        add_versions(&staging)?;
        cache.finish(&state)?;
    }
    cache.set_latest(&state)?;
    tracing::info!(model = word, folder = %folder.display(), "model is here");
    Ok(folder)
}

async fn list(address: &Address, url: &Url) -> Result<(Source, Vec<RemoteFile>), FetchError> {
    if matches!(address, Address::Web(_)) {
        let web = Web::new(url)?;
        let listed = web.list().await?;
        return Ok((Source::Web(web), listed));
    }
    let store = Store::new(url)?;
    let listed = store.list().await?;
    Ok((Source::Store(store), listed))
}

/// A fault with what helps where the hub cannot be reached.
fn hub_away(
    word: &str,
    settings: &Settings,
    repository: &str,
    revision: Option<&str>,
    fault: FetchError,
) -> FetchError {
    if !matches!(fault, FetchError::Unreachable { .. }) {
        return fault;
    }
    let revision = revision.map(|revision| format!(" --revision {revision}")).unwrap_or_default();
    FetchError::HubAway {
        word: word.to_owned(),
        fault: Box::new(fault),
        cache: settings.hub_cache.clone(),
        download: format!("hf download {repository}{revision}"),
    }
}

/// A fault with what helps where a web server cannot be reached.
fn web_away(word: &str, fault: FetchError) -> FetchError {
    match fault {
        FetchError::Unreachable { .. } => FetchError::WebAway { word: shown(word), fault: Box::new(fault) },
        other => other,
    }
}

/// The copy in the cache, where the place does not answer; otherwise the fault.
fn cached(word: &str, fault: FetchError, found: Option<PathBuf>) -> Result<PathBuf, FetchError> {
    match found {
        Some(folder) if fault.is_transient() => {
            tracing::warn!(model = word, folder = %folder.display(), "serving the model as it was downloaded before: {fault}");
            Ok(folder)
        }
        _ => Err(fault),
    }
}
