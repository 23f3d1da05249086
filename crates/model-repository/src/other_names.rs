//! Names that clients of other servers give the tensors of a model of texts over the v2 protocol: NVIDIA NIM's `text` and `embeddings`,
//! LiteLLM's `input_text`, and the `input-1` of MLServer's codec of requests. A model that has a tensor of such a name keeps it.

use trireme_inference::{DataType, InferResponse, RequestedOutput, UncheckedTensor};

use crate::ModelConfig;
use crate::task::Task;

/// The only texts of a request.
const TEXTS: [&str; 3] = ["text", "input_text", "input-1"];

/// The vectors that NIM's clients read, who call their texts by the first of [`TEXTS`].
const VECTORS: &str = "embeddings";

/// An output that a client knows by another name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherName(String);

// === impl ModelConfig ===

impl ModelConfig {
    /// Gives tensors that have other servers' names those of the model, where it does a `task` and no tensor of it has the name. Returns the
    /// output that has to get its other name in the answer.
    pub fn take_other_names(
        &self,
        inputs: &mut [UncheckedTensor],
        outputs: &mut [RequestedOutput],
    ) -> Option<OtherName> {
        let tasks = self.parameters.get("task")?;
        let is_free = |name: &str| {
            self.inputs.iter().all(|input| input.name != name) && self.outputs.iter().all(|output| output.name != name)
        };
        let mut asks_as_nim = false;
        if let ([given], [own]) = (&mut *inputs, &self.inputs[..])
            && own.datatype == DataType::Bytes
            && let Some(other) = TEXTS.into_iter().find(|name| *given.name == **name && is_free(name))
        {
            asks_as_nim = other == TEXTS[0];
            given.name = own.name.as_str().into();
        }
        let embeds = tasks.split(',').any(|task| Task::named(task.trim()) == Some(Task::Embed));
        let own = Task::Embed.find(&self.output_specs()).filter(|_| embeds && is_free(VECTORS))?.pop()?;
        let takes_all = outputs.is_empty() && asks_as_nim;
        let asked = outputs.iter_mut().find(|output| output.name == VECTORS);
        match asked {
            Some(asked) => asked.name.clone_from(&own),
            None if takes_all => {}
            None => return None,
        }
        Some(OtherName(own))
    }
}

// === impl OtherName ===

impl OtherName {
    /// Gives the output the name that its client knows.
    pub fn give(&self, response: &mut InferResponse) {
        for output in response.outputs.iter_mut().filter(|output| output.name() == self.0) {
            *output = output.clone().renamed(VECTORS);
        }
    }
}

#[cfg(test)]
mod tests {
    use trireme_inference::Tensor;

    use super::*;

    fn config(input: &str, output: &str, more: &str) -> ModelConfig {
        let text = format!(
            "backend: 'b' input {{ name: '{input}' data_type: TYPE_STRING dims: [-1] }}
             output {{ name: '{output}' data_type: TYPE_FP32 dims: [-1, 4] }} {more}"
        );
        ModelConfig::parse(&text, "m").unwrap()
    }

    /// The names at the model of an input and an output, and whether the output gets another one in the answer.
    fn taken(config: &ModelConfig, input: &str, output: Option<&str>) -> (String, Option<String>, bool) {
        let tensor = Tensor::from_bytes_elements(input, [1], &["a"]).unwrap();
        let mut inputs = [UncheckedTensor {
            name: input.into(),
            datatype: DataType::Bytes,
            shape: [1].into(),
            data: tensor.data().clone(),
        }];
        let mut outputs: Vec<_> =
            output.iter().map(|&name| RequestedOutput { name: name.to_owned(), classification: 0 }).collect();
        let renamed = config.take_other_names(&mut inputs, &mut outputs).is_some();
        (inputs[0].name.to_string(), outputs.pop().map(|output| output.name), renamed)
    }

    #[test]
    fn texts_and_vectors_may_have_the_names_of_other_servers() {
        let task = "parameters { key: 'task' value { string_value: 'embed, sparse' } }";
        let embeds = config("TEXT", "sentence_embedding", task);
        let own = || Some("sentence_embedding".to_owned());
        assert_eq!(taken(&embeds, "text", Some("embeddings")), ("TEXT".to_owned(), own(), true));
        assert_eq!(taken(&embeds, "TEXT", Some("embeddings")), ("TEXT".to_owned(), own(), true));
        assert_eq!(taken(&embeds, "text", None), ("TEXT".to_owned(), None, true));
        assert_eq!(taken(&embeds, "text", Some("sentence_embedding")), ("TEXT".to_owned(), own(), false));
        assert_eq!(taken(&embeds, "input_text", None), ("TEXT".to_owned(), None, false));
        assert_eq!(taken(&embeds, "input-1", None), ("TEXT".to_owned(), None, false));
        assert_eq!(taken(&embeds, "TEXT", None), ("TEXT".to_owned(), None, false));
    }

    #[test]
    fn names_that_a_model_has_are_its_own() {
        let task = "parameters { key: 'task' value { string_value: 'embed' } }";
        let named = config("input_text", "embeddings", task);
        assert_eq!(taken(&named, "input_text", None), ("input_text".to_owned(), None, false));
        assert!(!taken(&named, "text", Some("embeddings")).2);
        // As in Triton, where a model does no task.
        let plain = config("TEXT", "sentence_embedding", "");
        let as_asked = ("text".to_owned(), Some("embeddings".to_owned()), false);
        assert_eq!(taken(&plain, "text", Some("embeddings")), as_asked);
    }
}
