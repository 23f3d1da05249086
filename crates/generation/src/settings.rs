//! The checked settings of one request for generating text.
//!
//! They come in layers, each of which overrides the one before: transformers' defaults, `generation_config.json` (or
//! `config.json`, if that is missing), `parameters` of config.pbtxt, the request's parameters.
//! [`options`](super::options) reads them.

/// When beam search may stop before the maximal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyStopping {
    /// As soon as there are as many finished candidates as beams.
    Yes,
    /// When the best running beam, at its present length, would not be better.
    No,
    /// When no running beam could ever be better.
    Never,
}

/// An invalid option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parameter '{option}' {reason}")]
pub struct OptionError {
    /// The option's name.
    pub option: String,
    /// The expected values, and the value that was found.
    pub reason: String,
}

/// The settings of a request. The fields are the options of the same names: see [`super::options::OPTIONS`].
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the table of options says it")]
pub struct Settings {
    pub max_length: usize,
    pub max_new_tokens: Option<usize>,
    pub min_length: usize,
    pub min_new_tokens: usize,
    pub num_beams: usize,
    pub length_penalty: f64,
    pub early_stopping: EarlyStopping,
    pub num_return_sequences: usize,
    pub do_sample: bool,
    pub temperature: f32,
    pub top_k: usize,
    pub top_p: f32,
    pub min_p: Option<f32>,
    pub seed: Option<u64>,
    pub repetition_penalty: f32,
    pub no_repeat_ngram_size: usize,
    pub bad_words_ids: Vec<Vec<i64>>,
    pub suppress_tokens: Vec<i64>,
    pub begin_suppress_tokens: Vec<i64>,
    pub forced_bos_token_id: Option<i64>,
    pub forced_eos_token_id: Vec<i64>,
    pub renormalize_logits: bool,
    pub bos_token_id: Option<i64>,
    pub pad_token_id: Option<i64>,
    pub eos_token_id: Vec<i64>,
    pub decoder_start_token_id: Option<i64>,
}

impl Default for Settings {
    /// Transformers' defaults. Without a length in its files, the library makes 20 ids behind the start.
    fn default() -> Self {
        Settings {
            max_length: 21,
            max_new_tokens: None,
            min_length: 0,
            min_new_tokens: 0,
            num_beams: 1,
            length_penalty: 1.0,
            early_stopping: EarlyStopping::No,
            num_return_sequences: 1,
            do_sample: false,
            temperature: 1.0,
            top_k: 50,
            top_p: 1.0,
            min_p: None,
            seed: None,
            repetition_penalty: 1.0,
            no_repeat_ngram_size: 0,
            bad_words_ids: Vec::new(),
            suppress_tokens: Vec::new(),
            begin_suppress_tokens: Vec::new(),
            forced_bos_token_id: None,
            forced_eos_token_id: Vec::new(),
            renormalize_logits: false,
            bos_token_id: None,
            pad_token_id: None,
            eos_token_id: Vec::new(),
            decoder_start_token_id: None,
        }
    }
}

// === impl OptionError ===

impl OptionError {
    /// An error about `option`.
    pub fn new(option: &str, reason: impl Into<String>) -> OptionError {
        OptionError { option: option.to_owned(), reason: reason.into() }
    }
}

// === impl Settings ===

impl Settings {
    /// The maximal length of a sequence in ids, the start included.
    pub fn longest(&self) -> usize {
        self.max_new_tokens.map_or(self.max_length, |count| count.saturating_add(1))
    }

    /// The id that a sequence starts with.
    pub fn start(&self) -> Option<i64> {
        self.decoder_start_token_id.or(self.bos_token_id)
    }

    /// The padding id for shorter rows.
    pub fn pad(&self) -> i64 {
        self.pad_token_id.or(self.eos_token_id.first().copied()).unwrap_or(0)
    }

    /// Rows of the decoder's batch that one text takes.
    pub fn width(&self) -> usize {
        if self.num_beams > 1 { self.num_beams } else { self.num_return_sequences }
    }

    /// Checks the settings against each other and against the model's limits. Each option alone is already in range.
    pub fn check(&self, limits: &Limits) -> Result<(), OptionError> {
        let wrong = |option, reason: String| Err(OptionError::new(option, reason));
        let (name, longest) = match self.max_new_tokens {
            Some(count) => ("max_new_tokens", count),
            None => ("max_length", self.max_length),
        };
        if self.longest() < 2 || self.longest() > limits.longest {
            let least = usize::from(self.max_new_tokens.is_none()) + 1;
            let most = limits.longest - usize::from(self.max_new_tokens.is_some());
            return wrong(name, format!("has to be {least} to {most} for this model, found {longest}"));
        }
        if self.width() > limits.rows {
            let (name, width) = if self.num_beams > 1 {
                ("num_beams", self.num_beams)
            } else {
                ("num_return_sequences", self.num_return_sequences)
            };
            return wrong(name, format!("has to be at most {} (parameter 'max_rows'), found {width}", limits.rows));
        }
        if self.num_beams > 1 && self.num_return_sequences > self.num_beams {
            let (returned, beams) = (self.num_return_sequences, self.num_beams);
            return wrong(
                "num_return_sequences",
                format!("has to be at most num_beams, which is {beams}, found {returned}"),
            );
        }
        if self.num_beams == 1 && !self.do_sample && self.num_return_sequences > 1 {
            let reason = format!("more than one, found {}, needs num_beams or do_sample", self.num_return_sequences);
            return wrong("num_return_sequences", reason);
        }
        if self.start().is_none() {
            return wrong("decoder_start_token_id", "is missing: neither it nor bos_token_id is given".to_owned());
        }
        self.check_ids(limits.vocabulary)
    }

    /// Checks that no id is beyond the vocabulary, which would be an index out of range, here or in the model.
    /// How many ids its lists have together.
    pub fn listed(&self) -> usize {
        let words = self.bad_words_ids.iter().map(Vec::len).sum::<usize>() + self.bad_words_ids.len();
        let lists = [&self.suppress_tokens, &self.begin_suppress_tokens, &self.forced_eos_token_id, &self.eos_token_id];
        words + lists.into_iter().map(Vec::len).sum::<usize>()
    }

    fn check_ids(&self, vocabulary: usize) -> Result<(), OptionError> {
        let bad_words: Vec<_> = self.bad_words_ids.iter().flatten().copied().collect();
        let one = |id: Option<i64>| id.into_iter().collect::<Vec<_>>();
        let lists = [
            ("bad_words_ids", bad_words),
            ("suppress_tokens", self.suppress_tokens.clone()),
            ("begin_suppress_tokens", self.begin_suppress_tokens.clone()),
            ("forced_bos_token_id", one(self.forced_bos_token_id)),
            ("forced_eos_token_id", self.forced_eos_token_id.clone()),
            ("eos_token_id", self.eos_token_id.clone()),
            ("decoder_start_token_id", one(self.start())),
        ];
        for (option, ids) in lists {
            if let Some(id) = ids.iter().find(|&&id| usize::try_from(id).map_or(true, |id| id >= vocabulary)) {
                return Err(OptionError::new(
                    option,
                    format!("names id {id}, but the vocabulary has {vocabulary} ids"),
                ));
            }
        }
        Ok(())
    }
}

/// The limits of a model.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Ids in its vocabulary.
    pub vocabulary: usize,
    /// The longest sequence that it may generate, in ids.
    pub longest: usize,
    /// Rows of the decoder's batch.
    pub rows: usize,
}
