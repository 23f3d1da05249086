//! [`TokenizerBackend`] and its instances.

use std::sync::Arc;
use std::time::Instant;

use trireme_engine::{
    Backend, ExecuteRequest, ExecuteResponse, ExecuteTiming, Instance, LoadError, LoadedModel, ModelInstance,
    ModelSource, OneAtATime, in_background,
};
use trireme_inference::{DataType, InferError, Shape, Tensor, TextFacts};
use trireme_text::{Encoded, RequestOptions, TextError, TextTokenizer, TokenizeOptions, texts_of};

use crate::schema::{Declared, Output, Schema};

/// The value of `forced_bos_token_id` where no token has to begin the output: the model's own configuration decides.
const NO_TOKEN: i64 = -1;

/// Loads models with `backend: "tokenizer"`.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenizerBackend;

/// A tokenizer and its schema; instances share both.
struct TokenizerModel {
    name: String,
    tokenizer: TextTokenizer,
    schema: Schema,
    /// Whether requests have a batch dimension.
    batches: bool,
}

struct TokenizerInstance(Arc<TokenizerModel>);

// === impl TokenizerBackend ===

impl Backend for TokenizerBackend {
    fn name(&self) -> &'static str {
        "tokenizer"
    }

    fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError> {
        let model = source.config.name.as_str();
        let mut config = source.config.clone();
        if source.auto_complete {
            let found = Schema::default_for(&config);
            config.complete(found).map_err(|error| LoadError::Config(error.to_string()))?;
        }
        let schema = Schema::of(&config)?;
        let instances = source.cpu_instances()?;
        let options = TokenizeOptions::from_parameters(&config.parameters).map_err(|error| load_error(model, error))?;
        let tokenizer = TextTokenizer::load(source.version_path, options).map_err(|error| load_error(model, error))?;
        if !tokenizer.is_limited() {
            tracing::warn!(
                model,
                "neither parameter max_length nor model_max_length of tokenizer_config.json limits the length of texts: a text that is \
                 longer than the model can take fails there; set parameter max_length"
            );
        }
        for Declared { output, name, .. } in schema.outputs.iter().filter(|own| own.name != own.output.name()) {
            tracing::info!(
                model,
                output = name,
                taken_for = output.name(),
                "an output of another name, taken by its place or older name"
            );
        }
        tokenizer.check(schema.extras(|_| true)).map_err(|error| load_error(model, error))?;
        match (tokenizer.check_messages(false), tokenizer.check_messages(true)) {
            (Err(_), Err(error)) if schema.pairs.is_some() => return Err(load_error(model, error)),
            (Err(error), _) if schema.pairs.is_none() => return Err(load_error(model, error)),
            (_, Err(error)) if schema.pairs.is_some() => tracing::warn!(model, %error, "pairs are refused"),
            _ => {}
        }

        let batches = config.max_batch_size > 0;
        let shared = Arc::new(TokenizerModel { name: config.name.clone(), tokenizer, schema, batches });
        let instance = || Instance::Batch(Box::new(TokenizerInstance(Arc::clone(&shared))));
        let guest = || Box::new(TokenizerInstance(Arc::clone(&shared))) as Box<dyn ModelInstance>;
        let background = || {
            let shared = Arc::clone(&shared);
            in_background(move || Ok(TokenizerInstance(shared)))
        };
        Ok(LoadedModel {
            config: Arc::new(config),
            instances: std::iter::repeat_with(instance).take(instances).collect(),
            background: std::iter::repeat_with(background).take(instances).collect(),
            guests: std::iter::repeat_with(guest).take(instances).collect(),
            policy: Box::new(OneAtATime),
            canary: None,
        })
    }
}

fn load_error(model: &str, error: TextError) -> LoadError {
    match error {
        TextError::File { path, source } => LoadError::File { model: model.to_owned(), path, source },
        other => LoadError::Config(format!("model '{model}': {other}")),
    }
}

// === impl TokenizerInstance ===

impl ModelInstance for TokenizerInstance {
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
        requests.iter().map(|request| self.0.execute(request)).collect()
    }
}

// === impl TokenizerModel ===

impl TokenizerModel {
    fn execute(&self, request: &ExecuteRequest) -> Result<ExecuteResponse, InferError> {
        let started = Instant::now();
        let input = |name: &str| request.inputs.iter().find(|tensor| tensor.name() == name);
        let missing =
            |name: &str| InferError::invalid_arg(format!("input '{name}' is missing, expected a tensor of texts"));
        let options = RequestOptions::from_parameters(&request.parameters)?;
        let texts = &self.schema.texts;
        let texts = self.texts(input(texts).ok_or_else(|| missing(texts))?)?;
        let pairs = match &self.schema.pairs {
            None => None,
            Some(pairs) => match input(&pairs.name) {
                Some(tensor) => Some(self.texts(tensor)?),
                None if pairs.optional => None,
                None => return Err(missing(&pairs.name)),
            },
        };

        let read = Instant::now();
        let extras = self.schema.extras(|name| request.outputs.iter().any(|output| output == name));
        let encoded = self.tokenizer.encode_with(&texts, pairs.as_deref(), &options, extras);
        let mut encoded = encoded.map_err(|error| match error {
            TextError::TooManyTokens { .. } => InferError::invalid_arg(format!("model '{}': {error}", self.name)),
            other => other.into(),
        })?;

        let encoded_at = Instant::now();
        let wanted = self.schema.outputs.iter().filter(|own| request.outputs.iter().any(|output| *output == own.name));
        let outputs = wanted.map(|declared| tensor(&mut encoded, declared, self.batches)).collect::<Result<_, _>>()?;
        let timing = ExecuteTiming {
            compute_input: read - started,
            compute_infer: encoded_at - read,
            compute_output: encoded_at.elapsed(),
            batch_size: if self.batches { encoded.rows as u32 } else { 1 },
        };
        let texts = TextFacts { tokens: encoded.tokens, truncated: encoded.truncated, windows: encoded.windowed };
        let each_text = TextFacts::told(encoded.each_text);
        Ok(ExecuteResponse { outputs, timing, texts: Some(texts), each_text, ..ExecuteResponse::default() })
    }

    /// The texts of an input, one for each row.
    fn texts<'a>(&self, tensor: &'a Tensor) -> Result<Vec<&'a str>, InferError> {
        let texts = texts_of(tensor)?;
        if tensor.shape().first() != Some(&(texts.len() as i64)) {
            return Err(InferError::invalid_arg(format!(
                "tensor '{}' has shape {}, expected one text for each row: {}",
                tensor.name(),
                tensor.shape(),
                if self.batches { "[n,1]" } else { "[n]" }
            )));
        }
        Ok(texts)
    }
}

/// An output of `encoded` as a tensor `[rows, length]`, offsets as `[rows, length, 2]`, windows as `[rows, 6]`, texts one a row; its memory is taken over where
/// the datatype allows.
fn tensor(encoded: &mut Encoded, declared: &Declared, batches: bool) -> Result<Tensor, InferError> {
    let Declared { output, name, datatype } = declared;
    let output = *output;
    let (rows, length) = (encoded.rows as i64, encoded.length as i64);
    let texts = match output {
        Output::Tokens => Some(&encoded.token_lists),
        Output::DecodedText => Some(&encoded.decoded),
        _ => None,
    };
    if let Some(texts) = texts {
        let shape = if batches { Shape::from([rows, 1]) } else { Shape::from([rows]) };
        return Ok(Tensor::from_bytes_elements(name, shape, texts)?);
    }
    let spans = &mut encoded.spans;
    let (words, all) = (spans.words as i64, (spans.words * spans.widths) as i64);
    if output == Output::SpanMask {
        let mask: Vec<u8> = spans.span_mask.iter().map(|&is_whole| u8::from(is_whole)).collect();
        return Ok(Tensor::new(name, DataType::Bool, Shape::from([rows, all]), mask.into())?);
    }
    let values = match output {
        Output::InputIds => std::mem::take(&mut encoded.input_ids),
        Output::AttentionMask => std::mem::take(&mut encoded.attention_mask),
        Output::TokenTypeIds => std::mem::take(&mut encoded.token_type_ids),
        Output::PositionIds => std::mem::take(&mut encoded.position_ids),
        Output::Offsets => std::mem::take(&mut encoded.offsets),
        Output::SpecialTokensMask => std::mem::take(&mut encoded.special_tokens_mask),
        Output::Windows => std::mem::take(&mut encoded.windows),
        Output::WordsMask => std::mem::take(&mut spans.words_mask),
        Output::TextLengths => std::mem::take(&mut spans.text_lengths),
        Output::SpanIdx => std::mem::take(&mut spans.span_idx),
        Output::WordOffsets => std::mem::take(&mut spans.word_offsets),
        Output::PoolingMask => std::mem::take(&mut encoded.pooling_mask),
        Output::ScoringMask => std::mem::take(&mut encoded.scoring_mask),
        Output::SpanMask | Output::Tokens | Output::DecodedText => Vec::new(),
        Output::ForcedBosTokenId => vec![encoded.forced_bos_token_id.unwrap_or(NO_TOKEN); encoded.rows],
    };
    let shape = match output {
        Output::ForcedBosTokenId => Shape::from([rows, 1]),
        Output::Offsets => Shape::from([rows, length, 2]),
        Output::Windows => Shape::from([rows, 6]),
        Output::TextLengths => Shape::from([rows, 1]),
        Output::SpanIdx => Shape::from([rows, all, 2]),
        Output::WordOffsets => Shape::from([rows, words, 2]),
        _ => Shape::from([rows, length]),
    };
    let tensor = match datatype {
        DataType::Int32 => Tensor::from_values(name, shape, values.into_iter().map(|v| v as i32).collect()),
        _ => Tensor::from_values(name, shape, values),
    };
    Ok(tensor?)
}
