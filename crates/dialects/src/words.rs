//! The fields of all APIs for vectors, ranks and classes of texts as data: those of OpenAI and Azure, Mistral, Voyage, Cohere, Jina, TEI,
//! Hugging Face's clients, Infinity, vLLM, NIM, Ollama, Together, Fireworks, Nomic, Mixedbread, Pinecone, Gemini, DashScope, SiliconFlow,
//! Cloudflare, llama.cpp, sentence-transformers and FlagEmbedding, and those that proxies add.
//!
//! A client that sends a field of another server expects its effect. So a route reads a field, by its own name or by another one of the
//! same meaning, or refuses it; only fields on which no answer depends are passed over.

/// Values of each form that a field takes, as JSON.
pub type Forms = &'static [&'static str];

/// A field of some API.
pub struct Word {
    /// Its name.
    pub name: &'static str,
    /// A value on which answers depend, as JSON.
    #[allow(dead_code, reason = "the tests send it to every route")]
    pub example: &'static str,
    /// The function that it asks for.
    pub sense: Sense,
}

/// The function that a field asks for.
pub enum Sense {
    /// No answer depends on it: why.
    #[allow(dead_code, reason = "docs/dialects.md has it")]
    Idle(&'static str),
    /// Answers depend on it.
    Matters {
        /// Fields of one meaning stand for each other.
        meaning: Meaning,
        /// Values that ask for what happens in any case.
        usual: Forms,
        /// The words to write instead.
        instead: &'static str,
    },
}

/// Meanings that fields of several names have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// A meaning that no other field has.
    Own,
    /// The model.
    Model,
    /// How many numbers of each vector.
    Dimensions,
    /// The type of a vector's numbers.
    Elements,
    /// Whether vectors get length 1.
    Length,
    /// Whether a text that is too long is cut.
    Cut,
    /// Whether texts are queries or documents.
    Kind,
    /// The task for the model in words.
    Instruction,
    /// How many of the best.
    Best,
    /// Whether results come with their documents.
    Documents,
}

/// The field of this name, if some API has it.
pub fn find(name: &str) -> Option<&'static Word> {
    WORDS.iter().find(|word| word.name == name)
}

/// A field that has no other name, and of which no value is the usual one.
const fn own(name: &'static str, example: &'static str, instead: &'static str) -> Word {
    usual(name, example, &[], instead)
}

/// The same, of which these values ask for what happens in any case.
const fn usual(name: &'static str, example: &'static str, usual: Forms, instead: &'static str) -> Word {
    Word { name, example, sense: Sense::Matters { meaning: Meaning::Own, usual, instead } }
}

/// A field of a meaning that several have.
const fn of(meaning: Meaning, name: &'static str, example: &'static str, usual: Forms, instead: &'static str) -> Word {
    Word { name, example, sense: Sense::Matters { meaning, usual, instead } }
}

const fn idle(name: &'static str, why: &'static str) -> Word {
    Word { name, example: "\"x\"", sense: Sense::Idle(why) }
}

const TEXTS: &str = "send the texts in the fields of this route";
const IMAGES: &str = "models here take texts";
const TYPES: &str = "vectors of this route are of FP32 numbers; /v1/embeddings and /v2/embed have other types";
const WIDTH: &str = "vectors of this route are given whole";
const CUTS: &str = "this route decides itself what is cut; /embed, /v1/embeddings and /v2/embed read it";
const LIMIT: &str = "this route has no such limit; /v2/embed and /v2/rerank have 'max_tokens' and 'max_tokens_per_doc'";
const SIDES: &str = "this route tells queries and documents apart by other fields, or not at all";
const PROMPT: &str = "the prompts of the model are used; routes with 'prompt_name' or 'instruction' choose among them";
const TALK: &str = "this route takes texts; /vllm/v1/embeddings takes messages";
const ZERO_SHOT: &str =
    "no model here takes its classes from a request on this route; leave it out for the model's own classes";
const HYPOTHESES: &str = "/tei/MODEL takes labels of a request in 'parameters', of a model that does zero_shot";
const SCORES: &str = "scores are as the model's configuration says; leave it out";
const CLASSES: &str = "all classes are given; leave it out, or send a model that finds entities to /tei/MODEL";
const VECTORS: &str = "this route gives a vector for each text; /embed_sparse and /embed_all give others";
const CHUNKS: &str = "each text is embedded by itself; /jina/v1/embeddings has 'late_chunking', and /vllm/v1/embeddings 'late_chunking_params'";
const CHUNKING: &str =
    "a long text is treated as the server is told by --long-texts; /v1/embeddings of /openai reads 'chunking'";

use Meaning::{Best, Cut, Dimensions, Documents, Elements, Instruction, Kind, Length, Model};

/// Every field.
pub static WORDS: &[Word] = &[
    // The model.
    of(Model, "model", r#""no-such-model""#, &[], "the model is named in the path"),
    of(Model, "model_id", r#""no-such-model""#, &[], "write 'model'"),
    of(Model, "modelId", r#""no-such-model""#, &[], "write 'model'"),
    // Texts.
    own("input", r#"["another text"]"#, TEXTS),
    own("inputs", r#"["another text"]"#, TEXTS),
    own("text", r#""another text""#, TEXTS),
    own("texts", r#"["another text"]"#, TEXTS),
    own("content", r#""another text""#, TEXTS),
    own("contents", r#"["another text"]"#, TEXTS),
    own("instances", r#"[{"content": "another text"}]"#, TEXTS),
    own("inputText", r#""another text""#, TEXTS),
    own("sentences", r#"["another text"]"#, TEXTS),
    own("source_sentence", r#""another text""#, TEXTS),
    own("query", r#""another text""#, TEXTS),
    own("queries", r#"["another text"]"#, TEXTS),
    own("documents", r#"["another text"]"#, TEXTS),
    own("passages", r#"[{"text": "another text"}]"#, TEXTS),
    own("items", r#"["another text"]"#, TEXTS),
    own("contexts", r#"[{"text": "another text"}]"#, TEXTS),
    own("context", r#""another text""#, TEXTS),
    own("question", r#""another text""#, TEXTS),
    own("text_1", r#""another text""#, TEXTS),
    own("text_2", r#""another text""#, TEXTS),
    own("data_1", r#""another text""#, TEXTS),
    own("data_2", r#""another text""#, TEXTS),
    own("tokens", "[1]", TEXTS),
    own("ids", "[1]", TEXTS),
    own("input_ids", "[1]", TEXTS),
    own("messages", r#"[{"role": "user", "content": "a"}]"#, TALK),
    own("images", r#"["data:,"]"#, IMAGES),
    own("image", r#""data:,""#, IMAGES),
    own("image_url", r#""data:,""#, IMAGES),
    usual("modality", r#""image""#, &[r#""text""#, r#"["text"]"#], IMAGES),
    usual("mm_processor_kwargs", r#"{"a": 1}"#, &[], IMAGES),
    usual("media_io_kwargs", r#"{"a": 1}"#, &[], IMAGES),
    // Vectors.
    of(Dimensions, "dimensions", "4", &[], WIDTH),
    of(Dimensions, "dimension", "4", &[], WIDTH),
    of(Dimensions, "output_dimension", "4", &[], WIDTH),
    of(Dimensions, "output_dimensionality", "4", &[], WIDTH),
    of(Dimensions, "outputDimensionality", "4", &[], WIDTH),
    of(Dimensions, "dimensionality", "4", &[], WIDTH),
    of(Dimensions, "truncate_dim", "4", &[], WIDTH),
    usual("encoding_format", r#""base64""#, &[r#""float""#], TYPES),
    usual("output_encoding", r#""base64""#, &[r#""float""#], TYPES),
    of(Elements, "output_dtype", r#""ubinary""#, FLOATS, TYPES),
    of(Elements, "embedding_type", r#""ubinary""#, FLOATS, TYPES),
    of(Elements, "embedding_types", r#"["ubinary"]"#, FLOATS, TYPES),
    of(Elements, "embeddingTypes", r#"["ubinary"]"#, FLOATS, TYPES),
    of(Elements, "encoding_type", r#""ubinary""#, FLOATS, TYPES),
    of(Elements, "precision", r#""ubinary""#, FLOATS, TYPES),
    usual("embed_dtype", r#""float16""#, &[r#""float32""#], "vLLM's types are at /vllm/v1/embeddings and /pooling"),
    usual("endianness", r#""big""#, &[r#""native""#, r#""little""#], "vLLM's are at /vllm/v1/embeddings and /pooling"),
    usual("output_type", r#""sparse""#, &[r#""dense""#], VECTORS),
    usual("return_dense", "false", &["true"], VECTORS),
    usual("return_sparse", "true", &["false"], VECTORS),
    usual("return_colbert_vecs", "true", &["false"], VECTORS),
    usual("return_multivector", "true", &["false"], VECTORS),
    of(Length, "normalize", "false", &[], "vectors and scores of this route are as the model's configuration says"),
    of(Length, "normalized", "false", &[], "vectors are as the model's configuration says; /v1/embeddings reads it"),
    of(Length, "normalize_embeddings", "false", &[], "vectors are as the model's configuration says"),
    own("embd_normalize", "-1", "write 'normalize' at /v1/embeddings"),
    usual("late_chunking", "true", &["false"], CHUNKS),
    usual("chunking", "true", &["false"], CHUNKING),
    usual("enable_chunked_processing", "true", &["false"], CHUNKING),
    own("late_chunking_params", r#"{"chunk_size": 1}"#, CHUNKS),
    own("pooling", r#""cls""#, "vectors of tokens become one as the model's configuration says"),
    own("pooling_type", r#""cls""#, "vectors of tokens become one as the model's configuration says"),
    // How texts are read.
    of(Cut, "truncate", "false", &[], CUTS),
    of(Cut, "truncation", "false", &[], CUTS),
    of(Cut, "auto_truncate", "false", &[], CUTS),
    of(Cut, "autoTruncate", "false", &[], CUTS),
    of(Cut, "truncate_inputs", "false", &[], CUTS),
    usual("long_text_mode", r#""mean""#, &[r#""truncate""#], "a text that is too long is cut"),
    usual("truncation_direction", r#""Left""#, &[r#""Right""#, r#""right""#], "texts are cut at their end"),
    usual("truncation_side", r#""left""#, &[r#""right""#], "texts are cut at their end"),
    of(Cut, "truncate_prompt_tokens", "3", &["-1"], "vLLM's is at /vllm/v1/embeddings, /score and /rerank"),
    own("truncate_input_tokens", "3", LIMIT),
    own("max_tokens", "3", LIMIT),
    own("max_length", "3", LIMIT),
    own("max_tokens_per_doc", "3", LIMIT),
    own("max_tokens_per_query", "3", LIMIT),
    own("max_tokens_per_text", "3", LIMIT),
    own("max_doc_length", "3", LIMIT),
    own("max_query_length", "3", LIMIT),
    usual("add_special_tokens", "false", &["true"], "special tokens are added"),
    usual("skip_special_tokens", "false", &["true"], "special tokens are left out"),
    usual("return_token_strs", "true", &["false"], "vLLM's is at /vllm/tokenize"),
    usual("padding", r#""longest""#, &[r#""do_not_pad""#, "false"], "padding changes no vector here"),
    of(Kind, "input_type", r#""query""#, &[], SIDES),
    of(Kind, "task_type", r#""search_query""#, &[], SIDES),
    of(Kind, "taskType", r#""RETRIEVAL_QUERY""#, &[], SIDES),
    of(Kind, "text_type", r#""query""#, &[], SIDES),
    own("task", r#""retrieval.query""#, SIDES),
    own("title", r#""a title""#, PROMPT),
    own("prompt", r#""a prompt""#, PROMPT),
    own("prompt_name", r#""query""#, PROMPT),
    own("prompt_template", r#""a {text}""#, PROMPT),
    of(Instruction, "instruction", r#""Find bugs""#, &[], PROMPT),
    of(Instruction, "instruct", r#""Find bugs""#, &[], PROMPT),
    own("chat_template", r#""a""#, TALK),
    own("chat_template_kwargs", r#"{"instruction": "Find bugs"}"#, TALK),
    usual("add_generation_prompt", "true", &["false"], TALK),
    usual("continue_final_message", "true", &["false"], TALK),
    own("tools", "[{}]", TALK),
    // Ranks and scores.
    of(Best, "top_n", "1", &[], "all results are given; leave it out"),
    of(Best, "top_k", "1", &[], "all results are given; leave it out"),
    of(Best, "topK", "1", &[], "all results are given; leave it out"),
    of(Best, "top_results", "1", &[], "all results are given; leave it out"),
    of(Documents, "return_documents", "true", &["false"], "results come without their texts"),
    of(Documents, "return_text", "true", &["false"], "results come without their texts"),
    of(Documents, "return_input", "true", &["false"], "results come without their texts"),
    usual("return_embeddings", "true", &["false"], "pairs have no vectors"),
    usual("rank_fields", r#"["title"]"#, &[r#"["text"]"#], "documents are ranked by 'text'; /v2/rerank reads it"),
    usual("rewrite_query", "true", &["false"], "queries are ranked as they are"),
    own("score_threshold", "0.5", "all results are given; leave it out"),
    own("threshold", "0.5", "all results are given; leave it out"),
    usual("raw_scores", "true", &["false"], SCORES),
    usual("return_logits", "true", &["false"], SCORES),
    usual("use_activation", "false", &["true"], SCORES),
    usual("activation", "false", &["true"], SCORES),
    usual("softmax", "false", &["true"], SCORES),
    own("function_to_apply", r#""none""#, SCORES),
    // Classes.
    own("parameters", r#"{"truncate": false}"#, "no parameters are read here; write them as fields of the body"),
    own("candidate_labels", r#"["a", "b"]"#, HYPOTHESES),
    usual("multi_label", "true", &["false"], HYPOTHESES),
    own("hypothesis_template", r#""{}""#, HYPOTHESES),
    own("labels", r#"["a", "b"]"#, ZERO_SHOT),
    own("examples", r#"[{"text": "a", "label": "b"}]"#, ZERO_SHOT),
    own("classifier_id", r#""a""#, ZERO_SHOT),
    own("preset", r#""a""#, ZERO_SHOT),
    own("targets", r#"["a"]"#, ZERO_SHOT),
    own("aggregation_strategy", r#""first""#, CLASSES),
    usual("ignore_labels", r#"["B"]"#, &[r#"["O"]"#], CLASSES),
    usual("stride", "1", &["0"], CLASSES),
    // Answers of other kinds.
    usual("stream", "true", &["false"], "the answer comes at once"),
    own("data", r#"{"a": 1}"#, "no model here has plugins"),
    usual("n", "2", &["1"], "there is one answer"),
    // Fields on which no answer depends.
    idle("user", "names the author of the texts"),
    idle("safety_identifier", "names the author of the texts"),
    idle("metadata", "is the client's own"),
    idle("tags", "is the client's own"),
    idle("store", "no answer is kept"),
    idle("service_tier", "orders the requests of one customer"),
    idle("priority", "orders the requests of one customer"),
    idle("provider", "chooses among the servers of a proxy"),
    idle("request_id", "names the request"),
    idle("rid", "names the request"),
    idle("cache_salt", "answers are not made of those of others"),
    idle("prompt_cache_key", "answers are not made of those of others"),
    idle("use_cache", "answers are not made of those of others"),
    idle("caching", "is a proxy's"),
    idle("cache", "is a proxy's"),
    idle("drop_params", "is a proxy's"),
    idle("no-log", "is a proxy's"),
    idle("num_retries", "is a proxy's"),
    idle("max_retries", "is a proxy's"),
    idle("timeout", "is a proxy's"),
    idle("wait_for_model", "a model that is not ready is 503"),
    idle("options", "are about how a model is loaded and answers are cached"),
    idle("keep_alive", "the operator decides which models stay loaded (--keep-alive)"),
    idle("verbose", "there is no more to tell"),
    idle("batch_size", "texts travel in batches of the server's own"),
    idle("webhook", "the answer comes to the client"),
    idle("return_len", "tokens are counted in any case"),
    idle("max_chunks_per_doc", "a document is scored as one chunk, never more than the most; /v2/rerank reads it"),
    idle("overlap_tokens", "a document is scored as one chunk"),
];

const FLOATS: Forms = &[r#""float""#, r#"["float"]"#, r#""float32""#, r#""fp32""#];
