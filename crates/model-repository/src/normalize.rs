//! Fills in the fields that a configuration leaves out, as Triton shows them in `/config`. Doing it twice changes nothing.

use std::collections::BTreeSet;

use crate::backends::{BACKENDS, KnownBackend, ONNXRUNTIME};
use crate::proto::model_config::SchedulingChoice;
use crate::proto::model_instance_group::Kind;
use crate::proto::model_optimization_policy::PinnedMemoryBuffer;
use crate::proto::model_sequence_batching::StrategyChoice;
use crate::proto::model_version_policy::{Latest, PolicyChoice};
use crate::proto::{ModelConfig, ModelInstanceGroup, ModelVersionPolicy};
use crate::torch;

/// The platform of ensembles; they have no backend.
pub(crate) const ENSEMBLE: &str = "ensemble";

/// How long a sequence may be idle before its slot is free again, unless the configuration says otherwise.
const SEQUENCE_IDLE_MICROSECONDS: u64 = 1_000_000;

/// Facts about a configuration's surroundings that the defaults depend on.
#[derive(Debug, Default)]
pub(crate) struct Surroundings<'a> {
    /// The model's directory name, where it comes from a repository: the name it must have.
    pub(crate) directory: Option<&'a str>,
    /// Names of the files in the version directories.
    pub(crate) files: BTreeSet<String>,
    /// GPUs of this host that models may use.
    pub(crate) gpus: &'a [i32],
    /// Whether the model's own code is still to be asked for what the configuration lacks (`auto_complete_config`).
    pub(crate) completes: bool,
}

/// Fills in the defaults of `message`.
pub(crate) fn normalize(message: &mut ModelConfig, around: &Surroundings<'_>) {
    if message.name.is_empty() {
        message.name = around.directory.unwrap_or_default().to_owned();
    }
    let ensemble = matches!(message.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_)));
    if !ensemble && message.platform != ENSEMBLE {
        fill_backend(message, &around.files);
    }
    let policy = message.version_policy.get_or_insert_with(ModelVersionPolicy::default);
    policy.policy_choice.get_or_insert(PolicyChoice::Latest(Latest { num_versions: 1 }));
    fill_scheduler(message);
    if ensemble {
        // Triton derives an ensemble's transaction policy from its steps, and shows it.
        message.model_transaction_policy.get_or_insert_default();
    } else {
        // Ensembles may have neither of the following; validation refuses them.
        let optimization = message.optimization.get_or_insert_default();
        optimization.input_pinned_memory.get_or_insert(PinnedMemoryBuffer { enable: true });
        optimization.output_pinned_memory.get_or_insert(PinnedMemoryBuffer { enable: true });
        fill_instance_groups(message, around.gpus);
    }
}

/// Backend, platform and model file follow from each other, and from the files in the version directories.
fn fill_backend(message: &mut ModelConfig, files: &BTreeSet<String>) {
    torch::replace(message, files);
    if message.backend.is_empty() {
        let told = BACKENDS.iter().find(|known| {
            known.platform.is_some_and(|platform| platform == message.platform)
                || known.file.is_some_and(|file| file == message.default_model_filename)
        });
        let nothing_given = message.platform.is_empty() && message.default_model_filename.is_empty();
        let found = BACKENDS.iter().find(|known| nothing_given && known.file.is_some_and(|file| files.contains(file)));
        if let Some(known) = told.or(found) {
            message.backend = known.name.to_owned();
        }
    }
    if let Some(known) = KnownBackend::named(&message.backend) {
        if message.platform.is_empty() {
            message.platform = known.platform.unwrap_or_default().to_owned();
        }
        if message.default_model_filename.is_empty() {
            message.default_model_filename = known.file.unwrap_or_default().to_owned();
        }
    }
}

fn fill_scheduler(message: &mut ModelConfig) {
    let whole_batch = (message.max_batch_size > 0).then_some(message.max_batch_size);
    match &mut message.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => {
            if batching.preferred_batch_size.is_empty() {
                batching.preferred_batch_size.extend(whole_batch);
            }
        }
        Some(SchedulingChoice::SequenceBatching(batching)) => {
            if batching.max_sequence_idle_microseconds == 0 {
                batching.max_sequence_idle_microseconds = SEQUENCE_IDLE_MICROSECONDS;
            }
            if let Some(StrategyChoice::Oldest(oldest)) = &mut batching.strategy_choice
                && oldest.preferred_batch_size.is_empty()
            {
                oldest.preferred_batch_size.extend(whole_batch);
            }
        }
        Some(SchedulingChoice::EnsembleScheduling(_)) | None => {}
    }
}

/// At least one group; each with a name, a kind that names the device, a count, and for GPUs their indices.
fn fill_instance_groups(message: &mut ModelConfig, gpus: &[i32]) {
    if message.instance_group.is_empty() {
        message.instance_group.push(ModelInstanceGroup { name: message.name.clone(), ..Default::default() });
    }
    for (index, group) in message.instance_group.iter_mut().enumerate() {
        if group.name.is_empty() {
            group.name = format!("{}_{index}", message.name);
        }
        if group.kind == Kind::Auto as i32 {
            let on_gpu = !gpus.is_empty() && group.gpus.iter().all(|gpu| gpus.contains(gpu));
            group.kind = if on_gpu { Kind::Gpu } else { Kind::Cpu } as i32;
        }
        if group.count < 1 {
            // A second instance keeps the CPU busy while the first one waits for memory or prepares its batch.
            let pair = group.kind == Kind::Cpu as i32 && message.backend == ONNXRUNTIME;
            group.count = if pair { 2 } else { 1 };
        }
        if group.kind == Kind::Gpu as i32 && group.gpus.is_empty() {
            group.gpus = gpus.to_vec();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InstanceKind, ModelConfig, VersionPolicy, parse::read_text};

    fn on_host(text: &str, files: &[&str], gpus: &[i32]) -> ModelConfig {
        let files = files.iter().map(|&f| f.to_owned()).collect();
        ModelConfig::from_message(
            read_text(text, "m/config.pbtxt").unwrap(),
            &Surroundings { directory: Some("m"), files, gpus, completes: false },
        )
        .unwrap()
    }

    #[test]
    fn an_empty_text_beside_an_onnx_file_is_a_whole_configuration() {
        let config = on_host("", &["model.onnx", "model.py"], &[]);
        assert_eq!(config.name, "m");
        assert_eq!((config.backend.as_str(), config.platform.as_str()), ("onnxruntime", "onnxruntime_onnx"));
        assert_eq!(config.default_model_filename, "model.onnx");
        assert_eq!(config.version_policy, VersionPolicy::Latest(1));
        let group = &config.instance_groups[0];
        assert_eq!((group.name.as_str(), group.kind, group.count), ("m", InstanceKind::Cpu, 2));
        let pinned = config.message.optimization.clone().unwrap();
        assert!(pinned.input_pinned_memory.unwrap().enable && pinned.output_pinned_memory.unwrap().enable);
        assert!(config.optimization.pinned_memory);
        let off = on_host("optimization { output_pinned_memory { enable: false } }", &["model.onnx"], &[]);
        assert!(!off.optimization.pinned_memory);
    }

    #[test]
    fn backends_are_told_by_platform_file_name_or_directory() {
        for (text, files, backend) in [
            ("platform: 'onnxruntime_onnx'", &[][..], "onnxruntime"),
            ("platform: 'onnxruntime_onnx'", &["tokenizer.json"][..], "onnxruntime"),
            ("default_model_filename: 'model.onnx'", &[][..], "onnxruntime"),
            ("", &["tokenizer.json", "vocab.txt"][..], "tokenizer"),
            ("", &["tokenizer.json", "model.py"][..], "python"),
            ("backend: 'tokenizer'", &["model.onnx"][..], "tokenizer"),
            ("platform: 'tensorrt_plan'", &[][..], "tensorrt"),
            ("backend: 'postprocess'", &[][..], "postprocess"),
            ("backend: 'pytorch'", &["model.pt"][..], "pytorch"),
            ("platform: 'torch_aoti'", &["model.pt2"][..], "pytorch"),
            ("", &["model.pt"][..], "pytorch"),
        ] {
            assert_eq!(on_host(text, files, &[]).backend, backend, "{text} {files:?}");
        }
    }

    #[test]
    fn groups_get_names_and_counts_and_auto_finds_the_gpu() {
        let text = "backend: 'onnxruntime' instance_group [{}, { name: 'mine' count: 3 kind: KIND_CPU }]";
        let groups = |gpus| on_host(text, &[], gpus).instance_groups;
        let summary = |gpus| groups(gpus).into_iter().map(|g| (g.name, g.kind, g.count)).collect::<Vec<_>>();
        assert_eq!(
            summary(&[0, 1]),
            [("m_0".to_owned(), InstanceKind::Gpu, 1), ("mine".to_owned(), InstanceKind::Cpu, 3),]
        );
        assert_eq!(groups(&[0, 1])[0].gpus, [0, 1]);
        assert_eq!(summary(&[])[0], ("m_0".to_owned(), InstanceKind::Cpu, 2));
        assert_eq!(on_host("backend: 'tokenizer'", &[], &[]).instance_groups[0].count, 1);
    }

    #[test]
    fn an_empty_dynamic_batching_block_prefers_whole_batches() {
        let config = on_host("backend: 'onnxruntime' max_batch_size: 8 dynamic_batching {}", &[], &[]);
        assert_eq!(config.dynamic_batching.unwrap().preferred_batch_sizes, [8]);
        let config = on_host("backend: 'onnxruntime' dynamic_batching {}", &[], &[]);
        assert!(config.dynamic_batching.unwrap().preferred_batch_sizes.is_empty());
    }

    #[test]
    fn an_ensemble_says_that_it_is_not_decoupled() {
        let text = "platform: 'ensemble' input { name: 'i' data_type: TYPE_FP32 dims: 1 }
            output { name: 'o' data_type: TYPE_FP32 dims: 1 }
            ensemble_scheduling { step { model_name: 'n' input_map { key: 'a' value: 'i' }
                output_map { key: 'b' value: 'o' } } }";
        let message = on_host(text, &[], &[]).message;
        assert_eq!(message.model_transaction_policy.map(|policy| policy.decoupled), Some(false));
        assert!(on_host("backend: 'onnxruntime'", &[], &[]).message.model_transaction_policy.is_none());
    }

    #[test]
    fn normalizing_twice_changes_nothing() {
        let text = "max_batch_size: 4 sequence_batching { oldest {} } instance_group [{ gpus: [0] }]";
        let once = on_host(text, &["model.onnx"], &[0]).message;
        let mut twice = once.clone();
        normalize(&mut twice, &Surroundings::default());
        assert_eq!(once, twice);
    }
}
