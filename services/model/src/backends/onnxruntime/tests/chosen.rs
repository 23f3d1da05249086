//! Parameter `accelerator` with `auto`: the choice, and how many sessions it costs.

use trireme_engine::ModelSource;

use super::accelerated::{ONE, answers, assert_near, encoder, parameter};
use super::*;

const TWO: &str = "instance_group [{ count: 2 kind: KIND_CPU }]";

/// The result of `task`, and how many sessions it opened on this thread.
fn counted<T>(task: impl FnOnce() -> T) -> (T, usize) {
    let before = sessions::OPENED.get();
    let result = task();
    (result, sessions::OPENED.get() - before)
}

fn padded(instances: &str) -> String {
    parameter("pad_inputs", "input_ids:0, attention_mask:0") + instances
}

/// Two settings of the plain provider stand for two providers, so that this runs on every processor.
#[test]
fn a_trial_opens_two_sessions_and_the_one_that_was_measured_is_there() {
    let folder = committed("tiny_encoder");
    let path = folder.join("1/model.onnx");
    let environment = library::environment(None).unwrap();
    let options = OnnxRuntimeOptions::default();
    let by_load = parameter("layouts", "by_load");
    for (instances, stays) in [(TWO, true), (ONE, false), (&by_load, true)] {
        let config = encoder(&padded(instances));
        let source = ModelSource {
            config: &config,
            version: 1,
            model_path: &folder,
            version_path: &folder.join("1"),
            auto_complete: false,
            uploaded: None,
            calls: Default::default(),
        };
        let declaration = Declaration::parse(&config).unwrap().unwrap();
        let plain = Settings::new(&config, &options, 2, &[]).unwrap();
        let check = settings::PrecisionCheck { min_cosine: 0.9999, refuse: true };
        let other = Settings { graph_level: Some(Settings::NO_OPTIMISATION), precision: Some(check), ..plain.clone() };
        let trial = auto::Trial {
            source: &source,
            config: &config,
            declaration: &declaration,
            options: &options,
            environment: &environment,
            path: &path,
            other: "no optimisation",
        };
        let (found, opened) = counted(|| trial.run(&plain, &other).unwrap());
        assert!(found.rates.plain > 0.0 && found.rates.other > 0.0, "{:?}", found.rates);
        assert_eq!((opened, found.plain.is_some(), found.other.is_some()), (2, stays, true), "{instances}");

        let imprecise = Settings { precision: Some(settings::PrecisionCheck { min_cosine: 1.1, ..check }), ..other };
        let (found, opened) = counted(|| trial.run(&plain, &imprecise).unwrap());
        assert!(found.rates.plain > 0.0 && found.rates.other == 0.0, "{:?}", found.rates);
        assert_eq!((opened, found.plain.is_some(), found.other.is_some()), (2, stays, false), "{instances}");
    }
}

#[test]
fn the_fastest_provider_is_chosen_once() {
    let cache = tempfile::tempdir().unwrap();
    let options = OnnxRuntimeOptions { cost_model_cache: Some(cache.path().to_owned()), ..Default::default() };
    let expected = answers(&mut load(committed("tiny_encoder"), &encoder(&padded(ONE))).unwrap().instances[0]);
    let config = encoder(&(parameter("accelerator", "auto") + &padded(TWO)));
    let kept = || {
        let files = std::fs::read_dir(cache.path()).into_iter().flatten().flatten();
        files
            .filter_map(|file| std::fs::read_to_string(file.path()).ok())
            .filter(|text| text.contains("other: "))
            .collect::<Vec<_>>()
    };
    let load_it = |config: &ModelConfig| {
        let backend = OnnxRuntime::new(options.clone());
        let (loaded, opened) = counted(|| conformance::load(&backend, config, committed("tiny_encoder")));
        let mut loaded = loaded.unwrap();
        // OpenVINO computes in bfloat16 on a processor with AMX.
        assert_near(&answers(&mut loaded.instances[0]), &expected, 3e-2);
        let accelerators = &loaded.config.optimization.cpu_accelerators;
        (accelerators.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(), opened)
    };
    let (chosen, opened) = load_it(&config);
    let environment = library::environment(None).unwrap();
    if !providers::has_openvino(&environment, None).unwrap() {
        assert!(chosen.is_empty() && kept().is_empty(), "there is nothing to measure");
        assert_eq!(opened, 2, "one for each instance");
        return eprintln!("skipped: there is no OpenVINO here that takes this processor");
    }
    assert_eq!(opened, 3, "one for each instance, and that of the provider that does not serve");
    let [measured] = &kept()[..] else { panic!("one choice is kept, not {:?}", kept()) };
    assert_eq!(load_it(&config), (chosen, 2), "the cache has it");
    // The choice is the cache's, whatever was measured.
    let [file] = &std::fs::read_dir(cache.path())
        .unwrap()
        .flatten()
        .filter(|file| std::fs::read_to_string(file.path()).unwrap() == *measured)
        .collect::<Vec<_>>()[..]
    else {
        panic!("one file")
    };
    for (rate, name) in [("1e9", Some("openvino".to_owned())), ("0", None)] {
        let head = measured.split("other: ").next().unwrap();
        std::fs::write(file.path(), format!("{head}other: {rate}\n")).unwrap();
        assert_eq!(load_it(&config), (Vec::from_iter(name), 2));
    }
    // Layouts by load: one session writes the optimised model of which all plain ones are made.
    let config = encoder(&(parameter("accelerator", "auto") + &parameter("layouts", "by_load") + &padded("")));
    let (first, next) = (load_it(&config), load_it(&config));
    assert_eq!(first, (next.0, next.1 + 1), "one session more than the next load");
}
