//! The input `task_id`, which chooses one of a model's adapters for a whole run (jina-embeddings-v3). The number comes from the request,
//! so that requests of different tasks do not share a run.

use std::sync::Arc;

use trireme_engine::{ExecuteRequest, LoadError};
use trireme_inference::{DataType, InferError, ParameterValue, Tensor, TensorSpec};
use trireme_model_repository::ModelConfig;

/// The name of the input, and of the request parameter that says it.
pub const INPUT: &str = "task_id";

/// The parameter of configurations that leave the input to requests: the names of the tasks.
pub const NAMES: &str = "task_ids";
const DEFAULT: &str = "default_task_id";

/// The names that prompts of queries and documents have, each with the end of a task's name.
const SIDES: [(&str, &str); 4] =
    [("query", ".query"), ("document", ".passage"), ("passage", ".passage"), ("corpus", ".passage")];

/// The tasks of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tasks {
    /// Their names, in the order of their numbers; empty where the configuration names none.
    names: Vec<String>,
    /// The number for requests that say none.
    default: Option<i64>,
}

/// A request that is made at the load, for the first task.
pub fn of_first_task(request: ExecuteRequest) -> ExecuteRequest {
    let first = (INPUT.to_owned(), ParameterValue::Int64(0));
    ExecuteRequest { parameters: Arc::new([first].into()), ..request }
}

// === impl Tasks ===

impl Tasks {
    /// The tasks by the configuration's parameters.
    pub fn of(config: &ModelConfig) -> Result<Tasks, LoadError> {
        let fault = |key: &str, value: &str, expected: &str| {
            LoadError::Config(format!("model '{}': parameter '{key}' is '{value}', expected {expected}", config.name))
        };
        let mut tasks = Tasks::default();
        if let Some(names) = config.parameters.get(NAMES) {
            let expected = r#"a JSON array of names, as ["retrieval.query", "retrieval.passage"]"#;
            tasks.names = serde_json::from_str(names).map_err(|_| fault(NAMES, names, expected))?;
        }
        if let Some(default) = config.parameters.get(DEFAULT) {
            let number = default.trim().parse().map_or_else(|_| tasks.named(default), |number| tasks.checked(number));
            tasks.default = Some(number.ok_or_else(|| fault(DEFAULT, default, &tasks.expected()))?);
        }
        Ok(tasks)
    }

    /// The number of a request's task: that of parameter `task_id`, or that of the prompt which has a task's name.
    pub fn number(&self, request: &ExecuteRequest) -> Result<i64, InferError> {
        let refused = |found: String| {
            InferError::invalid_arg(format!("parameter '{INPUT}' is {found}, expected {}", self.expected()))
        };
        if let Some(value) = request.parameters.get(INPUT) {
            let number = match value.as_str() {
                Some(name) => self.named(name),
                None => value.as_u64().and_then(|number| i64::try_from(number).ok()).and_then(|it| self.checked(it)),
            };
            return number.ok_or_else(|| refused(value.to_string()));
        }
        let prompt = request.parameters.get("prompt_name").and_then(ParameterValue::as_str);
        let by_prompt = prompt.and_then(|prompt| self.named(prompt));
        by_prompt.or(self.default).ok_or_else(|| refused("missing".to_owned()))
    }

    /// The tensor of this number.
    pub fn tensor(input: &TensorSpec, number: i64) -> Result<Tensor, InferError> {
        let shape: Vec<i64> = input.shape.iter().map(|_| 1).collect();
        Ok(match input.datatype {
            DataType::Int32 => Tensor::from_values(&*input.name, shape, vec![number as i32])?,
            _ => Tensor::from_values(&*input.name, shape, vec![number])?,
        })
    }

    fn named(&self, name: &str) -> Option<i64> {
        let end = SIDES.iter().find(|(side, _)| *side == name).map(|(_, end)| *end);
        let place = self.names.iter().position(|known| known == name).or_else(|| {
            let end = end?;
            self.names.iter().position(|known| known.ends_with(end))
        });
        place.map(|place| place as i64)
    }

    fn checked(&self, number: i64) -> Option<i64> {
        let is_one = number >= 0 && (self.names.is_empty() || (number as usize) < self.names.len());
        is_one.then_some(number)
    }

    fn expected(&self) -> String {
        match self.names.as_slice() {
            [] => "the number of a task from 0".to_owned(),
            names => format!("one of {}, or its number from 0", names.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use trireme_inference::{Parameters, Shape};

    use super::*;

    fn tasks(parameters: &[(&str, &str)]) -> Result<Tasks, String> {
        let parameter =
            |(key, value): &(&str, &str)| format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}");
        let text = parameters.iter().map(parameter).collect::<String>();
        let config = ModelConfig::parse(&format!("backend: 'onnxruntime' {text}"), "m").unwrap();
        Tasks::of(&config).map_err(|error| error.to_string())
    }

    fn asked(parameters: &[(&str, ParameterValue)]) -> ExecuteRequest {
        let parameters: Parameters =
            parameters.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        ExecuteRequest { parameters: Arc::new(parameters), ..ExecuteRequest::made_up("r", Vec::new(), ["y"]) }
    }

    const JINA: (&str, &str) = (NAMES, r#"["retrieval.query", "retrieval.passage", "separation"]"#);

    #[test]
    fn the_task_is_said_by_number_by_name_or_by_the_prompt() {
        let tasks = tasks(&[JINA]).unwrap();
        let number = |parameters: &[(&str, ParameterValue)]| tasks.number(&asked(parameters)).map_err(|e| e.message);
        assert_eq!(number(&[(INPUT, ParameterValue::Int64(2))]), Ok(2));
        assert_eq!(number(&[(INPUT, "separation".into())]), Ok(2));
        assert_eq!(number(&[(INPUT, "passage".into())]), Ok(1));
        assert_eq!(number(&[("prompt_name", "retrieval.passage".into())]), Ok(1));
        assert_eq!(number(&[("prompt_name", "query".into())]), Ok(0));
        let expected = "expected one of retrieval.query, retrieval.passage, separation, or its number from 0";
        assert_eq!(number(&[]), Err(format!("parameter 'task_id' is missing, {expected}")));
        assert_eq!(number(&[(INPUT, ParameterValue::Int64(3))]), Err(format!("parameter 'task_id' is 3, {expected}")));
        assert_eq!(
            number(&[("prompt_name", "other".into())]),
            Err(format!("parameter 'task_id' is missing, {expected}"))
        );
        assert_eq!(tasks.number(&of_first_task(asked(&[]))).unwrap(), 0);
    }

    #[test]
    fn a_configuration_may_say_the_usual_task() {
        let usual = tasks(&[JINA, (DEFAULT, "separation")]).unwrap();
        assert_eq!(usual.number(&asked(&[])).unwrap(), 2);
        assert_eq!(tasks(&[(DEFAULT, "4")]).unwrap().number(&asked(&[])).unwrap(), 4);
        assert!(
            tasks(&[JINA, (DEFAULT, "7")])
                .unwrap_err()
                .contains("'default_task_id' is '7', expected one of retrieval.query")
        );
        assert!(tasks(&[(NAMES, "{}")]).unwrap_err().contains("expected a JSON array of names"));
    }

    #[test]
    fn the_tensor_has_one_element() {
        let spec = |shape: &[i64]| TensorSpec {
            name: INPUT.into(),
            datatype: DataType::Int64,
            shape: Shape::from(shape.to_vec()),
            optional: false,
        };
        for shape in [&[][..], &[1], &[-1]] {
            let tensor = Tasks::tensor(&spec(shape), 3).unwrap();
            assert_eq!((tensor.shape().len(), *tensor.values::<i64>().unwrap().first().unwrap()), (shape.len(), 3));
        }
    }
}
