//! A question about usage: from when to when, whose, and in which pieces of time.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, NaiveDate, Utc};
use serde::Deserialize;
use trireme_inference::{Name, shown};
use utoipa::{IntoParams, ToSchema};

use super::counts::{Counts, Hour, Line};

/// Seconds of an hour.
const HOUR: i64 = 3600;

/// Hours of a day.
const DAY: u64 = 24;

/// Hours from one to before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first hour.
    pub from: u64,
    /// The first hour after it.
    pub until: u64,
}

/// The parameters of a question, as a client sends them.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub struct Asked {
    /// The time from whose hour on usage is shown, such as 2026-11-28, 2026-11-28T20:00:00Z or seconds since 1970. Today, by UTC, if it is
    /// left out.
    #[param(inline)]
    from: Option<Time>,
    /// The time up to which usage is shown, to the end of its hour. Now, if it is left out.
    #[param(inline)]
    until: Option<Time>,
    /// The pieces of time by which usage is summed.
    #[param(inline)]
    by: Piece,
    /// The owner of the usage; everybody, if it is left out. A key that has an owner shows the usage of that one only.
    owner: Option<String>,
}

/// Seconds since 1970, as a client writes them.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(try_from = "String")]
#[schema(value_type = String)]
struct Time(i64);

/// The pieces of time by which usage is summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Piece {
    /// Each hour.
    Hour,
    /// Each day of UTC.
    #[default]
    Day,
    /// All in one.
    Total,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The hours.
    pub span: Span,
    /// The pieces.
    pub piece: Piece,
    /// The owner of the usage; `None`: everybody.
    pub owner: Option<Name>,
}

// === impl Span ===

impl Span {
    /// Whether an hour is within.
    pub fn holds(self, hour: Hour) -> bool {
        (self.from..self.until).contains(&hour.0)
    }
}

// === impl Query ===

impl Query {
    /// The question of a request. Without `from` it is today, by UTC and `now`. Hours are whole: `from` is taken from the beginning of
    /// its hour, `until` to the end of its own. `owner` is that of the request's key.
    ///
    /// # Errors
    /// They name the parameter.
    pub fn of(asked: Asked, now: u64, owner: Option<Arc<str>>) -> Result<Query, String> {
        let hour = |seconds: i64| u64::try_from(seconds.div_euclid(HOUR)).unwrap_or_default();
        let from = asked.from.map_or(now / DAY * DAY, |Time(seconds)| hour(seconds));
        let until = asked.until.map_or(now + 1, |Time(seconds)| hour(seconds + HOUR - 1));
        if from >= until {
            return Err("'until' is not after 'from', expected a later time".to_owned());
        }
        let owner = match (owner, asked.owner) {
            (Some(own), Some(asked)) if *own != *asked => {
                return Err(format!("'owner' is '{}', but the key is of another owner: leave it out", shown(&asked)));
            }
            (Some(own), _) => Some(Name::from(&*own)),
            (None, asked) => asked.map(|asked| Name::from(&*asked)),
        };
        Ok(Query { span: Span { from, until }, piece: asked.by, owner })
    }

    /// The sums of lines by owner, model, lane and piece, in the order of time.
    pub fn sum(&self, lines: Vec<Line>) -> Vec<Line> {
        let mut sums = BTreeMap::<_, Counts>::new();
        for line in lines.into_iter().filter(|line| self.owner.as_ref().is_none_or(|owner| *owner == line.key.owner)) {
            sums.entry((self.start(line.start), line.key)).or_default().add(&line.counts);
        }
        sums.into_iter().map(|((start, key), counts)| Line { start, key, counts }).collect()
    }

    /// The first hour of the piece that an hour is in.
    fn start(&self, hour: u64) -> u64 {
        match self.piece {
            Piece::Hour => hour,
            Piece::Day => (hour / DAY * DAY).max(self.span.from),
            Piece::Total => self.span.from,
        }
    }

    /// The first hour after the piece that begins with this one.
    pub fn end(&self, start: u64) -> u64 {
        match self.piece {
            Piece::Hour => start + 1,
            Piece::Day => (start / DAY * DAY + DAY).min(self.span.until),
            Piece::Total => self.span.until,
        }
    }
}

/// An hour as text, such as `2026-11-28T20:00:00Z`.
pub fn text(hour: u64) -> String {
    let seconds = i64::try_from(hour).unwrap_or_default().saturating_mul(HOUR);
    DateTime::from_timestamp(seconds, 0).unwrap_or_default().to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}

// === impl Time ===

impl TryFrom<String> for Time {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Time, &'static str> {
        let of_day = |day: NaiveDate| Some(day.and_hms_opt(0, 0, 0)?.and_utc().timestamp());
        let seconds = match (text.parse::<i64>(), text.parse::<NaiveDate>()) {
            (Ok(seconds), _) => Some(seconds),
            (_, Ok(day)) => of_day(day),
            _ => text.parse::<DateTime<Utc>>().ok().map(|time| time.timestamp()),
        };
        // Years of four digits.
        let seconds = seconds.filter(|seconds| (0..253_402_300_800).contains(seconds));
        seconds.map(Time).ok_or("expected a time such as 2026-11-28, 2026-11-28T20:00:00Z or seconds since 1970")
    }
}

#[cfg(test)]
mod tests {
    use trireme_server::http::query;

    use super::super::counts::Key;
    use super::*;

    /// 2026-11-28T20.
    const NOW: u64 = 498_860;

    fn read(parameters: &[(&str, &str)]) -> Result<Query, String> {
        let parameters = parameters.iter().map(|&(name, value)| (name.into(), value.into())).collect();
        Query::of(query::of_pairs(&parameters).map_err(|fault| fault.0)?, NOW, None)
    }

    #[test]
    fn times_are_days_hours_or_seconds() {
        assert_eq!(text(NOW), "2026-11-28T20:00:00Z");
        let span = |parameters: &[(&str, &str)]| {
            let Span { from, until } = read(parameters).unwrap().span;
            (text(from), text(until))
        };
        let is = |from: &str, until: &str| (from.to_owned(), until.to_owned());
        assert_eq!(span(&[]), is("2026-11-28T00:00:00Z", "2026-11-28T21:00:00Z"));
        assert_eq!(
            span(&[("from", "2026-11-01"), ("until", "2026-12-01")]),
            is("2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z")
        );
        let minutes = [("from", "2026-11-28T01:30:00Z"), ("until", "2026-11-28T03:30:00+01:00")];
        assert_eq!(span(&minutes), is("2026-11-28T01:00:00Z", "2026-11-28T03:00:00Z"));
        assert_eq!(span(&[("from", "0"), ("until", "3600")]), is("1970-01-01T00:00:00Z", "1970-01-01T01:00:00Z"));
        for (name, value) in [
            ("from", "yesterday"),
            ("until", "-1"),
            ("until", "2026-11-27"),
            ("by", "week"),
            ("from", "99999999999999"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.starts_with(&format!("'{name}'")), "{error}");
        }
    }

    #[test]
    fn an_owner_asks_for_its_own() {
        let read = |own: Option<&str>, asked: Option<&str>| {
            let asked = Asked { owner: asked.map(str::to_owned), ..Asked::default() };
            Query::of(asked, NOW, own.map(Arc::from)).map(|query| query.owner)
        };
        assert_eq!(read(Some("alice"), None), Ok(Some("alice".into())));
        assert_eq!(read(Some("alice"), Some("alice")), Ok(Some("alice".into())));
        assert!(read(Some("alice"), Some("bob")).unwrap_err().contains("of another owner"));
        assert_eq!(read(None, Some("bob")), Ok(Some("bob".into())));
        assert_eq!(read(None, None), Ok(None));
    }

    #[test]
    fn lines_are_summed_by_day() {
        let line = |start, owner: &str, tokens| Line {
            start,
            key: Key { owner: owner.into(), model: "m".into(), lane: "live".into() },
            counts: Counts { tokens, ..Counts::default() },
        };
        let lines = vec![
            line(NOW, "a", 1),
            line(NOW, "a", 2),
            line(NOW - 1, "a", 4),
            line(NOW - 24, "a", 8),
            line(NOW, "b", 16),
        ];
        let from = [("from", "2026-11-27T10:00:00Z")];
        let sums = |by| {
            let query = read(&[from[0], ("by", by)]).unwrap();
            let sums = query.sum(lines.clone()).into_iter();
            sums.map(|line| (text(line.start), text(query.end(line.start)), line.counts.tokens)).collect::<Vec<_>>()
        };
        let is = |from: &str, until: &str, tokens| (from.to_owned(), until.to_owned(), tokens);
        let today = ("2026-11-28T00:00:00Z", "2026-11-28T21:00:00Z");
        assert_eq!(
            sums("day"),
            [is("2026-11-27T10:00:00Z", today.0, 8), is(today.0, today.1, 7), is(today.0, today.1, 16)]
        );
        assert_eq!(sums("total"), [is("2026-11-27T10:00:00Z", today.1, 15), is("2026-11-27T10:00:00Z", today.1, 16)]);
        assert_eq!(sums("hour").len(), 4);
        let of_b = Query { owner: Some("b".into()), ..read(&from).unwrap() };
        assert_eq!(of_b.sum(lines.clone()).len(), 1);
    }
}
