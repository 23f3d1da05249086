//! The fields that the libraries read in a folder's files, each with what becomes of it here: one table, which docs/model-folders.md
//! shows.
//!
//! A field that changes rows and is in no row of the table would be a fault that nobody sees, so a field that is in none is a warning
//! with its name.

use serde_json::Value;

use super::files::{Json, Reader, kind};

/// The treatment of a field.
#[derive(Clone, Copy, Debug)]
pub enum Verdict {
    /// A setting is derived from it, or it is compared with one.
    Read,
    /// It has no effect on rows; the reason.
    None(&'static str),
    /// The only values that are supported, as JSON texts; another one is a fault. Beside them, the value to write instead.
    Only(&'static [&'static str], &'static str),
}

use Verdict::{None as NoEffect, Only, Read};

/// The fields of a file: names, of which several stand in one text. `*` at the beginning or end of a name stands for any text, and a
/// dot is before the fields of an object.
pub type Fields = &'static [(&'static str, Verdict)];

const NULL: &[&str] = &["null"];
const FALSE: &[&str] = &["null", "false"];
const TRUE: &[&str] = &["null", "true"];
const EMPTY: &[&str] = &["null", "{}", "[]", r#"{"trust_remote_code":true}"#, r#"{"trust_remote_code":false}"#];

/// Names of inputs and outputs within the library, which say where a module stands.
const NAMES: &str = "module_input_name module_output_name";

/// How a user gets a table of numbers in place of a list of tokens.
const SAVE_AGAIN: &str =
    "load the folder with sentence-transformers' SparseEncoder and save it, which writes model.safetensors";

/// How the library is called, or where it looks for files.
const LOADING: &str = "cache_dir revision token use_fast trust_remote_code local_files_only is_local backend return_tensors subfolder \
                       force_download code_revision";

/// The table: for each file, or kind of module with its config.json, the fields.
pub const TABLE: &[(&str, Fields)] = &[
    ("modules.json", &[("idx name", NoEffect("the order of the list counts")), ("type path", Read), ("kwargs", Read)]),
    (
        "config_sentence_transformers.json",
        &[
            ("model_type prompts default_prompt_name activation_fn truncate_dim max_active_dims", Read),
            ("query_length document_length query_expansion do_query_expansion attend_to_expansion_tokens", Read),
            ("attend_to_mask_tokens query_prefix document_prefix skiplist_words", Read),
            ("__version__", NoEffect("who wrote it")),
            ("similarity_fn_name", NoEffect("how clients compare vectors")),
            ("keep_in_fp32_modules", NoEffect("the types of the library's weights; the graph has its own")),
            ("embedding_dim", NoEffect("the graph and the Dense have the width")),
        ],
    ),
    (
        "sentence_bert_config.json",
        &[
            ("max_seq_length do_lower_case transformer_task query_length document_length query_expansion", Read),
            ("modality_config.message modality_config.message.format", Read),
            ("modality_config.*", NoEffect("which method of the library is called; the graph is that method")),
            ("module_output_name", NoEffect("a name within the library")),
            ("unpad_inputs", NoEffect("how the library computes, not what")),
            (
                "model_args model_kwargs model_args.* model_kwargs.*",
                NoEffect("how weights are loaded; the graph has them"),
            ),
            ("config_args config_kwargs", Only(EMPTY, "write its fields into config.json")),
            ("tokenizer_name_or_path", Only(NULL, "put the tokenizer's files into the folder")),
            ("backend cache_dir", NoEffect("how the library runs")),
            ("processing_kwargs.text.max_length processing_kwargs.common.max_length", Read),
            ("processing_kwargs.text.add_special_tokens processing_kwargs.text.padding", Read),
            ("processing_kwargs.common.padding", Read),
            (
                "processing_kwargs.text.truncation processing_kwargs.common.truncation",
                Only(&["null", "true", "\"longest_first\""], "remove it: longer texts are cut, as without it"),
            ),
            (
                "processing_kwargs.text.pad_to_multiple_of processing_kwargs.common.pad_to_multiple_of",
                NoEffect("padding is masked"),
            ),
            ("processing_kwargs.*.return_tensors", NoEffect("how the library is called")),
            (
                "processing_kwargs.chat_template.padding processing_kwargs.chat_template.truncation \
                 processing_kwargs.chat_template.max_length processing_kwargs.chat_template.chat_template \
                 processing_kwargs.chat_template.continue_final_message",
                Only(NULL, "remove it, if the rows are right without it"),
            ),
            (
                "processing_kwargs.chat_template.restore_suffix",
                Only(TRUE, "remove it: the end of a template is not cut off"),
            ),
            (
                "processing_kwargs.chat_template.return_dict processing_kwargs.chat_template.tokenize \
                 processing_kwargs.chat_template.pad_to_multiple_of",
                NoEffect("how the library is called"),
            ),
            ("processing_kwargs.chat_template.*", Read),
            (
                "processing_kwargs.text.* processing_kwargs.common.*",
                Only(NULL, "remove it, if the rows are right without it"),
            ),
            (
                "processing_kwargs.image.* processing_kwargs.audio.* processing_kwargs.video.*",
                NoEffect("not for texts"),
            ),
            ("processor_kwargs.model_max_length tokenizer_args.model_max_length", Read),
            ("processor_kwargs.padding_side tokenizer_args.padding_side", Read),
            (
                "processor_kwargs.use_fast processor_kwargs.trust_remote_code tokenizer_args.use_fast \
                 tokenizer_args.trust_remote_code processor_kwargs.cache_dir tokenizer_args.cache_dir \
                 processor_kwargs.local_files_only tokenizer_args.local_files_only processor_kwargs.revision \
                 tokenizer_args.revision processor_kwargs.token tokenizer_args.token",
                NoEffect("how the library loads"),
            ),
            ("processor_kwargs.* tokenizer_args.*", Only(NULL, "write it into tokenizer_config.json")),
        ],
    ),
    (
        "Pooling",
        &[
            ("pooling_mode pooling_mode_cls_token pooling_mode_max_tokens pooling_mode_mean_tokens", Read),
            ("pooling_mode_mean_sqrt_len_tokens pooling_mode_weightedmean_tokens pooling_mode_lasttoken", Read),
            ("include_prompt embedding_dimension word_embedding_dimension", Read),
        ],
    ),
    ("Dense", &[("in_features out_features bias activation_function use_residual", Read), (NAMES, Read)]),
    ("Normalize", &[(NAMES, Read)]),
    ("LayerNorm", &[("dimension", Read)]),
    ("Dropout", &[("dropout", NoEffect("training only"))]),
    (
        "SpladePooling",
        &[
            ("pooling_strategy activation_function", Read),
            ("embedding_dimension word_embedding_dimension", NoEffect("the graph has the width")),
            ("chunk_size", NoEffect("how the library computes, not what")),
        ],
    ),
    ("SparseStaticEmbedding", &[("frozen", NoEffect("training only")), ("path", Only(NULL, SAVE_AGAIN))]),
    (
        "router_config.json",
        &[
            ("types.* structure.*", Read),
            ("parameters.default_route parameters.allow_empty_key parameters.route_mappings", Read),
            ("parameters.route_mappings.*", Read),
        ],
    ),
    ("LogitScore", &[("true_token_id false_token_id module_input_name", Read)]),
    ("MultiVectorMask", &[("skiplist_words skiplist_tasks keep_only_token_ids", Read)]),
    (
        "tokenizer_config.json",
        &[
            ("tokenizer_class model_max_length padding_side truncation_side model_input_names chat_template", Read),
            ("do_lower_case strip_accents tokenize_chinese_chars add_prefix_space add_bos_token add_eos_token", Read),
            ("bos_token eos_token unk_token sep_token pad_token cls_token mask_token pad_token_type_id", Read),
            ("additional_special_tokens extra_special_tokens added_tokens_decoder *_token", Read),
            ("src_lang tgt_lang language_codes legacy_behaviour separate_vocabs legacy extra_ids", Read),
            (LOADING, NoEffect("how the library is called")),
            (
                "name_or_path special_tokens_map_file tokenizer_file vocab_file processor_class",
                NoEffect("where files were"),
            ),
            (
                "max_length stride truncation_strategy truncation padding pad_to_multiple_of max_len",
                NoEffect("an earlier call's"),
            ),
            (
                "clean_up_tokenization_spaces spaces_between_special_tokens errors \
                 clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
                NoEffect("decoding only"),
            ),
            ("trim_offsets split_by_punct", NoEffect("tokenizer.json has it")),
            ("source_lang target_lang", NoEffect("the languages of source.spm and target.spm")),
            (
                "keep_accents remove_space sp_model_kwargs unk_id vocab_size vocab_type offset",
                NoEffect("tokenizer.json has it"),
            ),
            (
                "do_basic_tokenize",
                Only(TRUE, "save the tokenizer with a present transformers, which writes tokenizer.json"),
            ),
            ("never_split", Only(EMPTY, "write the tokens into tokenizer.json: added_tokens")),
            ("split_special_tokens", Only(FALSE, "remove it: special tokens in texts are kept whole")),
            ("auto_map", NoEffect("code of the folder's own, which is not run; tokenizer.json counts")),
            (
                "use_default_system_prompt tool_parser_type response_schema response_template chat_control_tokens",
                NoEffect("chats only"),
            ),
            (
                "tokenizer_type token_type_ids_pattern init_inputs model_specific_special_tokens fix_mistral_regex",
                NoEffect("the library's own"),
            ),
            ("image_* audio_* video_* vision_*", NoEffect("not for texts")),
        ],
    ),
    ("special_tokens_map.json", &[("*_token additional_special_tokens extra_special_tokens", Read)]),
    (
        "config.json",
        &[
            ("architectures model_type id2label label2id num_labels problem_type vocab_size pad_token_id", Read),
            (
                "hidden_size d_model dim n_embd word_embed_proj_dim max_position_embeddings max_trained_positions n_positions n_ctx",
                Read,
            ),
            ("position_embedding_type sentence_transformers sbert_ce_default_activation_function", Read),
            ("normalize max_length projection_dim is_encoder_decoder classifier_pooling is_causal", Read),
            ("*", NoEffect("a setting of the graph, which is made with it")),
        ],
    ),
];

/// The fields of a file, or kind of module, of the table.
fn fields_of(file: &str) -> Fields {
    TABLE.iter().find(|(name, _)| *name == file).map_or(&[], |(_, fields)| fields)
}

/// The treatment of the field at this path; `None` where no row has it.
fn verdict(fields: Fields, path: &str) -> Option<Verdict> {
    let fits = |pattern: &str| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(end), _) if !end.is_empty() => path.ends_with(end),
        (_, Some(start)) => path.starts_with(start),
        _ => match pattern.split_once(".*.") {
            Some((start, end)) => path.starts_with(start) && path.ends_with(end),
            None => path == pattern,
        },
    };
    fields.iter().find(|(names, _)| names.split_whitespace().any(fits)).map(|(_, verdict)| *verdict)
}

/// Whether the table has fields within the object at this path.
fn has_inner(fields: Fields, path: &str) -> bool {
    let start = format!("{path}.");
    fields.iter().any(|(names, _)| names.split_whitespace().any(|name| name.starts_with(&start)))
}

/// Looks all fields of `json` up in the table's rows for `file`: another value than the only one that is done is a fault, and a field in
/// no row is a warning.
pub(crate) fn check(reader: &Reader<'_>, file: &str, json: &Json) {
    let fields = fields_of(file);
    for key in json.keys() {
        if let Some(value) = json.get(key) {
            field(reader, fields, &json.file, key, value);
        }
    }
}

fn field(reader: &Reader<'_>, fields: Fields, file: &str, path: &str, value: &Value) {
    match (verdict(fields, path), value) {
        (None, Value::Object(inner)) if has_inner(fields, path) => {
            for (key, value) in inner.iter().filter(|(_, value)| !value.is_null()) {
                field(reader, fields, file, &format!("{path}.{key}"), value);
            }
        }
        (Some(Only(known, instead)), value) => {
            if !known.contains(&value.to_string().as_str()) {
                let first = known.last().copied().unwrap_or("null");
                reader.fault(format_args!(
                    "{file}: {path} is {}, which is not supported, expected {first}; {instead}",
                    kind(value)
                ));
            }
        }
        (Some(Read | NoEffect(_)), _) => {}
        (None, _) => reader.warn(format_args!("{file}: {path} is not understood and has no effect")),
    }
}

/// The table as Markdown, for docs/model-folders.md.
pub fn as_markdown() -> String {
    let mut out = String::from("| file | fields | effect |\n|---|---|---|\n");
    for (file, fields) in TABLE {
        for (names, verdict) in *fields {
            let names: Vec<_> = names.split_whitespace().map(|name| format!("`{name}`")).collect();
            let verdict = match verdict {
                Read => "read".to_owned(),
                NoEffect(reason) => format!("no effect: {reason}"),
                Only(values, instead) => {
                    let values: Vec<_> = values.iter().map(|value| format!("`{value}`")).collect();
                    format!("refused unless {}: {instead}", values.join(", "))
                }
            };
            out.push_str(&format!("| {file} | {} | {verdict} |\n", names.join(", ")));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_has_the_table() {
        const START: &str = "<!-- fields -->\n";
        const END: &str = "<!-- end of fields -->";
        let path = "../../docs/model-folders.md";
        let text = std::fs::read_to_string(path).unwrap();
        let (before, rest) = text.split_once(START).expect("the mark before the table");
        let (table, after) = rest.split_once(END).expect("the mark behind the table");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, format!("{before}{START}{}{END}{after}", as_markdown())).unwrap();
        } else {
            assert_eq!(table, as_markdown(), "renew it: UPDATE_DOCS=1 cargo test -p trireme-model-repository fields");
        }
    }

    #[test]
    fn each_field_is_in_one_row_of_its_file() {
        for (file, fields) in TABLE {
            let mut seen = Vec::new();
            for (names, verdict) in *fields {
                assert!(!names.trim().is_empty(), "{file}: a row without a name");
                for name in names.split_whitespace() {
                    assert!(!seen.contains(&name), "{file}: {name} is in two rows");
                    seen.push(name);
                }
                match verdict {
                    NoEffect(reason) => assert!(!reason.is_empty(), "{file}: {names} has no reason"),
                    Only(values, instead) => {
                        assert!(!instead.is_empty(), "{file}: {names} does not say what to write");
                        for value in *values {
                            let read: Value = serde_json::from_str(value).expect("JSON");
                            assert_eq!(read.to_string(), *value, "{file}: {names}");
                        }
                    }
                    Read => {}
                }
            }
        }
    }

    #[test]
    fn patterns_stand_for_names() {
        let own = fields_of("sentence_bert_config.json");
        assert!(matches!(verdict(own, "processing_kwargs.text.max_length"), Some(Read)));
        assert!(matches!(verdict(own, "processing_kwargs.text.stride"), Some(Only(..))));
        assert!(matches!(verdict(own, "processing_kwargs.video.return_tensors"), Some(NoEffect(_))));
        assert!(verdict(own, "something").is_none() && has_inner(own, "processing_kwargs"));
        assert!(matches!(verdict(fields_of("tokenizer_config.json"), "image_token"), Some(Read)));
        assert!(verdict(fields_of("tokenizer_config.json"), "reverse_texts").is_none());
        // Of Marian, of DeBERTa, and of an exporter of PyLate's models.
        for name in ["source_lang", "target_lang", "separate_vocabs", "vocab_type", "split_by_punct"] {
            assert!(verdict(fields_of("tokenizer_config.json"), name).is_some(), "{name}");
        }
        assert!(matches!(verdict(fields_of("config_sentence_transformers.json"), "embedding_dim"), Some(NoEffect(_))));
    }
}
