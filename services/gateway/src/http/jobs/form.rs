//! Forms (multipart/form-data) with a file: the file's bytes go to the store as they come.
//!
//! Invariants: a field's headers and the fields beside the file are bounded before they are in memory; a form that is refused leaves nothing
//! in the store.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use bytes::Bytes;
use futures_util::stream::{self, Stream};
use multer::Multipart;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use trireme_jobs::Arrival;
use trireme_server::RequestContext;
use trireme_server::budget::BytesPermit;
use trireme_server::http::query;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::{PartialSchema, ToSchema};

use super::refused::Refused;

/// Longest field beside the file's bytes.
const LONGEST_FIELD: usize = 4096;

/// Most bytes of a form that are read for the headers of a field. Pieces hold what follows them, too, and have up to 128 KiB: the parser takes two
/// before it looks.
const LONGEST_HEADERS: usize = 256 << 10;

/// Most fields of a form, and longest name of a file.
const MOST_FIELDS: usize = 64;
const LONGEST_NAME: usize = 1024;

/// How long a file may be asked to live, in seconds: as OpenAI has it.
const LIVES: RangeInclusive<u64> = 3600..=30 * 24 * 3600;

/// A form whose file has arrived.
pub struct Form<'a, T> {
    /// The file and its name.
    pub file: Option<(Arrival<'a>, String)>,
    /// The fields beside it.
    pub fields: T,
}

/// The fields of the form of a file, beside its bytes.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = FileFields)]
pub struct FileFields {
    #[serde(rename = "purpose")]
    #[schema(inline)]
    _purpose: Option<Purpose>,
    #[serde(rename = "expires_after[anchor]")]
    #[schema(inline)]
    _anchor: Option<Anchor>,
    #[serde(rename = "expires_after[seconds]")]
    #[schema(inline)]
    seconds: Option<Lives>,
}

/// The fields of the form of a part, beside its bytes: none.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = PartFields)]
pub struct NoFields {}

/// The purpose of a file.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    Batch,
}

/// How long a file is kept.
#[derive(Deserialize, ToSchema)]
pub struct ExpiresAfter {
    #[serde(default, rename = "anchor")]
    #[schema(inline)]
    _anchor: Option<Anchor>,
    #[schema(inline)]
    seconds: Lives,
}

/// The time that the life of a file counts from.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Anchor {
    CreatedAt,
}

/// How long a file lives, in seconds.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "u64")]
struct Lives(Duration);

/// A body that ends with an error when too much of it is read for the headers of a field.
#[derive(Clone, Default)]
struct Headers(Arc<AtomicUsize>);

/// Reads a form; the bytes of its field `field` go into `arrival`.
pub async fn read<'a, T: Default + DeserializeOwned>(
    arrival: Arrival<'a>,
    request: Request,
    field: &str,
) -> Result<Form<'a, T>, Refused> {
    let content_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let boundary = multer::parse_boundary(content_type).map_err(|_| {
        Refused::invalid(&format!("Content-Type is '{content_type}', expected multipart/form-data with a boundary"))
    })?;
    if let Some(coding) = request.headers().get(CONTENT_ENCODING).filter(|coding| *coding != "identity") {
        let coding = String::from_utf8_lossy(coding.as_bytes()).into_owned();
        return Err(Refused::encoded(&format!(
            "Content-Encoding is '{coding}', expected a form that is not compressed"
        )));
    }
    let context = RequestContext::of(request.extensions()).clone();
    let headers = Headers::default();
    let multipart = Multipart::new(headers.bound(request.into_body()), boundary);
    let (mut arrival, mut form) = (Some(arrival), Form { file: None, fields: T::default() });
    match fields(multipart, &headers, context.permit(), field, &mut arrival, &mut form).await {
        Ok(()) => Ok(form),
        Err(refusal) => {
            // The client's error is the one that counts.
            for arrival in form.file.map(|(arrival, _)| arrival).into_iter().chain(arrival) {
                let _ = arrival.abandon().await;
            }
            Err(refusal)
        }
    }
}

async fn fields<'a, T: DeserializeOwned>(
    mut multipart: Multipart<'_>,
    headers: &Headers,
    permit: &BytesPermit,
    field: &str,
    arrival: &mut Option<Arrival<'a>>,
    form: &mut Form<'a, T>,
) -> Result<(), Refused> {
    let mut given = BTreeMap::new();
    for _ in 0..MOST_FIELDS {
        headers.begin();
        let Some(mut part) = multipart.next_field().await.map_err(|error| broken(&error))? else { return Ok(()) };
        headers.end();
        let name = part.name().unwrap_or_default().to_owned();
        if name == field {
            let Some(file) = arrival.as_mut() else {
                return Err(Refused::invalid(&format!("the form has the field '{field}' more than once")));
            };
            let file_name = part.file_name().unwrap_or("file").to_owned();
            if file_name.len() > LONGEST_NAME {
                return Err(Refused::invalid(&format!("the file's name has more than {LONGEST_NAME} bytes")));
            }
            while let Some(chunk) = part.chunk().await.map_err(|error| broken(&error))? {
                file.write(&chunk).await?;
                permit.give_back(chunk.len() as u64);
            }
            form.file = arrival.take().map(|arrival| (arrival, file_name));
            continue;
        }
        let mut value = Vec::new();
        while let Some(chunk) = part.chunk().await.map_err(|error| broken(&error))? {
            value.extend_from_slice(&chunk);
            if value.len() > LONGEST_FIELD {
                return Err(Refused::invalid(&format!("field '{name}' has more than {LONGEST_FIELD} bytes")));
            }
        }
        let value = String::from_utf8_lossy(&value).into_owned();
        given.insert(name.into(), value.into());
        // A form that is refused is so before the file's bytes, where they come later.
        form.fields = query::of_pairs(&given)?;
    }
    Err(Refused::invalid(&format!("the form has more than {MOST_FIELDS} fields")))
}

fn broken(error: &multer::Error) -> Refused {
    let mut words = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        words = error.to_string();
        source = error.source();
    }
    Refused::invalid(&format!("the form cannot be read: {words}"))
}

// === impl FileFields ===

impl FileFields {
    /// How long the file lives, if it does not live until it is deleted.
    pub fn lapse(&self) -> Option<Duration> {
        self.seconds.map(|Lives(time)| time)
    }
}

// === impl ExpiresAfter ===

impl ExpiresAfter {
    /// How long the file lives.
    pub fn lapse(&self) -> Duration {
        self.seconds.0
    }
}

// === impl Lives ===

impl TryFrom<u64> for Lives {
    type Error = String;

    fn try_from(seconds: u64) -> Result<Lives, String> {
        let wrong = || format!("{seconds} seconds, expected {} to {}", LIVES.start(), LIVES.end());
        LIVES.contains(&seconds).then_some(Lives(Duration::from_secs(seconds))).ok_or_else(wrong)
    }
}

impl PartialSchema for Lives {
    fn schema() -> RefOr<Schema> {
        let seconds = ObjectBuilder::new().schema_type(SchemaType::Type(Type::Integer));
        RefOr::T(Schema::Object(seconds.minimum(Some(*LIVES.start())).maximum(Some(*LIVES.end())).build()))
    }
}

impl ToSchema for Lives {}

// === impl Headers ===

impl Headers {
    /// The headers of a field are read from now on.
    fn begin(&self) {
        self.0.store(LONGEST_HEADERS, Ordering::Relaxed);
    }

    /// They were read.
    fn end(&self) {
        self.0.store(usize::MAX, Ordering::Relaxed);
    }

    /// The pieces of a body, as long as not too many of them are headers.
    fn bound(&self, body: Body) -> impl Stream<Item = Result<Bytes, axum::BoxError>> + Send + use<> {
        let (left, pieces) = (self.0.clone(), body.into_data_stream());
        stream::try_unfold((left, pieces), |(left, mut pieces)| async move {
            // The parser takes all pieces that are there before it looks at them, and many are there of HTTP/2: it gets one at a time.
            tokio::task::yield_now().await;
            if left.load(Ordering::Relaxed) == 0 {
                return Err(format!("the headers of a field have more than {LONGEST_HEADERS} bytes").into());
            }
            let Some(piece) = poll_fn(|cx| Pin::new(&mut pieces).poll_next(cx)).await.transpose()? else {
                return Ok(None);
            };
            let rest = left.load(Ordering::Relaxed);
            if rest != usize::MAX {
                left.store(rest.saturating_sub(piece.len()), Ordering::Relaxed);
            }
            Ok(Some((piece, (left, pieces))))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Reads the only field of a form, whose pieces are all there already. Returns the length of its content.
    async fn read_field(pieces: Vec<Bytes>) -> Result<usize, multer::Error> {
        let body = pieces.into_iter().chain([Bytes::from_static(b"\r\n--edge--\r\n")]).map(Ok::<_, Infallible>);
        let headers = Headers::default();
        let mut form = Multipart::new(headers.bound(Body::from_stream(stream::iter(body))), "edge");
        headers.begin();
        let mut field = form.next_field().await?.expect("the form has a field");
        headers.end();
        let mut length = 0;
        while let Some(chunk) = field.chunk().await? {
            length += chunk.len();
        }
        Ok(length)
    }

    #[tokio::test]
    async fn content_that_is_there_already_does_not_count_as_headers() {
        let head = b"--edge\r\nContent-Disposition: form-data; name=file\r\n\r\n";
        for piece in [16 << 10, 128 << 10] {
            let piece = Bytes::from(vec![b'x'; piece]);
            let apart = [vec![Bytes::from_static(head)], vec![piece.clone(); 100]].concat();
            assert_eq!(read_field(apart).await.unwrap(), 100 * piece.len());
            let together = [vec![Bytes::from([&head[..], &piece].concat())], vec![piece.clone(); 99]].concat();
            assert_eq!(read_field(together).await.unwrap(), 100 * piece.len());
        }
        let endless = vec![Bytes::from(vec![b'x'; 16 << 10]); 100];
        let refused = read_field([vec![Bytes::from_static(b"--edge\r\nX-A: ")], endless].concat()).await.unwrap_err();
        assert!(matches!(refused, multer::Error::StreamReadFailed(_)), "{refused:?}");
    }
}
