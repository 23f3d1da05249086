//! The parameters of a query and the fields of a form, as types read them. Types that derive `IntoParams` or `ToSchema`, too, describe
//! them.

use std::borrow::Cow;
use std::collections::{BTreeMap, btree_map};

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::de::value::{Error, MapAccessDeserializer, StrDeserializer};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess, Visitor};
use serde::forward_to_deserialize_any;
use trireme_inference::shown;
use utoipa::IntoParams;
use utoipa::openapi::path::ParameterIn;

use super::describe::Describe;
use super::response;
use super::shapes::Shapes;

/// The parameters of a request's query. The last one of a name counts, one without a value counts as left out, and those that `T` does not
/// know are passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query<T>(pub T);

/// The fault of a parameter: its name, its value, and the values that are expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterFault(pub String);

/// The parameters of a query, behind `?`, as [`Query`] reads them.
///
/// ```
/// use trireme_server::http::query;
///
/// #[derive(Debug, Default, PartialEq, serde::Deserialize)]
/// #[serde(default)]
/// struct Asked {
///     after: Option<String>,
///     seconds: Option<u64>,
/// }
///
/// let asked: Asked = query::read("after=a%20b&seconds=&other=1")?;
/// assert_eq!(asked, Asked { after: Some("a b".to_owned()), seconds: None });
/// let fault = query::read::<Asked>("seconds=soon").expect_err("it is no number");
/// assert_eq!(fault.0, "'seconds' is 'soon', expected a whole number");
/// # Ok::<(), trireme_server::http::query::ParameterFault>(())
/// ```
///
/// # Errors
/// `T` does not take a value.
pub fn read<T: DeserializeOwned>(query: &str) -> Result<T, ParameterFault> {
    let given = form_urlencoded::parse(query.as_bytes()).filter(|(_, value)| !value.is_empty());
    of_pairs(&given.collect())
}

/// Like [`read`], where a list comes as OpenAI's clients send it: `T` reads its items, separated by commas.
///
/// ```
/// use trireme_server::http::query;
///
/// #[derive(Debug, Default, PartialEq, serde::Deserialize)]
/// #[serde(default)]
/// struct Asked {
///     models: String,
/// }
///
/// for sent in ["models[]=a&models[]=b", "models=a&models=b", "models=a,b"] {
///     assert_eq!(query::read_lists::<Asked>(sent)?.models, "a,b");
/// }
/// # Ok::<(), trireme_server::http::query::ParameterFault>(())
/// ```
///
/// # Errors
/// `T` does not take a value.
pub fn read_lists<T: DeserializeOwned>(query: &str) -> Result<T, ParameterFault> {
    let mut given = BTreeMap::<Cow<'_, str>, Cow<'_, str>>::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()).filter(|(_, value)| !value.is_empty()) {
        let name = name.strip_suffix("[]").map(|name| name.to_owned().into()).unwrap_or(name);
        match given.get_mut(&name) {
            Some(before) => *before = format!("{before},{value}").into(),
            None => drop(given.insert(name, value)),
        }
    }
    of_pairs(&given)
}

/// Parameters with their values, by name.
///
/// # Errors
/// `T` does not take a value.
pub fn of_pairs<T: DeserializeOwned>(given: &BTreeMap<Cow<'_, str>, Cow<'_, str>>) -> Result<T, ParameterFault> {
    let parameters = Parameters { left: given.iter(), value: None };
    T::deserialize(MapAccessDeserializer::new(parameters)).map_err(|error| ParameterFault(error.to_string()))
}

/// The parameters that are left to read.
struct Parameters<'a> {
    left: btree_map::Iter<'a, Cow<'a, str>, Cow<'a, str>>,
    /// The one whose name was read last.
    value: Option<(&'a str, &'a str)>,
}

/// The value of a parameter.
struct Value<'a>(&'a str);

// === impl Query ===

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ParameterFault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Query<T>, ParameterFault> {
        read(parts.uri.query().unwrap_or_default()).map(Query)
    }
}

impl<T: IntoParams> Describe for Query<T> {
    fn describe(shapes: &mut Shapes) {
        shapes.parameters.extend(T::into_params(|| Some(ParameterIn::Query)));
    }
}

// === impl ParameterFault ===

impl IntoResponse for ParameterFault {
    fn into_response(self) -> Response {
        response::error(StatusCode::BAD_REQUEST, &self.0)
    }
}

// === impl Parameters ===

impl<'de> MapAccess<'de> for Parameters<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        self.value = self.left.next().map(|(name, value)| (&**name, &**value));
        self.value.map(|(name, _)| seed.deserialize(Value(name).text())).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let (name, value) = self.value.unwrap_or_default();
        seed.deserialize(Value(value)).map_err(|error| {
            // A type's error ends with its expectation; some begin with the value found.
            let words = error.to_string().replace('`', "'");
            let expected = words.rfind("expected ").map_or(&*words, |at| &words[at..]);
            Error::custom(format_args!("'{name}' is '{}', {expected}", shown(value)))
        })
    }
}

// === impl Value ===

impl<'a> Value<'a> {
    fn text(self) -> StrDeserializer<'a, Error> {
        self.0.into_deserializer()
    }
}

impl<'de> Deserializer<'de> for Value<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.text().deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u64(self.0.parse().map_err(|_| Error::custom("expected a whole number"))?)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.text().deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct
        identifier ignored_any
    }
}
