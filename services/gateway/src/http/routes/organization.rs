//! `/v1/organization/usage/embeddings`: what owners of keys have used, as OpenAI's clients of administrators ask for it.
//!
//! Owners stand for OpenAI's projects and for its keys. Usage is counted by model, not by what the model was asked for, so the usage of all
//! models is here, and OpenAI's routes for other kinds of usage are not there.

use std::collections::BTreeMap;

use axum::extract::{FromRequestParts, State};
use axum::http::header::CACHE_CONTROL;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use trireme_inference::Name;
use trireme_jobs::JobError;
use trireme_server::Traffic;
use trireme_server::access::Category;
use trireme_server::http::describe::Describe;
use trireme_server::http::query;
use trireme_server::http::response;
use trireme_server::http::route::Resource;
use trireme_server::http::schema::{flag, integer, list, nullable, object, text};
use trireme_server::http::shapes::Shapes;
use utoipa::openapi::schema::Schema;
use utoipa::{IntoParams, ToSchema};

use crate::http::jobs::refused::Refused;
use crate::http::state::{HttpState, Route};
use crate::usage::{Counts, Hour, Key, Line, Piece, Query, Span};

/// The defaults of this route.
const RESOURCE: Resource =
    Resource { group: "control", category: Some(Category::Statistics), traffic: Traffic::Server };

/// Seconds of an hour.
const HOUR: u64 = 3600;

/// Hours of a day.
const DAY: u64 = 24;

/// The fields that usage is grouped by.
const GROUPS: [&str; 4] = ["project_id", "api_key_id", "user_id", "model"];

/// The query, as OpenAI's clients send it. A list comes as `models[]=a&models[]=b`, or separated by commas.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
struct Asked {
    /// The time from whose hour on usage is shown, in seconds since 1970. Today, by UTC, if it is left out.
    start_time: Option<u64>,
    /// The time up to which usage is shown, to the end of its hour, in seconds since 1970. Now, if it is left out.
    end_time: Option<u64>,
    /// The length of a bucket.
    #[param(inline)]
    bucket_width: Width,
    /// Any of `project_id`, `api_key_id`, `user_id` and `model`. The first two are the owner of the key; users are not counted.
    #[param(inline)]
    group_by: Names,
    /// The models whose usage is shown; all, if it is left out.
    #[param(inline)]
    models: Names,
    /// The owners whose usage is shown; all, if it is left out.
    #[param(inline)]
    project_ids: Names,
    /// The same as `project_ids`.
    #[param(inline)]
    api_key_ids: Names,
    /// The most buckets: of days 7, up to 31, of hours 24, up to 168.
    limit: Option<u64>,
    /// `next_page` of the page before.
    page: Option<u64>,
}

/// The length of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
enum Width {
    #[serde(rename = "1h")]
    Hour,
    #[default]
    #[serde(rename = "1d")]
    Day,
}

/// Names, separated by commas.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(from = "String")]
struct Names(Vec<String>);

/// A page: the question for its buckets, and where the next page begins.
#[derive(Debug, PartialEq)]
struct Page {
    query: Query,
    next: Option<u64>,
}

/// The routes.
pub fn routes() -> Vec<Route> {
    let route =
        RESOURCE.get("/v1/organization/usage/embeddings", "What owners of keys have used, as OpenAI shows it", usage);
    vec![route.gives(schema).refuses(Refused::unanswered, Refused::schema)]
}

/// A key shows its owner's usage; that of an administrator everybody's.
async fn usage(State(http): State<HttpState>, headers: HeaderMap, asked: Asked) -> Result<Response, Refused> {
    let usage = &http.handlers.usage;
    let owner = http.handlers.access.owner(|name| headers.get(name).map(HeaderValue::as_bytes));
    let owner = owner.map(|owner| Name::from(&*owner));
    let page = asked.page(Hour::of(usage.now()).0, owner).map_err(|why| Refused::invalid(&why))?;
    let lines = usage.read(&page.query).await.map_err(JobError::from)?;
    let mut response = response::json(asked.shown(&page, &lines).to_string().into());
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

fn schema() -> Schema {
    let result = object([
        ("object", text()),
        ("input_tokens", integer()),
        ("num_model_requests", integer()),
        ("project_id", nullable(text())),
        ("api_key_id", nullable(text())),
        ("user_id", nullable(text())),
        ("model", nullable(text())),
    ]);
    let bucket =
        object([("object", text()), ("start_time", integer()), ("end_time", integer()), ("results", list(result))]);
    object([("object", text()), ("data", list(bucket)), ("has_more", flag()), ("next_page", nullable(text()))])
}

// === impl Asked ===

impl<S: Sync> FromRequestParts<S> for Asked {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Asked, Refused> {
        Ok(query::read_lists(parts.uri.query().unwrap_or_default())?)
    }
}

impl Describe for Asked {
    fn describe(shapes: &mut Shapes) {
        query::Query::<Asked>::describe(shapes);
    }
}

impl Asked {
    /// The page at `now`, an hour, of the usage of `owner`, or of everybody.
    ///
    /// # Errors
    /// They name the parameter.
    fn page(&self, now: u64, owner: Option<Name>) -> Result<Page, String> {
        let start = self.start_time.unwrap_or(now / DAY * DAY * HOUR);
        if let Some(unknown) = self.group_by.0.iter().find(|name| !GROUPS.contains(&name.as_str())) {
            return Err(format!("'group_by' has '{unknown}', expected some of {}", GROUPS.join(", ")));
        }
        let (piece, usual, most) = match self.bucket_width {
            Width::Hour => (Piece::Hour, 24, 168),
            Width::Day => (Piece::Day, 7, 31),
        };
        let from = self.page.unwrap_or(start).max(start) / HOUR;
        let until = self.end_time.map_or(now + 1, |end| end.div_ceil(HOUR));
        if from >= until {
            return Err("'end_time' is not after 'start_time', expected a later time".to_owned());
        }
        let mut query = Query { span: Span { from, until }, piece, owner };
        let buckets = self.limit.unwrap_or(usual).clamp(1, most);
        let end = (0..buckets).fold(from, |start, _| if start < until { query.end(start) } else { start });
        query.span.until = end;
        Ok(Page { query, next: (end < until).then_some(end * HOUR) })
    }

    fn shown(&self, page: &Page, lines: &[Line]) -> Value {
        let mut buckets = Vec::new();
        let mut start = page.query.span.from;
        while start < page.query.span.until {
            let end = page.query.end(start);
            let lines = lines.iter().filter(|line| (start..end).contains(&line.start));
            buckets.push(json!({
                "object": "bucket",
                "start_time": start * HOUR,
                "end_time": end * HOUR,
                "results": self.results(lines),
            }));
            start = end;
        }
        let next = page.next.map(|next| next.to_string());
        json!({"object": "page", "data": buckets, "has_more": next.is_some(), "next_page": next})
    }

    /// The sums of lines, one for each group.
    fn results<'a>(&self, lines: impl Iterator<Item = &'a Line>) -> Vec<Value> {
        let by = |name: &str| self.group_by.0.iter().any(|group| group == name);
        let of_owner = by("project_id") || by("api_key_id");
        let mut sums = BTreeMap::<(Option<&Name>, Option<&Name>), Counts>::new();
        for Line { key: Key { owner, model, .. }, counts, .. } in lines {
            let owners = [&self.project_ids, &self.api_key_ids];
            if self.models.holds(model) && owners.iter().all(|names| names.holds(owner)) {
                let group = (Some(owner).filter(|_| of_owner), Some(model).filter(|_| by("model")));
                sums.entry(group).or_default().add(counts);
            }
        }
        let result = |((owner, model), counts): ((Option<&Name>, Option<&Name>), Counts)| {
            let owner = owner.map(Name::as_str);
            json!({
                "object": "organization.usage.embeddings.result",
                "input_tokens": counts.tokens,
                "num_model_requests": counts.requests,
                "project_id": owner.filter(|_| by("project_id")),
                "api_key_id": owner.filter(|_| by("api_key_id")),
                "user_id": null,
                "model": model.map(Name::as_str),
            })
        };
        sums.into_iter().map(result).collect()
    }
}

// === impl Names ===

impl Names {
    /// Whether the list has this name, or is empty.
    fn holds(&self, name: &Name) -> bool {
        self.0.is_empty() || self.0.iter().any(|known| known == name.as_str())
    }
}

impl From<String> for Names {
    fn from(text: String) -> Names {
        Names(text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-28T00:00:00Z, as an hour and in seconds.
    const TODAY: u64 = 498_840;
    const START: u64 = TODAY * HOUR;

    fn page(query: &str) -> Result<(u64, u64, Option<u64>), String> {
        let asked: Asked = query::read_lists(query).map_err(|fault| fault.0)?;
        let Page { query, next } = asked.page(TODAY + 20, None)?;
        Ok((query.span.from - TODAY, query.span.until - TODAY, next.map(|next| next / HOUR - TODAY)))
    }

    #[test]
    fn pages_have_as_many_buckets_as_openais() {
        let of = |rest: &str| page(&format!("start_time={START}{rest}"));
        assert_eq!((of(""), page("")), (Ok((0, 21, None)), Ok((0, 21, None))));
        assert_eq!(of("&bucket_width=1h&limit=5"), Ok((0, 5, Some(5))));
        assert_eq!(of(&format!("&bucket_width=1h&limit=5&page={}", START + 5 * HOUR)), Ok((5, 10, Some(10))));
        let later = format!("&end_time={}", START + 40 * 24 * HOUR);
        assert_eq!(of(&later), Ok((0, 7 * 24, Some(7 * 24))));
        assert_eq!(of(&format!("{later}&limit=1000")), Ok((0, 31 * 24, Some(31 * 24))));
        assert_eq!(page(&format!("start_time={}{later}&limit=2", START + 90 * 60)), Ok((1, 48, Some(48))));
        for (query, name) in [
            (format!("start_time={START}&bucket_width=1m"), "'bucket_width' is '1m', expected '1h' or '1d'"),
            (format!("start_time={START}&group_by[]=line_item"), "'group_by' has 'line_item'"),
            (format!("start_time={START}&end_time={START}"), "'end_time' is not after"),
            (format!("start_time={START}&page=x"), "'page' is 'x'"),
        ] {
            let why = page(&query).unwrap_err();
            assert!(why.starts_with(name), "{why}");
        }
    }

    #[test]
    fn results_are_grouped_and_chosen() {
        let line = |hour, owner: &str, model: &str, tokens| Line {
            start: TODAY + hour,
            key: Key { owner: owner.into(), model: model.into(), lane: "live".into() },
            counts: Counts { tokens, requests: 1, ..Counts::default() },
        };
        let lines = [line(0, "a", "m", 1), line(0, "b", "m", 2), line(1, "a", "m", 4), line(1, "a", "n", 8)];
        let results = |rest: &str| {
            let asked: Asked = query::read_lists(&format!("start_time={START}&bucket_width=1h&{rest}")).unwrap();
            let shown = asked.shown(&asked.page(TODAY + 1, None).unwrap(), &lines);
            let buckets = shown["data"].as_array().unwrap().clone();
            assert_eq!(buckets.len(), 2);
            let sums = buckets.iter().flat_map(|bucket| bucket["results"].as_array().unwrap()).map(|result| {
                let text = |name: &str| result[name].as_str().unwrap_or("-").to_owned();
                (text("project_id"), text("api_key_id"), text("model"), result["input_tokens"].as_u64().unwrap())
            });
            sums.map(|(project, key, model, tokens)| format!("{project} {key} {model} {tokens}")).collect::<Vec<_>>()
        };
        assert_eq!(results(""), ["- - - 3", "- - - 12"]);
        assert_eq!(results("group_by[]=model&group_by[]=project_id"), ["a - m 1", "b - m 2", "a - m 4", "a - n 8"]);
        assert_eq!(results("group_by=api_key_id"), ["- a - 1", "- b - 2", "- a - 12"]);
        assert_eq!(results("models[]=n"), ["- - - 8"]);
        assert_eq!(results("project_ids[]=a&project_ids[]=c&group_by=model"), ["- - m 1", "- - m 4", "- - n 8"]);
        assert_eq!(results("api_key_ids=a,b&project_ids=b"), ["- - - 2"]);
    }
}
