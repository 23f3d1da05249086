//! The sizes of deployments.

use clap::ValueEnum;

use crate::ModelFolder;

/// A size of deployment. The bars are meant for the largest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Size {
    /// A tenth of the largest: 100 models, 20 workers, 2 gateways.
    Small,
    /// A third of the largest: 340 models, 68 workers, 7 gateways.
    Medium,
    /// 1000 models, 200 workers, 20 gateways.
    Large,
}

/// The parts of a deployment. Workers of one group host the same models.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Groups of workers.
    pub groups: usize,
    /// Models of a group, each of which every worker of the group hosts.
    pub models_per_group: usize,
    /// Workers of a group.
    pub workers_per_group: usize,
    /// Gateways, the one that is a process of its own included.
    pub gateways: usize,
    /// The configuration of each model apart from its tensors.
    pub model: &'static str,
}

// === impl Size ===

impl Size {
    /// The size's name.
    pub fn name(self) -> &'static str {
        match self {
            Size::Small => "small",
            Size::Medium => "medium",
            Size::Large => "large",
        }
    }

    /// The parts of a deployment of this size: each worker hosts 20 models, and each model is hosted by four workers.
    pub fn shape(self) -> Shape {
        let (groups, gateways) = match self {
            Size::Small => (5, 2),
            Size::Medium => (17, 7),
            Size::Large => (50, 20),
        };
        Shape { groups, models_per_group: 20, workers_per_group: 4, gateways, model: "max_batch_size: 0" }
    }
}

// === impl Shape ===

impl Shape {
    /// Models of the deployment.
    pub fn models(&self) -> usize {
        self.groups * self.models_per_group
    }

    /// Workers of the deployment.
    pub fn workers(&self) -> usize {
        self.groups * self.workers_per_group
    }

    /// The name of a model by its number in the deployment, from 0.
    pub fn model_name(&self, number: usize) -> String {
        format!("model-{:04}", number)
    }

    /// The model repository of each group.
    pub fn repositories(&self) -> Vec<ModelFolder> {
        (0..self.groups).map(|group| self.repository(group)).collect()
    }

    fn repository(&self, group: usize) -> ModelFolder {
        let first = group * self.models_per_group;
        (first..first + self.models_per_group)
            .fold(ModelFolder::new(), |folder, number| folder.model(&self.model_name(number), &self.config()))
    }

    /// A configuration about as long as a real one after auto-completion.
    fn config(&self) -> String {
        format!(
            "backend: 'identity' {}
             input [{{ name: 'INPUT0' data_type: TYPE_FP32 dims: [-1] }}]
             output [{{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }}]
             instance_group [{{ count: 1 kind: KIND_CPU }}]
             version_policy {{ latest {{ num_versions: 1 }} }}
             parameters [{{ key: 'description' value {{ string_value: '{}' }} }}]",
            self.model,
            "a sentence that stands for what real configurations say. ".repeat(8)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_as_they_are_said_to_be() {
        let parts = |size: Size| {
            let shape = size.shape();
            [shape.models(), shape.workers(), shape.gateways]
        };
        assert_eq!(parts(Size::Small), [100, 20, 2]);
        assert_eq!(parts(Size::Medium), [340, 68, 7]);
        assert_eq!(parts(Size::Large), [1000, 200, 20]);
    }
}
