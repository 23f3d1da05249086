//! Maps an [`ErrorCode`] to the treatment of the failed delivery. This is the only such table.

use std::time::Duration;

use trireme_inference::{Backoff, ErrorCode, InferError};

/// The pauses before a message is delivered again after a failed attempt.
const RETRIES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(6400));

/// How a delivery whose work failed is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Answer the request with the error; the message is done.
    Answer,
    /// Deliver the message again after this pause.
    Retry(Duration),
    /// Answer the request with the error and write the message to the dead letters.
    GiveUp,
    /// The client does not wait: forget the message.
    Drop,
}

/// Decides about a delivery. `attempt` counts from 1; `remaining` is the time to the request's deadline, `None` when it
/// has passed.
///
/// Errors that are the request's fault would repeat on every worker, so they are answered at once. So are errors that the model's
/// code has made: the model has executed the request, and nobody knows whether it may do so twice. Other errors may not repeat
/// on another worker, so the request is tried again while attempts and time last.
pub fn disposition(error: &InferError, attempt: u32, max_attempts: u32, remaining: Option<Duration>) -> Disposition {
    match error.code {
        ErrorCode::Unavailable | ErrorCode::Internal | ErrorCode::Unknown if error.of_model => Disposition::Answer,
        ErrorCode::InvalidArg | ErrorCode::NotFound | ErrorCode::Unsupported | ErrorCode::AlreadyExists => {
            Disposition::Answer
        }
        ErrorCode::Cancelled => Disposition::Drop,
        ErrorCode::Unavailable | ErrorCode::Internal | ErrorCode::Unknown => {
            let pause = RETRIES.after(attempt);
            match remaining {
                Some(remaining) if attempt < max_attempts && remaining > pause => Disposition::Retry(pause),
                _ => Disposition::GiveUp,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Option<Duration> = Some(Duration::from_secs(60));

    fn error(code: ErrorCode) -> InferError {
        InferError::new(code, "as the test has it")
    }

    #[test]
    fn faults_of_the_request_are_answered_at_once() {
        for code in [ErrorCode::InvalidArg, ErrorCode::NotFound, ErrorCode::Unsupported, ErrorCode::AlreadyExists] {
            assert_eq!(disposition(&error(code), 1, 3, MINUTE), Disposition::Answer);
        }
    }

    #[test]
    fn what_a_model_s_code_answers_is_the_answer() {
        for code in ErrorCode::ALL.into_iter().filter(|code| *code != ErrorCode::Cancelled) {
            let error = InferError { of_model: true, ..error(code) };
            assert_eq!(disposition(&error, 1, 3, MINUTE), Disposition::Answer);
            assert_eq!(disposition(&error, 1, 3, None), Disposition::Answer, "a late one, too");
        }
    }

    #[test]
    fn faults_of_ours_are_tried_again_while_attempts_and_time_last() {
        for code in [ErrorCode::Unavailable, ErrorCode::Internal, ErrorCode::Unknown] {
            assert_eq!(disposition(&error(code), 1, 3, MINUTE), Disposition::Retry(Duration::from_millis(100)));
            assert_eq!(disposition(&error(code), 2, 3, MINUTE), Disposition::Retry(Duration::from_millis(200)));
            assert_eq!(disposition(&error(code), 3, 3, MINUTE), Disposition::GiveUp);
            assert_eq!(disposition(&error(code), 1, 3, Some(Duration::from_millis(50))), Disposition::GiveUp);
            assert_eq!(disposition(&error(code), 1, 3, None), Disposition::GiveUp);
            assert_eq!(disposition(&error(code), u32::MAX, u32::MAX, MINUTE), Disposition::GiveUp);
        }
    }

    #[test]
    fn cancelled_work_is_dropped() {
        assert_eq!(disposition(&error(ErrorCode::Cancelled), 1, 3, MINUTE), Disposition::Drop);
    }
}
