//! Labels of requests over the v2 protocol. For a model of NLI texts and labels become pairs, whose logits become a score for each label. A model
//! whose rows hold the labels takes them as the parameters `classifications`, `structures` and `relations`, and answers what its request asks for.

use bytes::Bytes;
use trireme_inference::{DataType, InferError, InferRequest, ParameterValue, RequestedOutput, Tensor, UncheckedTensor};
use trireme_model_repository::{CLASSES, Nli};
use trireme_operations::{Candidates, Capabilities, Task, ZeroShot};
use trireme_server::budget::BytesPermit;

use super::Handlers;

/// The parameters that name labels.
const READ: [&str; 5] = ["candidate_labels", "classifications", "labels", "structures", "relations"];

/// The parameters among them that ask for records.
const OF_RECORDS: [&str; 2] = ["structures", "relations"];

/// How the logits of pairs become scores of a request's labels.
#[derive(Clone, Debug)]
pub struct LabelScores {
    candidates: Candidates,
    nli: Nli,
    /// How many classes the model has.
    classes: usize,
    /// The output that holds the logits, and the scores then.
    output: String,
}

impl Handlers {
    /// Reads the labels of a request, where its parameters have some and the model does `zero_shot`.
    pub(super) fn take_labels(
        &self,
        request: &mut InferRequest,
        permit: &BytesPermit,
    ) -> Result<Option<LabelScores>, InferError> {
        if !READ.iter().any(|name| request.parameters.contains_key(*name)) {
            return Ok(None);
        }
        // If there is no such model, the caller's next step answers with the error.
        let Ok((_, served)) = self.find_model(&request.model, request.version) else { return Ok(None) };
        let Ok(capabilities) = &served.capabilities else { return Ok(None) };
        let names = |task| capabilities.tasks.contains_key(&task);
        let has = |name: &str| request.parameters.contains_key(name);
        match capabilities.zero_shot() {
            Some(ZeroShot::Nli(nli)) => self.pair_with_labels(request, capabilities, nli, permit),
            Some(ZeroShot::Schema) => take_schema(request, capabilities).map(|()| None),
            // A model of another kind may read a parameter of this name.
            None if names(Task::Classify) && has("candidate_labels") => Err(InferError::unsupported(format!(
                "model '{}' does not do 'zero_shot', which parameter 'candidate_labels' asks for: it has no label 'entailment'",
                request.model
            ))),
            None if names(Task::TokenClassify) && (has("candidate_labels") || has("classifications")) => {
                Err(InferError::unsupported(format!(
                    "model '{}' finds entities alone: leave 'classifications' and 'candidate_labels' out. A graph of GLiNER2 that classifies has an \
                     output 'class_logits', which trireme export makes",
                    request.model
                )))
            }
            None => Ok(None),
        }
    }

    /// Pairs each text with the hypothesis of each label, where the parameters have `candidate_labels`. The repeated bytes count as the request's own.
    fn pair_with_labels(
        &self,
        request: &mut InferRequest,
        capabilities: &Capabilities,
        nli: Nli,
        permit: &BytesPermit,
    ) -> Result<Option<LabelScores>, InferError> {
        let Some(candidates) = Candidates::from_parameters(&request.parameters)? else { return Ok(None) };
        let [texts, hypotheses, ..] = capabilities.inputs.as_slice() else { return Ok(None) };
        if request.inputs.iter().any(|input| *hypotheses.name == input.name) {
            return Err(InferError::invalid_arg(format!(
                "input '{}' and parameter 'candidate_labels' are both given, expected one: the hypotheses are made of the labels",
                hypotheses.name
            )));
        }
        let output = capabilities.tasks.get(&Task::ZeroShot).and_then(|outputs| outputs.first());
        let output = output.cloned().unwrap_or_default();
        if request.outputs.iter().any(|asked| asked.name == output && asked.classification > 0) {
            return Err(InferError::invalid_arg(format!(
                "output '{output}' is asked for as classes and parameter 'candidate_labels' is given: leave 'classification' out, and \
                 take the scores in the order of the labels"
            )));
        }
        // Clients may call the only input by another name. A missing one is named by the check of all inputs.
        let [given] = request.inputs.as_slice() else { return Ok(None) };
        let given = given.clone();
        let tensor = given.clone().check()?;
        let rows: Vec<&[u8]> = tensor.bytes_elements()?.collect();
        let of_labels = candidates.hypotheses()?;
        let (firsts, hypotheses_of) = candidates.pairs(&rows, &of_labels)?;
        let size = |texts: &[&[u8]]| texts.iter().map(|text| text.len() as u64 + 4).sum::<u64>();
        let hypotheses_of: Vec<&[u8]> = hypotheses_of.iter().map(|text| text.as_bytes()).collect();
        permit.take(size(&firsts) + size(&hypotheses_of)).map_err(InferError::from)?;
        let as_input = |name: &str, texts: &[&[u8]]| -> Result<UncheckedTensor, InferError> {
            let rows = texts.len() as i64;
            let shape: Vec<i64> = std::iter::once(rows).chain(given.shape.iter().skip(1).copied()).collect();
            let mut data = Vec::with_capacity(size(texts) as usize);
            for text in texts {
                let length =
                    u32::try_from(text.len()).map_err(|_| InferError::invalid_arg("a text is 4 GiB or longer"))?;
                data.extend_from_slice(&length.to_le_bytes());
                data.extend_from_slice(text);
            }
            let (name, shape) = (name.into(), shape.as_slice().into());
            Ok(UncheckedTensor { name, datatype: DataType::Bytes, shape, data: Bytes::from(data) })
        };
        let pairs = [as_input(&texts.name, &firsts)?, as_input(&hypotheses.name, &hypotheses_of)?];
        request.inputs = pairs.into();
        request.parameters.insert("raw_scores".to_owned(), ParameterValue::Bool(true));
        Ok(Some(LabelScores { candidates, nli, classes: capabilities.labels.len(), output }))
    }
}

/// Makes `candidate_labels` a task of `classifications`, and names the outputs that hold what the labels ask for, where the request names none.
fn take_schema(request: &mut InferRequest, capabilities: &Capabilities) -> Result<(), InferError> {
    let records = OF_RECORDS.iter().find(|name| request.parameters.contains_key(**name));
    if let Some(name) = records.filter(|_| !capabilities.tasks.contains_key(&Task::Extract)) {
        return Err(InferError::unsupported(format!(
            "parameter '{name}' asks for records, and the graph of model '{}' has no output 'record_logits': make it again with trireme export, or leave \
             the parameter out",
            request.model
        )));
    }
    let outputs = |task| capabilities.tasks.get(&task).into_iter().flatten().cloned();
    let mut wanted: Vec<String> = Vec::new();
    if request.parameters.contains_key("labels") {
        wanted.extend(outputs(Task::TokenClassify));
    }
    if records.is_some() {
        wanted.extend(outputs(Task::Extract));
    }
    let candidates = Candidates::from_parameters(&request.parameters)?;
    if request.parameters.contains_key("classifications") {
        if candidates.is_some() {
            return Err(InferError::invalid_arg(
                "parameters 'candidate_labels' and 'classifications' are both given, expected one: 'candidate_labels' is a task of 'classifications'",
            ));
        }
        wanted.push(CLASSES.to_owned());
    }
    if let Some(candidates) = candidates {
        request.parameters.remove("candidate_labels");
        request.parameters.insert("classifications".to_owned(), candidates.schema()?.as_str().into());
        wanted.extend(outputs(Task::ZeroShot));
    }
    if request.outputs.is_empty() {
        request.outputs = wanted.into_iter().map(|name| RequestedOutput { name, classification: 0 }).collect();
    }
    Ok(())
}

// === impl LabelScores ===

impl LabelScores {
    /// Puts the scores of the labels, `[texts, labels]`, in the place of the pairs' logits, `[pairs, classes]`.
    pub(super) fn fold(&self, tensors: &mut [Tensor]) -> Result<(), InferError> {
        let Some(tensor) = tensors.iter_mut().find(|tensor| tensor.name() == self.output) else { return Ok(()) };
        let pairs = match **tensor.shape() {
            [pairs, classes] if classes == self.classes as i64 => pairs,
            _ => {
                return Err(InferError::internal(format!(
                    "output '{}' has shape {}, expected {} scores for each pair, one for each label",
                    self.output,
                    tensor.shape(),
                    self.classes
                )));
            }
        };
        let labels = self.candidates.labels().len() as i64;
        let scores = self.candidates.scores(self.nli, &tensor.values::<f32>()?, self.classes);
        *tensor = Tensor::from_values(tensor.name(), [pairs / labels, labels], scores)?;
        Ok(())
    }
}
