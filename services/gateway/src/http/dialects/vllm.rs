//! vLLM's routes for pooling models: `/score` (and `/v1/score`), `/rerank` (and `/v1/rerank`, `/v2/rerank`), `/classify`,
//! `/pooling`, `/tokenize`, `/detokenize`.
//!
//! A model that is not named is the only one that does it. As in the original, fields that are not known are passed over;
//! `encoding_format: bytes` and number formats other than FP32 are refused. `/score` of a model that embeds is the cosine of
//! the two vectors.

mod answers;
mod pooling;
mod tokens;
mod treatment;

use axum::response::Response;
use bytes::Bytes;
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;

use super::answer;
use super::dialect::{Dialect, DialectCall, DialectRoute};
use super::input::{self, Input, OneOrMany};
use super::openai::nested;
use super::refusal::{Kind, Refusal};
use crate::registry::Task;
use answers::{head, usage};
use treatment::Treatment;

pub(super) static DIALECT: Dialect = Dialect {
    name: "vllm",
    routes: &[
        DialectRoute::post("/score", "Scores pairs of texts", |call| Box::pin(score(call)))
            .takes_both::<Score, Treatment>()
            .gives(answers::score),
        DialectRoute::post("/v1/score", "Scores pairs of texts", |call| Box::pin(score(call)))
            .takes_both::<Score, Treatment>()
            .gives(answers::score),
        DialectRoute::post("/rerank", "Ranks documents by a query", |call| Box::pin(rerank(call)))
            .takes_both::<Rerank, Treatment>()
            .gives(answers::rerank)
            .marked(RERANK_MARKS),
        DialectRoute::post("/v1/rerank", "Ranks documents by a query", |call| Box::pin(rerank(call)))
            .takes_both::<Rerank, Treatment>()
            .gives(answers::rerank)
            .marked(TRUNCATION_MARKS),
        DialectRoute::post("/v2/rerank", "Ranks documents by a query", |call| Box::pin(rerank(call)))
            .takes_both::<Rerank, Treatment>()
            .gives(answers::rerank)
            .marked(TRUNCATION_MARKS),
        DialectRoute::post("/classify", "Classifies texts", |call| Box::pin(classify(call)))
            .takes_both::<Classify, Treatment>()
            .gives(answers::classify)
            .marked(MARKS),
        DialectRoute::post("/pooling", "Runs a model on texts: vectors, token vectors or scores", |call| {
            Box::pin(pooling::pooling(call))
        })
        .takes_both::<pooling::Pooling, Treatment>()
        .gives(answers::pooling),
        DialectRoute::post("/tokenize", "The tokens of a text", |call| Box::pin(tokens::tokenize(call)))
            .takes::<tokens::Tokenize>()
            .gives(answers::tokenize)
            .marked(&["prompt", "return_token_strs"]),
        DialectRoute::post("/detokenize", "The text of tokens", |call| Box::pin(tokens::detokenize(call)))
            .takes::<tokens::Detokenize>()
            .gives(answers::detokenize),
    ],
    refuse,
    refusals,
    model_in_path: false,
};

/// Fields that no other dialect has.
const MARKS: &[&str] =
    &["truncate_prompt_tokens", "truncation_side", "use_activation", "activation", "priority", "request_id"];
const TRUNCATION_MARKS: &[&str] = &["truncate_prompt_tokens", "truncation_side"];
const RERANK_MARKS: &[&str] = &[
    "documents",
    "truncate_prompt_tokens",
    "truncation_side",
    "use_activation",
    "activation",
    "priority",
    "request_id",
];

#[derive(Deserialize, ToSchema)]
#[schema(as = VllmScore)]
struct Score {
    #[serde(alias = "queries", alias = "data_1")]
    #[schema(schema_with = input::one_or_many::<String>)]
    text_1: OneOrMany<String>,
    #[serde(alias = "documents", alias = "items", alias = "data_2")]
    #[schema(schema_with = input::one_or_many::<String>)]
    text_2: OneOrMany<String>,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = VllmRerank)]
struct Rerank {
    query: String,
    documents: Vec<String>,
    #[serde(default)]
    top_n: u64,
    max_tokens_per_doc: Option<u64>,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = VllmClassify)]
struct Classify {
    input: Input,
}

/// The pairs of two lists: one text with each of many, or those of the same number.
fn pairs<'a>(first: &'a [String], second: &'a [String]) -> Result<(Vec<&'a str>, Vec<&'a str>), Refusal> {
    let all = |texts: &'a [String]| texts.iter().map(String::as_str).collect::<Vec<_>>();
    match (first.len(), second.len()) {
        (0, _) => Err(Refusal::empty("text_1")),
        (_, 0) => Err(Refusal::empty("text_2")),
        (1, many) => Ok((vec![&first[0]; many], all(second))),
        (one, two) if one == two => Ok((all(first), all(second))),
        (one, two) => {
            Err(Refusal::field("text_1", format!("holds {one} texts for {two} of 'text_2', expected 1 or {two}")))
        }
    }
}

async fn score(call: DialectCall) -> Result<Response, Refusal> {
    let body: Score = input::read(&call.body)?;
    let treatment: Treatment = input::read(&call.body)?;
    let (first, second) = (body.text_1.into_list(), body.text_2.into_list());
    let (ones, twos) = pairs(&first, &second)?;
    let ask = call.ask(treatment.model.as_deref(), treatment.options()?);
    let embeds = call
        .handlers
        .text_model(ask.model.as_deref())
        .is_ok_and(|model| model.tasks.contains(&Task::Embed) && !model.tasks.contains(&Task::Rerank));
    let scores = match embeds {
        true => call.handlers.cosines(&ones, &twos, &ask).await?,
        false => call.handlers.score(&ones, &twos, &ask).await?,
    };
    Ok(answer::told(&scores.ledger, 512 + 64 * scores.scores.len(), |out| {
        out.object(|out| {
            head(out, "score", treatment.model.as_deref().unwrap_or(&scores.model));
            out.name("data").array(|out| {
                for (index, &score) in scores.scores.iter().enumerate() {
                    out.object(|out| {
                        out.name("index").integer(index);
                        out.name("object").string("score");
                        out.name("score").float(score);
                    });
                }
            });
            usage(out, &scores.ledger);
        });
    }))
}

async fn rerank(call: DialectCall) -> Result<Response, Refusal> {
    let body: Rerank = input::read(&call.body)?;
    let treatment: Treatment = input::read(&call.body)?;
    if body.documents.is_empty() {
        return Err(Refusal::empty("documents"));
    }
    let mut options = treatment.options()?;
    // 0 is how the original says that the model's own limit holds.
    options.max_tokens = options.max_tokens.or(body.max_tokens_per_doc.filter(|&tokens| tokens > 0));
    let ask = call.ask(treatment.model.as_deref(), options);
    let scores = call.handlers.rerank(&body.query, &body.documents, &ask).await?;
    let most = Some(body.top_n).filter(|&most| most > 0).map(|most| usize::try_from(most).unwrap_or(usize::MAX));
    Ok(answer::told(&scores.ledger, 512 + 64 * body.documents.len(), |out| {
        out.object(|out| {
            out.name("id").string(format!("rerank-{}", answer::id()));
            out.name("model").string(treatment.model.as_deref().unwrap_or(&scores.model));
            usage(out, &scores.ledger);
            out.name("results").array(|out| {
                for (index, score) in scores.ranked(most) {
                    out.object(|out| {
                        out.name("index").integer(index);
                        out.name("document").object(|out| out.name("text").string(&body.documents[index]));
                        out.name("relevance_score").float(score);
                    });
                }
            });
        });
    }))
}

async fn classify(call: DialectCall) -> Result<Response, Refusal> {
    let body: Classify = input::read(&call.body)?;
    let treatment: Treatment = input::read(&call.body)?;
    let texts = body.input.texts("input", "send texts")?.0;
    let ask = call.ask(treatment.model.as_deref(), treatment.options()?);
    let classified = call.handlers.classify(&texts, None, &ask).await?;
    Ok(answer::told(&classified.ledger, 512 + 64 * texts.len() * classified.labels.len(), |out| {
        out.object(|out| {
            head(out, "classify", treatment.model.as_deref().unwrap_or(&classified.model));
            out.name("data").array(|out| {
                for (index, row) in classified.rows.iter().enumerate() {
                    out.object(|out| {
                        out.name("index").integer(index);
                        let best = classified.best_first(row);
                        out.name("label").string(best.first().map_or("", |best| best.label));
                        answer::floats(out.name("probs"), row);
                        out.name("num_classes").integer(row.len());
                    });
                }
            });
            usage(out, &classified.ledger);
        });
    }))
}

/// The table of errors.
fn refuse(refusal: &Refusal) -> (u16, Bytes) {
    let (status, kind) = match refusal.kind {
        Kind::Malformed | Kind::Field | Kind::Empty | Kind::Invalid | Kind::Unsupported => (400, "BadRequestError"),
        Kind::Key => (401, "AuthenticationError"),
        Kind::Forbidden => (403, "PermissionDeniedError"),
        Kind::NoModel => (404, "NotFoundError"),
        Kind::TooLarge => (413, "BadRequestError"),
        Kind::Overloaded => (429, "RateLimitError"),
        Kind::Internal => (500, "InternalServerError"),
        Kind::Unavailable => (503, "ServiceUnavailableError"),
    };
    (status, nested(refusal, kind, |out| out.integer(status)))
}

fn refusals() -> Schema {
    answer::nested_schema()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn one_text_goes_with_each_of_many_and_lists_pair_up() {
        let (one, two, three) = (texts(&["a"]), texts(&["b", "c"]), texts(&["d", "e", "f"]));
        assert_eq!(pairs(&one, &two).unwrap(), (vec!["a", "a"], vec!["b", "c"]));
        assert_eq!(pairs(&two, &two).unwrap(), (vec!["b", "c"], vec!["b", "c"]));
        assert!(pairs(&two, &three).unwrap_err().message.contains("holds 2 texts for 3 of 'text_2'"));
        assert_eq!(pairs(&[], &two).unwrap_err().kind, Kind::Empty);
    }

    #[test]
    fn fields_have_the_names_of_all_versions() {
        let read = |text: &str| input::read::<Score>(text.as_bytes());
        for (one, two) in [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")] {
            assert!(read(&format!(r#"{{"{one}": "a", "{two}": ["b"], "priority": 1}}"#)).is_ok(), "{one}");
        }
        let treatment = |text: &str| input::read::<Treatment>(text.as_bytes()).unwrap().options();
        assert!(
            treatment(r#"{"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 0}"#)
                .unwrap_err()
                .message
                .contains("is 0, expected -1 or at least 1")
        );
        assert_eq!(treatment(r#"{"text_1": "a", "use_activation": false}"#).unwrap().raw_scores, Some(true));
    }
}
