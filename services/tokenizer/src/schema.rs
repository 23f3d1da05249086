//! Inputs and outputs of a tokenizer model, checked against those that a tokenizer can have.

use trireme_engine::LoadError;
use trireme_inference::{DataType, Shape, TensorSpec};
use trireme_model_repository::{AutoComplete, ModelConfig};
use trireme_text::Extras;

/// An output of a tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    InputIds,
    AttentionMask,
    TokenTypeIds,
    PositionIds,
    Offsets,
    SpecialTokensMask,
    Windows,
    WordsMask,
    TextLengths,
    SpanIdx,
    SpanMask,
    WordOffsets,
    PoolingMask,
    ScoringMask,
    ForcedBosTokenId,
    Tokens,
    DecodedText,
}

/// The checked schema of a tokenizer model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schema {
    /// Name of the input that holds the texts.
    pub(crate) texts: String,
    /// The input that holds the second texts of pairs.
    pub(crate) pairs: Option<Pairs>,
    /// The outputs, in the order in which they are declared.
    pub(crate) outputs: Vec<Declared>,
}

/// An output as it is declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Declared {
    pub(crate) output: Output,
    /// Its name in the configuration.
    pub(crate) name: String,
    /// INT64 or INT32; BYTES where it holds texts.
    pub(crate) datatype: DataType,
}

/// The input of second texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pairs {
    pub(crate) name: String,
    /// Whether requests may do without.
    pub(crate) optional: bool,
}

// === impl Output ===

impl Output {
    const ALL: [Output; 17] = [
        Output::InputIds,
        Output::AttentionMask,
        Output::TokenTypeIds,
        Output::PositionIds,
        Output::Offsets,
        Output::SpecialTokensMask,
        Output::Windows,
        Output::WordsMask,
        Output::TextLengths,
        Output::SpanIdx,
        Output::SpanMask,
        Output::WordOffsets,
        Output::PoolingMask,
        Output::ScoringMask,
        Output::ForcedBosTokenId,
        Output::Tokens,
        Output::DecodedText,
    ];

    /// The outputs of a configuration that declares none, and those that outputs of unknown names stand for, in this order.
    const USUAL: [Output; 3] = [Output::InputIds, Output::AttentionMask, Output::TokenTypeIds];

    /// The name of the output, which is that of the model input it is made for.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Output::InputIds => "input_ids",
            Output::AttentionMask => "attention_mask",
            Output::TokenTypeIds => "token_type_ids",
            Output::PositionIds => "position_ids",
            Output::Offsets => "offsets",
            Output::SpecialTokensMask => "special_tokens_mask",
            Output::Windows => "windows",
            Output::WordsMask => "words_mask",
            Output::TextLengths => "text_lengths",
            Output::SpanIdx => "span_idx",
            Output::SpanMask => "span_mask",
            Output::WordOffsets => "word_offsets",
            Output::PoolingMask => "pooling_mask",
            Output::ScoringMask => "scoring_mask",
            Output::ForcedBosTokenId => "forced_bos_token_id",
            Output::Tokens => "tokens",
            Output::DecodedText => "decoded_text",
        }
    }

    /// The output of this name, or of the name that the first BERT models had for it.
    fn named(name: &str) -> Option<Output> {
        match name {
            "input_mask" => Some(Output::AttentionMask),
            "segment_ids" => Some(Output::TokenTypeIds),
            _ => Output::ALL.into_iter().find(|known| known.name() == name),
        }
    }

    /// Whether it is of the words and spans of rows behind labels.
    const fn is_of_spans(self) -> bool {
        use Output::{SpanIdx, SpanMask, TextLengths, WordOffsets, WordsMask};
        matches!(self, WordsMask | TextLengths | SpanIdx | SpanMask | WordOffsets)
    }

    /// Whether it holds a text for each row.
    pub(crate) const fn is_text(self) -> bool {
        matches!(self, Output::Tokens | Output::DecodedText)
    }
}

// === impl Schema ===

impl Schema {
    /// Checks the inputs and outputs of `config`; all faults are reported together.
    pub(crate) fn of(config: &ModelConfig) -> Result<Schema, LoadError> {
        let mut faults = Vec::new();
        for input in config.input_specs() {
            faults.extend(check_text(config, &input, "input"));
        }
        if config.inputs.is_empty() || config.inputs.len() > 2 {
            let found = config.inputs.len();
            faults.push(format!(
                "it declares {found} inputs, expected one TYPE_STRING input of texts, or two for text pairs"
            ));
        }
        if config.inputs.first().is_some_and(|input| input.optional) {
            faults.push(format!(
                "input '{}' is optional, but without texts there is nothing to encode",
                config.inputs[0].name
            ));
        }
        let mut outputs = Vec::<Declared>::new();
        let specs = config.output_specs();
        let mut usual = Output::USUAL
            .into_iter()
            .filter(|usual| !specs.iter().any(|output| Output::named(&output.name) == Some(*usual)));
        for spec in specs.iter() {
            let known = Output::named(&spec.name);
            let fault = match known.is_some_and(Output::is_text) {
                true => check_text(config, spec, "output"),
                false => check_output(config, spec, known),
            };
            // A name of the author's own: the tensor's place in the configuration says which it is.
            let output = known.or_else(|| if fault.is_none() { usual.next() } else { None });
            match output {
                Some(output) if outputs.iter().any(|declared| declared.output == output) => {
                    faults.push(format!("output '{}' is a second {}: remove one of them", spec.name, output.name()));
                }
                Some(output) => {
                    outputs.push(Declared { output, name: spec.name.to_string(), datatype: spec.datatype });
                }
                None if fault.is_none() => {
                    let (usual, known) =
                        (Output::USUAL.map(Output::name).join(", "), Output::ALL.map(Output::name).join(", "));
                    faults.push(format!(
                        "unexpected inference output '{}': outputs of other names are taken for {usual}, in this order, and none of \
                         these is left; allowed outputs are: {known}",
                        spec.name
                    ));
                }
                None => {}
            }
            faults.extend(fault);
        }
        if config.outputs.is_empty() {
            faults
                .push(format!("it declares no outputs, expected some of {}", Output::ALL.map(Output::name).join(", ")));
        }
        let [texts, pairs @ ..] = config.inputs.as_slice() else { return Err(refused(config, &faults)) };
        if !faults.is_empty() {
            return Err(refused(config, &faults));
        }
        let pairs = pairs.first().map(|input| Pairs { name: input.name.clone(), optional: input.optional });
        Ok(Schema { texts: texts.name.clone(), pairs, outputs })
    }

    /// The further outputs that the tokenizer has to make, beside ids and masks: those that are declared and that `wanted`
    /// accepts.
    pub(crate) fn extras(&self, wanted: impl Fn(&str) -> bool) -> Extras {
        let has = |output: Output| self.outputs.iter().any(|own| own.output == output && wanted(&own.name));
        Extras {
            position_ids: has(Output::PositionIds),
            offsets: has(Output::Offsets),
            special_tokens_mask: has(Output::SpecialTokensMask),
            windows: has(Output::Windows),
            spans: Output::ALL.into_iter().any(|output| output.is_of_spans() && has(output)),
            pooling_mask: has(Output::PoolingMask),
            scoring_mask: has(Output::ScoringMask),
            token_lists: has(Output::Tokens),
            decoded: has(Output::DecodedText),
        }
    }

    /// The inputs and outputs of a tokenizer whose configuration declares none.
    pub(crate) fn default_for(config: &ModelConfig) -> AutoComplete {
        let spec =
            |name: &str, datatype, shape: Shape| TensorSpec { name: name.into(), datatype, shape, optional: false };
        let texts = if config.max_batch_size == 0 { Shape::from([-1]) } else { Shape::from([-1, 1]) };
        AutoComplete {
            inputs: vec![spec("TEXT", DataType::Bytes, texts)],
            outputs: Output::USUAL.map(|output| spec(output.name(), DataType::Int64, Shape::from([-1, -1]))).into(),
            // Zero: a tokenizer gains nothing from batching, so texts come as `[n]` unless the configuration batches.
            default_max_batch_size: 0,
        }
    }
}

fn refused(config: &ModelConfig, faults: &[String]) -> LoadError {
    LoadError::Config(format!("model '{}': {}", config.name, faults.join("; ")))
}

fn check_text(config: &ModelConfig, tensor: &TensorSpec, side: &str) -> Option<String> {
    let TensorSpec { name, datatype, shape, .. } = tensor;
    if *datatype != DataType::Bytes {
        let found = datatype.config_name();
        return Some(format!("unexpected datatype {found} for inference {side} '{name}', expecting TYPE_STRING"));
    }
    // One text a row: the rows are the only axis, except an axis of size 1.
    let fits = matches!(**shape, [_] | [_, 1]) || (config.max_batch_size > 0 && matches!(**shape, [_, -1]));
    // Tensors that are made here have one shape.
    let fits = fits && (side == "input" || shape.len() == if config.max_batch_size == 0 { 1 } else { 2 });
    let expected = if config.max_batch_size == 0 { "[ -1 ]" } else { "[ 1 ]" };
    (!fits).then(|| format!("{side} '{name}' has full shape {shape}, expected dims {expected}"))
}

/// `known` is the output, where its name tells.
fn check_output(config: &ModelConfig, output: &TensorSpec, known: Option<Output>) -> Option<String> {
    let TensorSpec { name, datatype, shape, .. } = output;
    if known.is_some_and(Output::is_of_spans) {
        return check_span_output(config, output, known);
    }
    if !matches!(datatype, DataType::Int64 | DataType::Int32) {
        let found = datatype.config_name();
        return Some(format!(
            "unexpected datatype {found} for inference output '{name}', expecting TYPE_INT64 or TYPE_INT32"
        ));
    }
    let is_pairs = known == Some(Output::Offsets);
    if known == Some(Output::Windows) {
        // There are more rows than texts.
        let fits = config.max_batch_size == 0 && matches!(**shape, [_, 6 | -1]);
        return (!fits).then(|| {
            format!(
                "output '{name}' has full shape {shape} beside max_batch_size {}, expected dims [ -1, 6 ] and max_batch_size 0",
                config.max_batch_size
            )
        });
    }
    let expected = match (config.max_batch_size, is_pairs) {
        (0, false) => "[ -1, -1 ]",
        (_, false) => "[ -1 ]",
        (0, true) => "[ -1, -1, 2 ]",
        (_, true) => "[ -1, 2 ]",
    };
    let fits = if is_pairs { matches!(**shape, [_, _, 2 | -1]) } else { shape.len() == 2 };
    (!fits).then(|| format!("output '{name}' has full shape {shape}, expected dims {expected}"))
}

/// Rows of words are windows of texts, of which a text may have several.
fn check_span_output(config: &ModelConfig, output: &TensorSpec, known: Option<Output>) -> Option<String> {
    let TensorSpec { name, datatype, shape, .. } = output;
    let (expected, dims) = match known {
        Some(Output::SpanMask) => (DataType::Bool, "[ -1, -1 ]"),
        Some(Output::SpanIdx | Output::WordOffsets) => (DataType::Int64, "[ -1, -1, 2 ]"),
        Some(Output::TextLengths) => (DataType::Int64, "[ -1, 1 ]"),
        _ => (DataType::Int64, "[ -1, -1 ]"),
    };
    let fits = match known {
        Some(Output::SpanIdx | Output::WordOffsets) => matches!(**shape, [_, _, 2 | -1]),
        Some(Output::TextLengths) => matches!(**shape, [_, 1 | -1]),
        _ => shape.len() == 2,
    };
    let is_right = fits && config.max_batch_size == 0 && *datatype == expected;
    (!is_right).then(|| {
        format!(
            "output '{name}' is {} of full shape {shape} beside max_batch_size {}, expected {} of dims {dims} and max_batch_size 0",
            datatype.config_name(),
            config.max_batch_size,
            expected.config_name()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> ModelConfig {
        ModelConfig::parse(&format!("backend: 'tokenizer' {text}"), "tok").expect("a valid configuration")
    }

    fn message(text: &str) -> String {
        Schema::of(&config(text)).expect_err("a fault").to_string()
    }

    const OUTPUT: &str = "output { name: 'input_ids' data_type: TYPE_INT64 dims: [ -1, -1 ] }";

    #[test]
    fn names_of_inputs_are_free_and_outputs_may_be_some() {
        let schema = Schema::of(&config(
            "max_batch_size: 8 input [ { name: 'q' data_type: TYPE_STRING dims: [ 1 ] }, \
             { name: 'd' data_type: TYPE_STRING dims: [ -1 ] optional: true } ] \
             output [ { name: 'attention_mask' data_type: TYPE_INT32 dims: [ -1 ] }, \
             { name: 'input_ids' data_type: TYPE_INT64 dims: [ -1 ] } ]",
        ));
        let expected = Schema {
            texts: "q".to_owned(),
            pairs: Some(Pairs { name: "d".to_owned(), optional: true }),
            outputs: vec![
                declared(Output::AttentionMask, "attention_mask", DataType::Int32),
                declared(Output::InputIds, "input_ids", DataType::Int64),
            ],
        };
        assert_eq!(schema.expect("a valid schema"), expected);
    }

    fn declared(output: Output, name: &str, datatype: DataType) -> Declared {
        Declared { output, name: name.to_owned(), datatype }
    }

    fn with_outputs(names: &[&str]) -> String {
        let output = |name: &&str| format!("{{ name: '{name}' data_type: TYPE_INT64 dims: [ -1, -1 ] }}");
        let outputs = names.iter().map(output).collect::<Vec<_>>().join(", ");
        format!("input {{ name: 'TEXT' data_type: TYPE_STRING dims: [ -1 ] }} output [ {outputs} ]")
    }

    #[test]
    fn outputs_of_any_name_are_taken_in_declared_order() {
        let taken = |names: &[&str]| {
            let schema = Schema::of(&config(&with_outputs(names))).expect("a valid schema");
            schema.outputs.into_iter().map(|own| (own.name, own.output)).collect::<Vec<_>>()
        };
        let own = |name: &str, output| (name.to_owned(), output);
        assert_eq!(
            taken(&["tokens_of_text", "mask", "types"]),
            [
                own("tokens_of_text", Output::InputIds),
                own("mask", Output::AttentionMask),
                own("types", Output::TokenTypeIds)
            ]
        );
        // Known names keep their meaning, and other names take the outputs that are left.
        assert_eq!(
            taken(&["attention_mask", "ids", "position_ids"]),
            [
                own("attention_mask", Output::AttentionMask),
                own("ids", Output::InputIds),
                own("position_ids", Output::PositionIds)
            ]
        );
        assert_eq!(
            taken(&["segment_ids", "x", "input_mask"]),
            [
                own("segment_ids", Output::TokenTypeIds),
                own("x", Output::InputIds),
                own("input_mask", Output::AttentionMask)
            ]
        );
        let error = message(&with_outputs(&["a", "b", "c", "d"]));
        assert!(
            error.contains(
                "unexpected inference output 'd': outputs of other names are taken for input_ids, attention_mask, \
                            token_type_ids, in this order, and none of these is left"
            ),
            "{error}"
        );
        let error = message(&with_outputs(&["input_mask", "attention_mask"]));
        assert!(error.ends_with("output 'attention_mask' is a second attention_mask: remove one of them"), "{error}");
    }

    #[test]
    fn faults_are_reported_together() {
        let faults = message(
            "input { name: 'x' data_type: TYPE_FP32 dims: [ -1 ] } \
             output [ { name: 'ids' data_type: TYPE_INT64 dims: [ -1, -1, 2 ] }, \
             { name: 'input_ids' data_type: TYPE_FP32 dims: [ -1, -1 ] } ]",
        );
        assert_eq!(
            faults,
            "model 'tok': unexpected datatype TYPE_FP32 for inference input 'x', expecting TYPE_STRING; output 'ids' has full shape \
             [-1,-1,2], expected dims [ -1, -1 ]; unexpected datatype TYPE_FP32 for inference output 'input_ids', expecting TYPE_INT64 \
             or TYPE_INT32"
        );
    }

    #[test]
    fn shapes_must_hold_one_text_a_row() {
        let input = |dims| format!("input {{ name: 'TEXT' data_type: TYPE_STRING dims: {dims} }} {OUTPUT}");
        assert!(Schema::of(&config(&input("[ -1 ]"))).is_ok());
        assert!(Schema::of(&config(&input("[ -1, 1 ]"))).is_ok());
        assert_eq!(
            message(&input("[ -1, -1 ]")),
            "model 'tok': input 'TEXT' has full shape [-1,-1], expected dims [ -1 ]"
        );
        let batched = format!("max_batch_size: 4 {}", input("[ 2 ]"));
        assert_eq!(
            message(&batched),
            "model 'tok': input 'TEXT' has full shape [-1,2], expected dims [ 1 ]; output 'input_ids' has full shape \
             [-1,-1,-1], expected dims [ -1 ]"
        );
    }

    #[test]
    fn offsets_are_pairs() {
        let offsets = |batch, dims| {
            format!(
                "max_batch_size: {batch} input {{ name: 'TEXT' data_type: TYPE_STRING dims: [ 1 ] }} \
                 output {{ name: 'offsets' data_type: TYPE_INT64 dims: {dims} }}"
            )
        };
        assert!(Schema::of(&config(&offsets(4, "[ -1, 2 ]"))).is_ok());
        let expected = "model 'tok': output 'offsets' has full shape [-1,-1], expected dims [ -1, 2 ]";
        assert_eq!(message(&offsets(4, "[ -1 ]")), expected);
    }

    #[test]
    fn missing_inputs_and_outputs_are_named() {
        assert!(message(OUTPUT).contains("it declares 0 inputs, expected one TYPE_STRING input"));
        assert!(
            message("input { name: 'TEXT' data_type: TYPE_STRING dims: [ -1 ] }").contains("it declares no outputs")
        );
    }
}
