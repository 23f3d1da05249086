//! A file that lies elsewhere and is read and written there: an object of an object store, or a file of a web server.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutPayload, WriteMultipart};
use url::Url;

use crate::FetchError;
use crate::http::{Http, shown};
use crate::store::{fault, open};

/// Parts of an upload that are sent at the same time.
const PARTS: usize = 4;

/// A file that lies elsewhere. Clones are the same. Errors name its URL, and the variables with the credentials.
#[derive(Clone)]
pub struct Object {
    url: Url,
    place: Place,
}

#[derive(Clone)]
enum Place {
    Store(Arc<dyn ObjectStore>, Path),
    Web(Arc<Http>),
}

/// A file that is written from its beginning to its end, and appears when it is complete.
pub struct Upload {
    object: Object,
    parts: Option<WriteMultipart>,
}

// === impl Object ===

impl Object {
    /// The file at an s3://, gs://, az://, http:// or https:// URL, whether or not it is there.
    pub fn at(word: &str) -> Result<Object, FetchError> {
        let bad = |why: &str| FetchError::File { word: shown(word), why: why.to_owned() };
        let url = Url::parse(word).map_err(|error| bad(&error.to_string()))?;
        let place = match url.scheme() {
            "s3" | "gs" | "az" => {
                if url.host_str().is_none_or(str::is_empty) || url.path().trim_matches('/').is_empty() {
                    return Err(bad(&format!("expected {}://bucket/file", url.scheme())));
                }
                let (store, path) = open(&url)?;
                Place::Store(store.into(), path)
            }
            "http" | "https" => Place::Web(Arc::new(Http::new(None, None)?)),
            _ => return Err(bad("expected s3://, gs://, az:// or https://")),
        };
        Ok(Object { url, place })
    }

    /// The file whose name is this one's and `suffix`.
    pub fn with(&self, suffix: &str) -> Result<Object, FetchError> {
        let mut url = self.url.clone();
        url.set_path(&format!("{}{suffix}", self.url.path()));
        let place = match &self.place {
            Place::Store(store, path) => {
                let path = Path::parse(format!("{path}{suffix}"));
                let path = path.map_err(|error| FetchError::File { word: url.to_string(), why: error.to_string() })?;
                Place::Store(store.clone(), path)
            }
            Place::Web(http) => Place::Web(http.clone()),
        };
        Ok(Object { url, place })
    }

    /// Its bytes; `None` if it is not there.
    pub async fn size(&self) -> Result<Option<u64>, FetchError> {
        match &self.place {
            Place::Store(store, path) => match store.head(path).await {
                Ok(found) => Ok(Some(found.size)),
                Err(Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(self.fault(&error)),
            },
            Place::Web(http) => http.length(self.url.as_str()).await,
        }
    }

    /// Some of its bytes.
    pub async fn read(&self, range: Range<u64>) -> Result<Bytes, FetchError> {
        match &self.place {
            Place::Store(store, path) => store.get_range(path, range).await.map_err(|error| self.fault(&error)),
            Place::Web(http) => http.range(self.url.as_str(), range).await,
        }
    }

    /// The names of the files below this one, as below a folder.
    pub async fn names(&self) -> Result<Vec<String>, FetchError> {
        let (store, path) = self.store()?;
        let found: Vec<_> = store.list(Some(path)).try_collect().await.map_err(|error| self.fault(&error))?;
        Ok(found.iter().filter_map(|object| object.location.filename().map(str::to_owned)).collect())
    }

    /// Writes a small file, whole or not at all.
    pub async fn put(&self, bytes: Bytes) -> Result<(), FetchError> {
        let (store, path) = self.store()?;
        store.put(path, PutPayload::from_bytes(bytes)).await.map(drop).map_err(|error| self.fault(&error))
    }

    /// Deletes it; it is no error if it is not there.
    pub async fn delete(&self) -> Result<(), FetchError> {
        let (store, path) = self.store()?;
        match store.delete(path).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.fault(&error)),
        }
    }

    /// Begins to write a file of any size.
    pub async fn upload(&self) -> Result<Upload, FetchError> {
        let (store, path) = self.store()?;
        let upload = store.put_multipart(path).await.map_err(|error| self.fault(&error))?;
        Ok(Upload { object: self.clone(), parts: Some(WriteMultipart::new_with_chunk_size(upload, 8 << 20)) })
    }

    fn store(&self) -> Result<(&Arc<dyn ObjectStore>, &Path), FetchError> {
        match &self.place {
            Place::Store(store, path) => Ok((store, path)),
            Place::Web(_) => {
                let why = "a web server takes no files; write to s3://, gs:// or az://".to_owned();
                Err(FetchError::File { word: self.to_string(), why })
            }
        }
    }

    fn fault(&self, error: &Error) -> FetchError {
        fault(&self.url, self.url.as_str(), error)
    }
}

/// Its URL without a query, which may hold a signature.
impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(self.url.as_str()))
    }
}

// === impl Upload ===

impl Upload {
    /// Appends bytes; waits while several parts are being sent.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), FetchError> {
        let Some(parts) = &mut self.parts else { return Ok(()) };
        let room = parts.wait_for_capacity(PARTS).await;
        room.map_err(|error| self.object.fault(&error))?;
        parts.put(bytes);
        Ok(())
    }

    /// Makes the file appear.
    pub async fn complete(mut self) -> Result<(), FetchError> {
        match self.parts.take() {
            Some(parts) => parts.finish().await.map(drop).map_err(|error| self.object.fault(&error)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_file() {
        let object = |word: &str| Object::at(word).map(|object| object.to_string()).map_err(|error| error.to_string());
        assert_eq!(object("https://h/a%20b?signature=secret"), Ok("https://h/a%20b".to_owned()));
        assert!(object("ftp://h/a").unwrap_err().contains("expected s3://, gs://, az:// or https://"));
        assert!(object("s3://bucket").unwrap_err().contains("expected s3://bucket/file"));
    }

    #[tokio::test]
    async fn a_web_server_takes_no_files() {
        let object = Object::at("https://localhost/a").unwrap();
        let error = object.put(Bytes::new()).await.unwrap_err().to_string();
        assert!(error.contains("takes no files"), "{error}");
    }

    #[tokio::test]
    async fn errors_show_no_signature() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let object = Object::at(&format!("http://127.0.0.1:{port}/a?signature=secret")).unwrap();
        let errors = [object.size().await.unwrap_err(), object.read(0..1).await.unwrap_err()];
        for error in errors.map(|error| error.to_string()) {
            assert!(error.contains(&format!("http://127.0.0.1:{port}/a:")) && !error.contains("secret"), "{error}");
        }
    }
}
