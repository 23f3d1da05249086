//! Lists of durable work, as OpenAI has them: the page that a query asks for, and the page in the answer.

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::json;
use trireme_jobs::{Listed, Page};
use trireme_server::http::query::{ParameterFault, Query};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::{IntoParams, PartialSchema, ToSchema};

/// The page of a list that a query asks for, with a [`Limit`].
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub struct PageQuery<L: ToSchema> {
    /// The id of the item that the page comes after: `last_id` of the page before.
    after: Option<String>,
    /// The most items of the page. A larger number is the largest one that is allowed.
    #[param(inline)]
    limit: L,
    /// The order of the items by their time: the latest first (`desc`), or the earliest (`asc`).
    #[param(inline)]
    order: Order,
}

/// The query of a route of jobs, or its fault, which is refused as OpenAI does.
pub type Asked<T> = Result<Query<T>, ParameterFault>;

/// Items of a page: `USUAL` if the client names no number, and at most `MOST`.
#[derive(Debug)]
pub struct Limit<const USUAL: usize, const MOST: usize>(usize);

/// The order of a list by the items' times.
#[derive(Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Order {
    Asc,
    #[default]
    Desc,
}

/// The answer with a page of a list.
#[derive(Serialize, ToSchema)]
pub struct ListPage<'a, T: ToSchema> {
    object: &'static str,
    #[schema(inline)]
    data: Vec<T>,
    first_id: Option<&'a str>,
    last_id: Option<&'a str>,
    has_more: bool,
}

// === impl ListPage ===

impl<'a, T: ToSchema> ListPage<'a, T> {
    /// The page of these items, each as `show` shows it.
    pub fn of<I>(page: &'a Listed<I>, show: impl Fn(&'a str, &'a I) -> T) -> ListPage<'a, T> {
        ListPage {
            object: "list",
            data: page.items.iter().map(|(id, item)| show(id, item)).collect(),
            first_id: page.items.first().map(|(id, _)| &**id),
            last_id: page.items.last().map(|(id, _)| &**id),
            has_more: page.has_more,
        }
    }
}

// === impl PageQuery ===

impl<const USUAL: usize, const MOST: usize> PageQuery<Limit<USUAL, MOST>> {
    /// The page, of the items with this purpose if one is given.
    pub fn page(self, purpose: Option<String>) -> Page {
        Page { after: self.after, limit: self.limit.0, is_ascending: self.order == Order::Asc, purpose }
    }
}

// === impl Limit ===

impl<const USUAL: usize, const MOST: usize> Default for Limit<USUAL, MOST> {
    fn default() -> Self {
        Limit(USUAL)
    }
}

impl<'de, const USUAL: usize, const MOST: usize> Deserialize<'de> for Limit<USUAL, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let limit = String::deserialize(deserializer)?.parse();
        let limit: usize = limit.map_err(|_| de::Error::custom(format_args!("expected a number up to {MOST}")))?;
        Ok(Limit(limit.clamp(1, MOST)))
    }
}

impl<const USUAL: usize, const MOST: usize> PartialSchema for Limit<USUAL, MOST> {
    fn schema() -> RefOr<Schema> {
        let limit = ObjectBuilder::new().schema_type(SchemaType::Type(Type::Integer));
        RefOr::T(Schema::Object(limit.minimum(Some(1)).maximum(Some(MOST)).default(Some(json!(USUAL))).build()))
    }
}

impl<const USUAL: usize, const MOST: usize> ToSchema for Limit<USUAL, MOST> {}

#[cfg(test)]
mod tests {
    use trireme_server::http::query;

    use super::*;

    /// The id before a page, its limit, and whether the earliest entries come first.
    fn page(query: &str) -> Result<(Option<String>, usize, bool), String> {
        let asked: PageQuery<Limit<20, 100>> = query::read(query).map_err(|fault| fault.0)?;
        let page = asked.page(None);
        Ok((page.after, page.limit, page.is_ascending))
    }

    #[test]
    fn a_page_is_asked_for_as_openai_has_it() {
        for query in ["", "limit=&order=&after=", "order=desc", "page=3", "limit=9&limit=20"] {
            assert_eq!(page(query), Ok((None, 20, false)), "{query}");
        }
        let all = (Some("batch_1".to_owned()), 100, true);
        assert_eq!(page("after=batch_1&limit=100000&order=asc"), Ok(all));
        assert_eq!(page("limit=0"), Ok((None, 1, false)));
        assert_eq!(page("limit=-1").unwrap_err(), "'limit' is '-1', expected a number up to 100");
        assert_eq!(page("order=up").unwrap_err(), "'order' is 'up', expected 'asc' or 'desc'");
    }
}
