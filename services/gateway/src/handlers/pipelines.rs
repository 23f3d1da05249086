//! The models of this gateway, as operations on texts see them.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::BoxFuture;
use trireme_inference::{InferError, InferRequest, InferResponse};
use trireme_operations::{OperationRequest, Origin, Pipeline, Pipelines, Task};

use super::infer::{Rows, Traced};
use super::state::Handlers;
use crate::registry::{Catalog, ServedModel};

impl Pipelines for Handlers {
    fn all(&self) -> Vec<Pipeline> {
        let catalog = self.registry.catalog();
        catalog.capabilities().filter_map(|(name, served, _)| pipeline(&catalog, name, served).ok()).collect()
    }

    fn unready(&self) -> Vec<String> {
        self.registry.catalog().unready()
    }

    fn ready(&self) -> bool {
        self.server_ready().is_ok_and(|ready| ready)
    }

    fn in_flight(&self) -> u64 {
        Handlers::in_flight(self) as u64
    }

    fn named(&self, name: &str) -> Result<Option<Pipeline>, InferError> {
        let catalog = self.registry.catalog();
        let Some(own) = catalog.own_name(name) else { return Ok(None) };
        let (_, served) = catalog.find(own, None)?;
        pipeline(&catalog, own, served).map(Some)
    }

    fn offering(&self, task: Task, name: Option<&str>) -> Result<Pipeline, InferError> {
        let catalog = self.registry.catalog();
        let (name, served) = catalog.offering(task, name)?;
        pipeline(&catalog, &name, &served)
    }

    fn tokenizing(&self, task: Task, name: Option<&str>) -> Result<Pipeline, InferError> {
        let catalog = self.registry.catalog();
        let (name, served) = catalog.tokenizing(task, name)?;
        pipeline(&catalog, &name, &served)
    }

    fn origin(&self, model: &Pipeline, outputs: &[String]) -> Origin {
        let catalog = self.registry.catalog();
        let found = catalog.find(&model.name, None);
        found.map(|(version, served)| catalog.origin_told(version, served, outputs)).unwrap_or_default()
    }

    fn labels(&self, model: &str, output: &str) -> Vec<String> {
        self.registry.catalog().labels().of_output(model, output).to_vec()
    }

    fn infer<'a>(
        &'a self,
        request: InferRequest,
        operation: &'a OperationRequest,
        task: Task,
    ) -> BoxFuture<'a, Result<InferResponse, InferError>> {
        Box::pin(async move {
            let (model, started) = (request.model.clone(), Instant::now());
            let embeds = [Task::Embed, Task::Sparse, Task::MultiVector].contains(&task);
            let traced = Traced { rows: Rows::Independent, embeds, ..Traced::new(request, operation.context.clone()) };
            let answered = Handlers::infer(self, traced).await;
            if embeds {
                self.counts.embedded(&model, started.elapsed(), answered.as_ref().err());
            }
            answered
        })
    }
}

fn pipeline(catalog: &Catalog, name: &str, served: &Arc<ServedModel>) -> Result<Pipeline, InferError> {
    let capabilities = served.capabilities.clone().map_err(InferError::internal)?;
    let steps = served.plan.steps.iter().filter_map(|step| catalog.find(&step.model, None).ok());
    let steps = steps.map(|(_, step)| step.config.clone()).collect();
    Ok(Pipeline { name: name.to_owned(), capabilities, config: served.config.clone(), steps })
}
