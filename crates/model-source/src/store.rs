//! Object stores: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectStore, RetryConfig};
use url::Url;

use crate::FetchError;
use crate::http::install_ring;
use crate::remote::{Body, RemoteFile, is_safe};

/// How long one request is tried again; a download that still fails is tried again by its own rules.
const RETRY_TIMEOUT: Duration = Duration::from_secs(20);

/// A folder in a bucket.
pub(crate) struct Store {
    store: Box<dyn ObjectStore>,
    root: Path,
    url: Url,
}

// === impl Store ===

impl Store {
    pub(crate) fn new(url: &Url) -> Result<Store, FetchError> {
        let (store, root) = open(url)?;
        Ok(Store { store, root, url: url.clone() })
    }

    /// The files below the folder.
    pub(crate) async fn list(&self) -> Result<Vec<RemoteFile>, FetchError> {
        let objects: Vec<_> = self
            .store
            .list(Some(&self.root))
            .try_collect()
            .await
            .map_err(|error| fault(&self.url, self.url.as_str(), &error))?;
        let file = |object: object_store::ObjectMeta| {
            let parts: Vec<_> =
                object.location.prefix_match(&self.root)?.map(|part| part.as_ref().to_owned()).collect();
            let changed = object.last_modified.to_rfc3339();
            let etag = Some(object.e_tag.unwrap_or(changed));
            Some(RemoteFile { name: parts.join("/"), size: Some(object.size), etag, sha256: None })
        };
        Ok(objects.into_iter().filter_map(file).filter(|file| is_safe(&file.name)).collect())
    }

    /// Reads the version of the file that was listed: a file that was replaced meanwhile is an error.
    pub(crate) async fn read(&self, file: &RemoteFile, from: u64) -> Result<Body, FetchError> {
        let location = Path::parse(format!("{}/{}", self.root, file.name).trim_start_matches('/'));
        let location = location
            .map_err(|error| FetchError::Address { word: self.file_url(&file.name), why: error.to_string() })?;
        let range = (from > 0).then_some(GetRange::Offset(from));
        let etag = file.etag.clone().filter(|etag| etag.contains('"'));
        let options = GetOptions { range, if_match: etag, ..GetOptions::default() };
        let result = self.store.get_opts(&location, options).await;
        let result = result.map_err(|error| fault(&self.url, &self.file_url(&file.name), &error))?;
        let from = result.range.start;
        Ok(Body { from, bytes: result.into_stream().map_err(|error| error.to_string()).boxed() })
    }

    pub(crate) fn file_url(&self, name: &str) -> String {
        format!("{}/{name}", self.url.as_str().trim_end_matches('/'))
    }
}

/// The bucket that a URL names, and the path in it. Credentials come from the environment.
pub(crate) fn open(url: &Url) -> Result<(Box<dyn ObjectStore>, Path), FetchError> {
    install_ring();
    let retry = RetryConfig { max_retries: 3, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() };
    let bucket = url.host_str().unwrap_or_default();
    let store: Result<Box<dyn ObjectStore>, Error> = match url.scheme() {
        "s3" => {
            AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry).build().map(|s| Box::new(s) as _)
        }
        "gs" => GoogleCloudStorageBuilder::from_env()
            .with_bucket_name(bucket)
            .with_retry(retry)
            .build()
            .map(|s| Box::new(s) as _),
        _ => MicrosoftAzureBuilder::from_env()
            .with_container_name(bucket)
            .with_retry(retry)
            .build()
            .map(|s| Box::new(s) as _),
    };
    let root = Path::from_url_path(url.path())
        .map_err(|error| FetchError::Address { word: url.to_string(), why: error.to_string() })?;
    let store = store.map_err(|error| fault(url, url.as_str(), &error))?;
    Ok((store, root))
}

/// An error that names the variables with the credentials and the server.
pub(crate) fn fault(root: &Url, url: &str, error: &Error) -> FetchError {
    let variables = match root.scheme() {
        "s3" => {
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_REGION, and for other servers than Amazon's AWS_ENDPOINT_URL"
        }
        "gs" => "GOOGLE_APPLICATION_CREDENTIALS, or GOOGLE_SERVICE_ACCOUNT",
        _ => "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_TOKEN)",
    };
    let transient = matches!(error, Error::Generic { .. });
    let advice = match error {
        Error::Precondition { .. } => "the file was replaced during the download; start again".to_owned(),
        Error::NotFound { .. } => "check the bucket's name and the folder".to_owned(),
        _ => format!("access is set by {variables}"),
    };
    FetchError::Store { url: url.to_owned(), why: error.to_string(), advice: Some(advice), transient }
}
