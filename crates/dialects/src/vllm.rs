//! vLLM's routes for pooling models: `/v1/embeddings`, `/v2/embed`, `/score` (and `/v1/score`), `/rerank` (and `/v1/rerank`,
//! `/v2/rerank`), `/classify`, `/pooling`, `/tokenize`, `/detokenize`, `/invocations`; `/v1/models`, `/health`, `/ping`, `/load`, `/version`.
//!
//! A request that names no model goes to the only model for its task. As in the original, fields that are not known are passed over. The
//! model's task decides how pairs are scored: by a reranker, by the cosines of the vectors of texts, or by the sum of the largest products of
//! the vectors of tokens (MaxSim).

mod about;
mod answers;
mod encoding;
mod late_chunking;
mod tokens;
mod treatment;
mod vectors;

use axum::response::Response;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use trireme_operations::{Task, TextOptions};
use trireme_server::http::schema;
use utoipa::ToSchema;

use super::answer::{self, NestedError, Text};
use super::dialect::{Dialect, DialectCall, DialectRoute};
use super::fields::{self, Field, Forms, Members, idle, read};
use super::input::{self, Document, Input, OneOrMany};
use super::refusal::{Kind, Refusal};
use super::{cohere, openai};
use answers::{ClassifiedText, List, RankedDocument, Ranking, ScoredPair, Usage};
use encoding::{Embedding, Pooling};
use treatment::Treatment;
pub(super) use treatment::{Conversations, conversations};
use vectors::{PoolingTask, Vectors};

pub(super) static DIALECT: Dialect = Dialect {
    name: "vllm",
    routes: &[
        DialectRoute::post("/score", "Scores pairs of texts", |call| Box::pin(score(call)))
            .takes_both::<Score, Treatment>(&[SCORE, PAIRS, treatment::FIELDS])
            .gives(schema::answer::<List<'_, ScoredPair>>),
        DialectRoute::post("/v1/score", "Scores pairs of texts", |call| Box::pin(score(call)))
            .takes_both::<Score, Treatment>(&[SCORE, PAIRS, treatment::FIELDS])
            .gives(schema::answer::<List<'_, ScoredPair>>),
        DialectRoute::post("/rerank", "Ranks documents by a query", |call| Box::pin(rerank(call)))
            .takes_both::<Rerank, Treatment>(&[RERANK, PAIRS, treatment::FIELDS])
            .gives(schema::answer::<Ranking<'_>>),
        DialectRoute::post("/v1/rerank", "Ranks documents by a query", |call| Box::pin(rerank(call)))
            .takes_both::<Rerank, Treatment>(&[RERANK, PAIRS, treatment::FIELDS])
            .gives(schema::answer::<Ranking<'_>>),
        DialectRoute::post("/v2/rerank", "Ranks documents by a query", |call| Box::pin(rerank(call)))
            .takes_both::<Rerank, Treatment>(&[RERANK, PAIRS, treatment::FIELDS])
            .gives(schema::answer::<Ranking<'_>>),
        DialectRoute::post("/classify", "Classifies texts", |call| Box::pin(classify(call)))
            .takes_both::<Classify, Treatment>(&[
                treatment::INPUT,
                treatment::TALK,
                treatment::SCORES,
                treatment::FIELDS,
            ])
            .gives(schema::answer::<List<'_, ClassifiedText<'_>>>),
        DialectRoute::post("/v1/embeddings", "Embeds texts", |call| Box::pin(vectors::embeddings(call)))
            .takes_both::<Vectors, Treatment>(&[
                vectors::FIELDS,
                vectors::LATE,
                encoding::FIELDS,
                treatment::INPUT,
                treatment::TALK,
                treatment::FIELDS,
            ])
            .gives(schema::answer::<List<'_, Embedding<'_>>>)
            .or_bytes(),
        DialectRoute::post("/v2/embed", "Embeds texts, as Cohere's clients ask", |call| {
            Box::pin(cohere::embed(call, cohere::Version::Vllm))
        })
        .takes::<cohere::Embed>(&[cohere::EMBED])
        .gives(cohere::embed_answer)
        .behind_name(),
        DialectRoute::post("/pooling", "Runs a model on texts: vectors, token vectors or scores", |call| {
            Box::pin(vectors::pooling(call))
        })
        .takes_three::<PoolingTask, Vectors, Treatment>(&[
            vectors::TASK,
            vectors::FIELDS,
            encoding::FIELDS,
            treatment::INPUT,
            treatment::TALK,
            treatment::SCORES,
            treatment::FIELDS,
        ])
        .gives(schema::answer::<List<'_, Pooling<'_>>>)
        .or_bytes(),
        DialectRoute::post("/tokenize", "The tokens of a text", |call| Box::pin(tokens::tokenize(call)))
            .takes::<tokens::Tokenize>(&[tokens::TOKENIZE, treatment::TALK])
            .gives(schema::answer::<tokens::Tokenized<'_>>),
        DialectRoute::post("/detokenize", "The text of tokens", |call| Box::pin(tokens::detokenize(call)))
            .takes::<tokens::Detokenize>(&[tokens::DETOKENIZE])
            .gives(schema::answer::<tokens::Detokenized<'_>>),
        DialectRoute::post("/invocations", "Does what the body asks for, or what the model does", |call| {
            Box::pin(invocations(call))
        })
        .takes::<Invocation>(&[INVOCATION])
        .gives(schema::anything)
        .or_bytes()
        .into_another()
        .behind_name(),
        DialectRoute::get("/v1/models", "The models that do something with texts", |call| {
            Box::pin(about::models(call))
        })
        .gives(schema::answer::<about::ModelList<'_>>)
        .behind_name(),
        DialectRoute::get("/v1/models/{*rest}", "A model", |call| Box::pin(openai::model(call)))
            .gives(schema::answer::<openai::Model<'_>>)
            .behind_name(),
        DialectRoute::get("/health", "Whether all models are ready", |call| Box::pin(about::health(call)))
            .behind_name()
            .checks_health(),
        DialectRoute::get("/ping", "Whether all models are ready", |call| Box::pin(about::health(call)))
            .behind_name()
            .checks_health(),
        DialectRoute::post("/ping", "Whether all models are ready", |call| Box::pin(about::health(call)))
            .behind_name()
            .checks_health(),
        DialectRoute::get("/load", "How many requests wait for their answers", |call| Box::pin(about::load(call)))
            .gives(schema::answer::<about::ServerLoad>)
            .behind_name(),
        DialectRoute::get("/version", "The version", |call| Box::pin(about::version(call)))
            .gives(schema::answer::<about::Version>)
            .behind_name(),
    ],
    refuse,
    refusals: schema::answer::<Error<'_>>,
    is_strict: false,
    cut: "set 'truncate_prompt_tokens' to -1. Please reduce the length of the input prompt",
    model_in_path: false,
};

const SCORED: Forms = &[r#""a""#, r#"["a"]"#, r#"{"text": "a"}"#, r#"[{"content": [{"type": "text", "text": "a"}]}]"#];

/// The two texts of pairs, by the names of all versions.
const SCORE: &[Field] = &[
    read("text_1", SCORED),
    read("text_2", SCORED),
    read("queries", SCORED),
    read("documents", SCORED),
    read("items", SCORED),
    read("data_1", SCORED),
    read("data_2", SCORED),
];

const RERANK: &[Field] = &[
    read("query", &[r#""a""#, r#"{"text": "a"}"#]),
    read("documents", SCORED),
    read("top_n", fields::NUMBER),
    idle("return_documents", fields::FLAG, "each result has its document"),
];

/// Fields of bodies with pairs.
const PAIRS: &[Field] = &[
    read("max_tokens_per_query", fields::NUMBER),
    read("max_tokens_per_doc", fields::NUMBER),
    read("use_activation", fields::FLAG),
    read("activation", fields::FLAG),
    read("softmax", fields::FLAG),
    idle("add_special_tokens", fields::FLAG, "a pair has special tokens"),
];

#[derive(Deserialize, ToSchema)]
#[schema(as = VllmScore)]
struct Score {
    #[serde(alias = "queries", alias = "data_1")]
    #[schema(schema_with = input::one_or_many::<Document>)]
    text_1: OneOrMany<Document>,
    #[serde(alias = "documents", alias = "items", alias = "data_2")]
    #[schema(schema_with = input::one_or_many::<Document>)]
    text_2: OneOrMany<Document>,
    max_tokens_per_query: Option<i64>,
    max_tokens_per_doc: Option<i64>,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = VllmRerank)]
struct Rerank {
    query: Document,
    #[schema(schema_with = input::one_or_many::<Document>)]
    documents: OneOrMany<Document>,
    #[serde(default)]
    top_n: u64,
    max_tokens_per_query: Option<i64>,
    max_tokens_per_doc: Option<i64>,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = VllmClassify)]
struct Classify {
    input: Option<Input>,
    #[schema(value_type = Option<Vec<Object>>)]
    messages: Option<Conversations>,
}

/// The fields of an object that are its text: itself, or its parts.
const TEXT: [&str; 2] = ["text", "content"];

/// A body of `/invocations`; the route that it means checks its fields.
#[derive(Deserialize, ToSchema)]
#[schema(as = VllmInvocation)]
struct Invocation {
    model: Option<String>,
}

const INVOCATION: &[Field] = &[read("model", fields::TEXT)];

/// As SageMaker asks: a body that only one route takes goes to that route, others to the route of the model's first task.
async fn invocations(call: DialectCall) -> Result<Response, Refusal> {
    let Invocation { model } = call.read()?;
    let has = |tables: &[&[Field]]| Members::of(&call.body).known(tables).0 > 0;
    let path = if has(&[&[read("query", &[r#""a""#, r#"{"text": "a"}"#])]]) {
        "/rerank"
    } else if has(&[SCORE]) {
        "/score"
    } else {
        match call.operations.text_model(model.as_deref())?.tasks.first() {
            Some(Task::Embed) => "/v1/embeddings",
            Some(Task::Classify) => "/classify",
            _ => "/pooling",
        }
    };
    call.run_as(&DIALECT, path).await
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

/// The options of pairs, with the longest query and document; in the original a limit of 0 means no limit.
fn limited(options: TextOptions, query: Option<i64>, document: Option<i64>) -> Result<TextOptions, Refusal> {
    let limit = |field: &str, tokens: Option<i64>| match tokens.map(u64::try_from) {
        None | Some(Ok(0)) => Ok(None),
        Some(Ok(tokens)) => Ok(Some(tokens)),
        Some(Err(_)) => {
            let message = format!("{field} must be a non-negative integer");
            Err(Refusal { field: Some(field.to_owned()), ..Refusal::new(Kind::Field, message) })
        }
    };
    Ok(TextOptions {
        max_text_tokens: limit("max_tokens_per_query", query)?,
        max_pair_tokens: limit("max_tokens_per_doc", document)?,
        // As in the original.
        add_special_tokens: None,
        ..options
    })
}

/// As in the original, the routes of scores answer 404 for a model that gives no scores.
fn scores(call: &DialectCall, model: Option<&str>) -> Result<(), Refusal> {
    const TASKS: [Task; 3] = [Task::Rerank, Task::Embed, Task::MultiVector];
    match call.operations.text_model(model) {
        Ok(model) if !TASKS.iter().any(|task| model.tasks.contains(task)) => {
            Err(Refusal::new(Kind::NoRoute, format!("model '{}' scores no pairs of texts", model.name)))
        }
        _ => Ok(()),
    }
}

async fn score(call: DialectCall) -> Result<Response, Refusal> {
    let body: Score = call.read()?;
    let treatment: Treatment = call.read()?;
    let first = Document::texts(body.text_1.into_list(), "text_1", &TEXT)?;
    let second = Document::texts(body.text_2.into_list(), "text_2", &TEXT)?;
    let (ones, twos) = pairs(&first, &second)?;
    scores(&call, treatment.model.as_deref())?;
    let options = limited(treatment.options(&call)?, body.max_tokens_per_query, body.max_tokens_per_doc)?;
    let scores = call.operations.compare(&ones, &twos, &call.ask(treatment.model.as_deref(), options)).await?;
    let model = treatment.model.as_deref().unwrap_or(&scores.model);
    let pairs = scores.scores.iter().enumerate().map(|(index, &score)| ScoredPair { index, object: "score", score });
    Ok(answer::told(&scores.ledger, &List::of(treatment.id("score"), model, pairs, &scores.ledger)))
}

async fn rerank(call: DialectCall) -> Result<Response, Refusal> {
    let body: Rerank = call.read()?;
    let treatment: Treatment = call.read()?;
    let query = body.query.text(&TEXT).ok_or_else(|| Refusal::field("query", "holds no text in 'text'"))?;
    let documents = Document::texts(body.documents.into_list(), "documents", &TEXT)?;
    if documents.is_empty() {
        return Err(Refusal::empty("documents"));
    }
    scores(&call, treatment.model.as_deref())?;
    let options = limited(treatment.options(&call)?, body.max_tokens_per_query, body.max_tokens_per_doc)?;
    let ask = call.ask(treatment.model.as_deref(), options);
    let second: Vec<&str> = documents.iter().map(String::as_str).collect();
    let scores = call.operations.compare(&vec![query.as_str(); second.len()], &second, &ask).await?;
    let most = Some(body.top_n).filter(|&most| most > 0).map(|most| usize::try_from(most).unwrap_or(usize::MAX));
    let results = scores.ranked(most).into_iter().map(|(index, relevance_score)| {
        let document = Text { text: &documents[index] };
        RankedDocument { index, document, relevance_score }
    });
    let ranking = Ranking {
        id: treatment.id("rerank"),
        model: treatment.model.as_deref().unwrap_or(&scores.model),
        usage: Usage::of(&scores.ledger),
        results: results.collect(),
    };
    Ok(answer::told(&scores.ledger, &ranking))
}

async fn classify(call: DialectCall) -> Result<Response, Refusal> {
    let body: Classify = call.read()?;
    let treatment: Treatment = call.read()?;
    let (texts, options) = treatment.rows(&call, body.input, body.messages)?;
    let ask = call.ask(treatment.model.as_deref(), options);
    let classified = call.operations.classify(&texts, None, &ask).await?;
    let model = treatment.model.as_deref().unwrap_or(&classified.model);
    let rows = classified.rows.iter().enumerate().map(|(index, probs)| {
        let label = classified.best_first(probs).first().map_or("", |best| best.label);
        ClassifiedText { index, label, probs, num_classes: probs.len() }
    });
    Ok(answer::told(&classified.ledger, &List::of(treatment.id("classify"), model, rows, &classified.ledger)))
}

/// An error. About a path or a method that is not there it has FastAPI's words, too.
#[derive(Serialize, ToSchema)]
struct Error<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'static str>,
    #[schema(inline)]
    error: NestedError<'a, u16>,
}

/// The table of errors.
fn refuse(refusal: &Refusal) -> (u16, Bytes) {
    let kind = match refusal.kind {
        Kind::Key => "AuthenticationError",
        Kind::Forbidden => "PermissionDeniedError",
        Kind::NoModel | Kind::NoRoute => "NotFoundError",
        Kind::NoMethod => "MethodNotAllowed",
        Kind::OtherSpace => "PreconditionFailedError",
        Kind::Overloaded | Kind::OwnerLimit => "RateLimitError",
        Kind::Internal => "InternalServerError",
        Kind::Unavailable => "ServiceUnavailableError",
        _ => "BadRequestError",
    };
    let detail = match refusal.kind {
        Kind::NoRoute => Some("Not Found"),
        Kind::NoMethod => Some("Method Not Allowed"),
        _ => None,
    };
    // The name by which the original's validation calls a word that it does not know.
    let message = match refusal.kind {
        Kind::Field if refusal.message.contains("unknown variant") => {
            format!("{} [type=literal_error]", refusal.message)
        }
        _ => refusal.message.clone(),
    };
    let of_model = (refusal.kind == Kind::NoModel).then(|| "model".to_owned());
    let refusal = Refusal { message, field: refusal.field.clone().or(of_model), ..refusal.clone() };
    let status = refusal.kind.status();
    (status, answer::body(&Error { detail, error: NestedError::of(&refusal, kind, status) }))
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
    }
}
