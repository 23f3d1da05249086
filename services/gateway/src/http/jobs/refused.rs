//! How the routes of durable work refuse a request.

use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use trireme_bus::BusError;
use trireme_jobs::JobError;
use trireme_protocol::status::http_status;
use trireme_server::access::Denied;
use trireme_server::http::query::ParameterFault;
use trireme_server::http::response::{self, Unanswered};
use trireme_server::http::schema::{nullable, object, text};
use utoipa::openapi::schema::Schema;

const NO_JOBS: &str = "this server keeps no jobs: start it with --data-dir DIR (one process) or with a broker, and \
                       without --allow-jobs=false";

/// This gateway keeps no jobs.
pub struct NoJobs;

/// A refusal in OpenAI's shape.
pub struct Refused(StatusCode, String);

/// The status of an error.
pub fn status(error: &JobError) -> StatusCode {
    match error {
        JobError::Unknown { .. } => StatusCode::NOT_FOUND,
        JobError::OtherRequest => StatusCode::UNPROCESSABLE_ENTITY,
        JobError::Invalid(_) => StatusCode::BAD_REQUEST,
        JobError::Quota { is_size: true, .. } => StatusCode::PAYLOAD_TOO_LARGE,
        JobError::Quota { is_size: false, .. } => StatusCode::TOO_MANY_REQUESTS,
        JobError::InUse { .. } => StatusCode::CONFLICT,
        JobError::Lost(_) => StatusCode::GONE,
        JobError::Bus(BusError::StoreFull { .. }) => StatusCode::INSUFFICIENT_STORAGE,
        JobError::Bus(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

// === impl NoJobs ===

impl From<NoJobs> for Response {
    fn from(_: NoJobs) -> Response {
        response::error(StatusCode::NOT_IMPLEMENTED, NO_JOBS)
    }
}

// === impl Refused ===

impl Refused {
    /// A request that cannot be done as it is.
    pub fn invalid(message: &str) -> Refused {
        Refused(StatusCode::BAD_REQUEST, message.to_owned())
    }

    /// A body in a content coding that the route does not read.
    pub fn encoded(message: &str) -> Refused {
        Refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, message.to_owned())
    }

    /// The answer to a request that the handler of a route does not answer.
    pub fn unanswered(why: Unanswered<'_>) -> Response {
        match why {
            Unanswered::Denied(denied) => Refused::denied(denied),
            Unanswered::Failed(error) => {
                let status = StatusCode::from_u16(http_status(error)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                Refused(status, error.message.clone()).into_response()
            }
        }
    }

    fn denied(denied: &Denied) -> Response {
        if *denied != Denied::Key {
            return Refused(StatusCode::FORBIDDEN, denied.to_string()).into_response();
        }
        let bearer = [(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))];
        (bearer, Refused(StatusCode::UNAUTHORIZED, denied.to_string())).into_response()
    }

    /// The shape of a refusal.
    pub fn schema() -> Schema {
        let error = [("message", text()), ("type", text()), ("param", nullable(text())), ("code", nullable(text()))];
        object([("error", object(error))])
    }

    /// A part of a file that it does not have.
    pub fn out_of_range(message: &str) -> Refused {
        Refused(StatusCode::RANGE_NOT_SATISFIABLE, message.to_owned())
    }
}

impl From<ParameterFault> for Refused {
    fn from(fault: ParameterFault) -> Refused {
        Refused::invalid(&fault.0)
    }
}

impl From<NoJobs> for Refused {
    fn from(_: NoJobs) -> Refused {
        Refused(StatusCode::NOT_IMPLEMENTED, NO_JOBS.to_owned())
    }
}

impl From<JobError> for Refused {
    fn from(error: JobError) -> Refused {
        Refused(status(&error), error.to_string())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let kind = if self.0.is_server_error() { "server_error" } else { "invalid_request_error" };
        let error = json!({"message": self.1, "type": kind, "param": null, "code": null});
        (self.0, response::json(json!({"error": error}).to_string().into())).into_response()
    }
}
