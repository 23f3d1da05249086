//! Which model answers a request that names an operation on texts: by its own name, by a served name, or because no other model
//! offers the operation.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use trireme_inference::{InferError, ModelKey, ParameterValue, Parameters, RoutePlan, equivalent_to, shown};
use trireme_operations::{Capabilities, Origin, TOKENIZER, Task};

use super::catalog::{Catalog, Model, ServedModel};

impl Catalog {
    /// The model for a request for an operation, by its own name or a served name; without a name the only model that offers the
    /// operation. Errors name the models that do; a model that is known and not ready is [`trireme_inference::ErrorCode::Unavailable`].
    pub fn offering(&self, task: Task, name: Option<&str>) -> Result<(String, Arc<ServedModel>), InferError> {
        let able = || self.capabilities().filter(|(_, _, capabilities)| capabilities.tasks.contains_key(&task));
        let names = || match able().map(|(name, ..)| format!("'{name}'")).collect::<Vec<_>>().as_slice() {
            [] => format!("no model here does '{task}'"),
            names => format!("models that do '{task}': {}", names.join(", ")),
        };
        let Some(name) = name else {
            let mut able = able();
            return match (able.next(), able.next()) {
                (Some((name, served, _)), None) => Ok((name.to_owned(), served.clone())),
                (None, _) => Err(self.nobody_does(task)),
                _ => Err(InferError::invalid_arg(format!("the request names no model; {}", names()))),
            };
        };
        let Some(own) = self.own_name(name) else {
            return Err(InferError::not_found(format!("model '{}' does not exist; {}", shown(name), names())));
        };
        let (_, served) = self.find(own, None)?;
        match &served.capabilities {
            Ok(capabilities) if capabilities.tasks.contains_key(&task) => Ok((own.to_owned(), served.clone())),
            Ok(_) => Err(InferError::unsupported(format!("model '{name}' does not do '{task}'; {}", names()))),
            Err(fault) => Err(InferError::internal(fault.clone())),
        }
    }

    /// The tokenizer for a request to tokenize or decode: the model of this name, or the step of it that tokenizes; without a
    /// name that of the only model that does something with texts, or the only tokenizer.
    pub fn tokenizing(&self, task: Task, name: Option<&str>) -> Result<(String, Arc<ServedModel>), InferError> {
        let does = |served: &ServedModel| {
            served.capabilities.as_ref().is_ok_and(|capabilities| capabilities.tasks.contains_key(&task))
        };
        let latest = |(name, model): (&String, &Model)| {
            let (_, served) = model.versions.last_key_value()?;
            does(served).then(|| (name.clone(), served.clone()))
        };
        let only = |name: &str| match self.capabilities().map(|(name, ..)| name).collect::<Vec<_>>().as_slice() {
            [one] => Ok((*one).to_owned()),
            _ => Err(InferError::invalid_arg(format!("the request names no model; models that do '{task}': {name}"))),
        };
        let name = match name {
            Some(name) => name.to_owned(),
            None => match self.models.iter().filter_map(latest).collect::<Vec<_>>().as_slice() {
                [] => return Err(self.nobody_does(task)),
                [one] => return Ok(one.clone()),
                able => only(&able.iter().map(|(name, _)| format!("'{name}'")).collect::<Vec<_>>().join(", "))?,
            },
        };
        let Some(own) = self.own_name(&name) else {
            return Err(InferError::not_found(format!("model '{}' does not exist", shown(&name))));
        };
        let (_, served) = self.find(own, None)?;
        if does(served) {
            return Ok((own.to_owned(), served.clone()));
        }
        for step in self.tokenizers(served) {
            let (_, tokenizer) = self.find(step, None)?;
            if does(tokenizer) {
                return Ok((step.to_owned(), tokenizer.clone()));
            }
        }
        let expected = match self.tokenizers(served).next() {
            Some(tokenizer) => format!("its tokenizer '{tokenizer}' declares none of the outputs for it"),
            None => format!("it has no step of backend '{TOKENIZER}'"),
        };
        Err(InferError::unsupported(format!("model '{name}' does not do '{task}': {expected}")))
    }

    /// The origin of answers of this version with these outputs, all if none is named, as workers tell it.
    pub fn origin_told(&self, version: i64, served: &ServedModel, outputs: &[String]) -> Origin {
        let inputs: Vec<&str> = served.inputs.iter().map(|input| input.name.as_str()).collect();
        let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
        let resolve = |model: &str, version| self.find(model, version).map(|(version, _)| version);
        let plan = self.plan(version, served, &Parameters::new());
        let Some(route) = plan.ok().and_then(|plan| plan.route(version, &outputs, &inputs, resolve).ok()) else {
            return Origin::default();
        };
        let steps: Vec<&ModelKey> = route.in_ledger_order().into_iter().map(|step| &step.model).collect();
        let space = self.spaces().told(steps.iter().copied());
        let known = self.spaces().equivalences(route.model(), steps.iter().copied());
        let equivalent = space.as_ref().map(|space| equivalent_to(&known, space)).unwrap_or_default();
        Origin { space, equivalent, files_at: self.spaces().files_at(steps) }
    }

    /// The spaces of the ways of each model whose requests go different ways: vectors of one model can be compared.
    pub(super) fn sides(&self) -> Vec<(ModelKey, BTreeSet<String>)> {
        let versions = self.models.values().flat_map(|model| &model.versions);
        let routed = versions.filter_map(|(&version, served)| {
            let routes = served.capabilities.as_ref().ok()?.routes.as_ref()?;
            let ways = routes.by_prompt.values().filter_map(|route| Some(self.find(route, Some(version)).ok()?.1));
            let ways = std::iter::once(served).chain(ways);
            let sides = ways.filter_map(|way| self.origin_told(version, way, &[]).space).collect();
            Some((ModelKey { name: served.plan.model.as_str().into(), version }, sides))
        });
        routed.collect()
    }

    /// The steps of a request with these parameters for a version of a model: those of the route that its prompt names, where the model
    /// has routes, else the model's own.
    pub fn plan<'a>(
        &'a self,
        version: i64,
        served: &'a ServedModel,
        parameters: &Parameters,
    ) -> Result<Cow<'a, RoutePlan>, InferError> {
        let own = Cow::Borrowed(&served.plan);
        let Some(routes) = served.capabilities.as_ref().ok().and_then(|capabilities| capabilities.routes.as_ref())
        else {
            return Ok(own);
        };
        let prompt = parameters.get("prompt_name").and_then(ParameterValue::as_str);
        match prompt.and_then(|prompt| routes.by_prompt.get(prompt)) {
            Some(route) => {
                let (_, route) = self.find(route, Some(version))?;
                // Answers, counts and errors are the model's own.
                Ok(Cow::Owned(RoutePlan { model: served.plan.model.clone(), ..route.plan.clone() }))
            }
            None if routes.has_usual => Ok(own),
            None => {
                let names = routes.by_prompt.keys().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
                Err(InferError::invalid_arg(format!(
                    "model '{}' has a way of its own for each kind of text and no usual one: say by parameter 'prompt_name' what the texts \
                     are, one of {names}",
                    served.plan.model
                )))
            }
        }
    }

    /// The error of a request that names no model, where no ready one does the operation: a model that is not ready may do it.
    fn nobody_does(&self, task: Task) -> InferError {
        match self.unready().as_slice() {
            [] => InferError::not_found(format!("no model here does '{task}'")),
            [first, ..] => InferError::unavailable(format!("no model that is ready does '{task}': {first}")),
        }
    }

    /// The steps of a model that tokenize.
    pub fn tokenizers<'a>(&'a self, served: &'a ServedModel) -> impl Iterator<Item = &'a str> {
        let tokenizes = |model: &&str| self.find(model, None).is_ok_and(|(_, step)| step.config.backend == TOKENIZER);
        served.plan.steps.iter().map(|step| step.model.as_str()).filter(tokenizes)
    }

    /// The ready models that do something with texts besides tokenizing, by name.
    pub fn capabilities(&self) -> impl Iterator<Item = (&str, &Arc<ServedModel>, &Capabilities)> {
        self.models.iter().filter_map(|(name, model)| {
            let (_, served) = model.versions.last_key_value()?;
            let capabilities = served
                .capabilities
                .as_deref()
                .ok()
                .filter(|capabilities| capabilities.tasks.keys().any(|task| !task.is_tokenizers()))?;
            Some((name.as_str(), served, capabilities))
        })
    }

    /// The own name of the model that is known by this one; a name that no model has stays as it is.
    pub fn own_name_or(&self, name: String) -> String {
        match self.own_name(&name).filter(|own| *own != name) {
            Some(own) => own.to_owned(),
            None => name,
        }
    }

    /// The own name of the model that is known by this one; a model that is ready comes before one that is not.
    pub fn own_name<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        if self.models.get(name).is_some_and(|model| !model.versions.is_empty()) {
            return Some(name);
        }
        let has = |names: &[String]| names.iter().any(|served| served == name);
        let ready =
            self.capabilities().find(|(_, _, capabilities)| has(&capabilities.served_names)).map(|(own, ..)| own);
        let known = || self.models.contains_key(name).then_some(name);
        let unready = || self.models.iter().find(|(_, model)| has(&model.served_names)).map(|(own, _)| own.as_str());
        ready.or_else(known).or_else(unready)
    }
}
