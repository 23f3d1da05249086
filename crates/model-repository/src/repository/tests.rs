//! Repositories made in temporary folders.

use super::*;

/// Makes a repository of these files; names that end in a slash are directories.
fn repository(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = root.path().join(name);
        if name.ends_with('/') {
            fs::create_dir_all(&path).unwrap();
        } else {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, content).unwrap();
        }
    }
    root
}

fn open(root: &tempfile::TempDir) -> Result<Repository, Vec<String>> {
    Repository::open(&[root.path().to_owned()]).map_err(|faults| {
        faults.iter().map(|fault| fault.to_string().replace(root.path().to_str().unwrap(), "R")).collect()
    })
}

const IDENTITY: &str = "backend: 'identity'";

#[test]
fn models_have_the_versions_that_their_policy_chooses() {
    let all = "backend: 'identity' version_policy: { all {} }";
    let two = "backend: 'identity' version_policy: { latest { num_versions: 2 } }";
    let specific = "backend: 'identity' version_policy: { specific { versions: [1, 10, 99] } }";
    let mut files: Vec<(String, &str)> = Vec::new();
    for (model, config) in [("one", IDENTITY), ("all", all), ("two", two), ("specific", specific)] {
        files.push((format!("{model}/config.pbtxt"), config));
        for version in ["1/", "2/", "10/", "007/", "x/", "-3/", "1a/", "99999999999999999999/", "warmup/"] {
            files.push((format!("{model}/{version}"), ""));
        }
        files.push((format!("{model}/5"), "a file"));
    }
    files.push((".git/HEAD".into(), "no model"));
    files.push(("README".into(), "no model"));
    let files: Vec<_> = files.iter().map(|(name, content)| (name.as_str(), *content)).collect();
    let root = repository(&files);
    let repository = open(&root).unwrap();
    let versions: Vec<_> = repository.models().map(|m| (m.name.as_str(), m.versions.clone())).collect();
    assert_eq!(versions, [("all", vec![1, 2, 10]), ("one", vec![10]), ("specific", vec![1, 10]), ("two", vec![2, 10])]);
    let model = repository.model("two").unwrap();
    assert!(model.version_path(10).ends_with("two/10") && model.version_path(10).is_dir());
}

#[test]
fn a_directory_without_configuration_is_told_by_its_files() {
    let root =
        repository(&[("bert/1/model.onnx", ""), ("tok/1/tokenizer.json", ""), ("huge/2/model.onnx/model.onnx", "")]);
    let repository = open(&root).unwrap();
    let backends: Vec<_> = repository.models().map(|m| (m.name.as_str(), m.config.backend.as_str())).collect();
    assert_eq!(backends, [("bert", "onnxruntime"), ("huge", "onnxruntime"), ("tok", "tokenizer")]);
    assert!(repository.model("bert").unwrap().config.is_incomplete());
}

#[test]
fn labels_are_read_by_line() {
    let config = "backend: 'b' output [
        { name: 'y' data_type: TYPE_FP32 dims: 2 label_filename: 'labels.txt' },
        { name: 'z' data_type: TYPE_FP32 dims: 2 } ]";
    let root = repository(&[("m/config.pbtxt", config), ("m/1/", ""), ("m/labels.txt", "good\r\nbad\n")]);
    let repository = open(&root).unwrap();
    let model = repository.model("m").unwrap();
    assert_eq!(model.labels("y").unwrap(), ["good", "bad"]);
    assert_eq!(model.labels("z"), None);
}

#[test]
fn all_faults_are_reported_together() {
    let output =
        |file: &str| format!("{IDENTITY} output {{ name: 'y' data_type: TYPE_FP32 dims: 2 label_filename: '{file}' }}");
    let ensemble = "platform: 'ensemble' ensemble_scheduling {}";
    let root = repository(&[
        ("bare/1/", ""),
        ("ensemble/config.pbtxt", ensemble),
        ("escape/1/", ""),
        ("escape/config.pbtxt", &output("../secret")),
        ("fine/1/", ""),
        ("fine/config.pbtxt", IDENTITY),
        ("name/1/", ""),
        ("name/config.pbtxt", "name: 'other' backend: 'identity'"),
        ("text/1/", ""),
        ("text/config.pbtxt", "backend: 'identity'\nbogus: 1"),
        ("unlabelled/1/", ""),
        ("unlabelled/config.pbtxt", &output("labels.txt")),
        ("unversioned/config.pbtxt", IDENTITY),
        ("unwanted/config.pbtxt", "backend: 'identity' version_policy { specific { versions: 4 } }"),
        ("unwanted/3/", ""),
    ]);
    assert_eq!(
        open(&root).unwrap_err(),
        [
            "must specify 'platform' or 'backend' for 'bare'; R/bare/config.pbtxt is missing and no version directory \
             holds a file that tells the backend",
            "must specify 'step' for ensemble 'ensemble'",
            "label file path 'R/escape/../secret' for output 'y' in model 'escape' is outside model directory",
            "unexpected directory name 'name' for model 'other', directory name must equal model name",
            "failed to read text proto from R/text/config.pbtxt: line 2: field 'bogus' not found for message \
             'inference.ModelConfig'",
            "cannot read R/unlabelled/labels.txt: No such file or directory (os error 2)",
            "at least one version must be available under the version policy of model 'unversioned'; version \
             directories in R/unversioned: none",
            "at least one version must be available under the version policy of model 'unwanted'; version directories \
             in R/unwanted: 3",
        ]
    );
}

#[test]
fn an_ensemble_needs_a_version_directory_too() {
    let config = "platform: 'ensemble'
        input { name: 'A' data_type: TYPE_FP32 dims: 1 } output { name: 'B' data_type: TYPE_FP32 dims: 1 }
        ensemble_scheduling { step { model_name: 'n' input_map { key: 'a' value: 'A' }
                                     output_map { key: 'b' value: 'B' } } }";
    let without = repository(&[("e/config.pbtxt", config)]);
    assert!(open(&without).unwrap_err()[0].starts_with("at least one version must be available"));
    let with = repository(&[("e/config.pbtxt", config), ("e/1/", "")]);
    assert_eq!(open(&with).unwrap().model("e").unwrap().versions, [1]);
}

#[test]
fn one_name_in_two_repositories_is_refused_even_where_one_is_broken() {
    let (left, right) = (repository(&[("m/1/", "")]), repository(&[("m/1/", ""), ("m/config.pbtxt", IDENTITY)]));
    let paths = [left.path().to_owned(), right.path().to_owned()];
    let faults = Repository::open(&paths).unwrap_err();
    assert!(matches!(&faults[..], [RepositoryError::Duplicate { model, .. }] if model == "m"), "{faults:?}");
    let missing = Repository::open(&[left.path().join("absent")]).unwrap_err();
    assert!(matches!(&missing[..], [RepositoryError::Read { .. }]), "{missing:?}");
}

#[test]
fn broken_models_stand_beside_the_others() {
    let root =
        repository(&[("good/1/", ""), ("good/config.pbtxt", IDENTITY), ("bad/3/", ""), ("bad/config.pbtxt", "x: 1")]);
    let repository = Repository::read(&[root.path().to_owned()], &[]).unwrap();
    assert_eq!(repository.models().map(|model| model.name.as_str()).collect::<Vec<_>>(), ["good"]);
    let broken: Vec<_> = repository.broken().map(|(name, broken)| (name, broken.versions.clone())).collect();
    assert_eq!(broken, [("bad", vec![3])]);
}

#[test]
fn a_model_is_found_by_its_name_only() {
    let root = repository(&[("m/1/", ""), ("m/config.pbtxt", IDENTITY)]);
    let paths = [root.path().to_owned()];
    let find = |name: &str| RepositoryModel::find(&paths, name, Replacement::default(), &[]).unwrap();
    assert_eq!(find("m").unwrap().versions, [1]);
    for name in ["n", "", ".", "..", "./m", "m/", "m/1", "/", "../m"] {
        assert!(find(name).is_none(), "{name}");
    }
}

#[test]
fn a_request_may_replace_configuration_and_files() {
    let root = repository(&[("m/1/", ""), ("m/config.pbtxt", IDENTITY)]);
    let paths = [root.path().to_owned()];
    let json = RepositoryModel::find(&paths, "m", Replacement::default(), &[]).unwrap().unwrap().config.to_json();
    let json = json.replace("\"max_batch_size\":0", "\"max_batch_size\":3");
    fn find(
        paths: &[PathBuf],
        config: Option<&str>,
        files: Option<&BTreeMap<String, Bytes>>,
    ) -> Result<RepositoryModel, RepositoryError> {
        RepositoryModel::find(paths, "m", Replacement { config, files }, &[]).map(|found| found.expect("it is there"))
    }
    let configured = find(&paths, Some(&json), None).unwrap();
    assert_eq!((configured.config.max_batch_size, &configured.versions[..]), (3, &[1][..]));

    let files = BTreeMap::from([("7/weights".to_owned(), Bytes::from_static(b"w"))]);
    let unpacked = find(&paths, Some(&json), Some(&files)).unwrap();
    assert_eq!(unpacked.versions, [7]);
    let path = unpacked.version_path(7).join("weights");
    assert_eq!(fs::read(&path).unwrap(), b"w");
    let again = find(&paths, Some(&json), Some(&files)).unwrap();
    assert_eq!(unpacked.fingerprint(7), again.fingerprint(7), "the same files are no change");
    drop(unpacked);
    assert!(!path.exists(), "deleted with the model");

    assert!(find(&paths, None, Some(&files)).is_err(), "files need a configuration");
    for outside in ["../x", "/x", "a/../../x", ""] {
        let files = BTreeMap::from([(outside.to_owned(), Bytes::new())]);
        assert!(find(&paths, Some(&json), Some(&files)).is_err(), "{outside}");
    }
}

#[test]
fn a_configuration_by_request_names_no_file_that_the_repository_s_own_may() {
    let own = format!(
        "{IDENTITY} parameters {{ key: 'session.optimized_model_filepath' value {{ string_value: '/kept' }} }}"
    );
    let root = repository(&[("m/1/", ""), ("m/config.pbtxt", &own)]);
    let paths = [root.path().to_owned()];
    let find = |config| RepositoryModel::find(&paths, "m", Replacement { config, files: None }, &[]);
    let model = find(None).unwrap().unwrap();
    assert_eq!(model.config.parameters["session.optimized_model_filepath"], "/kept", "the operator may");
    let error = find(Some(&model.config.to_json())).unwrap_err();
    assert_eq!(error.code(), trireme_inference::ErrorCode::InvalidArg);
    assert!(error.to_string().contains("'session.optimized_model_filepath' is not allowed"), "{error}");
}

#[test]
fn links_of_the_operator_are_followed() {
    let elsewhere = repository(&[("labels.txt", "good\nbad\n"), ("versions/1/", "")]);
    let config = "backend: 'b' output { name: 'y' data_type: TYPE_FP32 dims: 2 label_filename: 'labels.txt' }";
    let root = repository(&[("m/config.pbtxt", config)]);
    for (link, target) in [("m/labels.txt", "labels.txt"), ("m/1", "versions/1")] {
        std::os::unix::fs::symlink(elsewhere.path().join(target), root.path().join(link)).unwrap();
    }
    let repository = open(&root).unwrap();
    let model = repository.model("m").unwrap();
    assert_eq!(
        (model.labels("y").unwrap(), &model.versions[..]),
        (&["good".to_owned(), "bad".to_owned()][..], &[1][..])
    );
}

#[test]
fn a_fingerprint_changes_with_the_files_of_its_version() {
    let root = repository(&[
        ("m/1/a", ""),
        ("m/2/a", ""),
        ("m/2/weights/0", ""),
        ("m/config.pbtxt", &format!("{IDENTITY} version_policy {{ all {{}} }}")),
    ]);
    let path = root.path().join("m");
    let fingerprints = || {
        let model = RepositoryModel::open("m", &path, &[]).unwrap();
        [1, 2].map(|version| model.fingerprint(version))
    };
    let before = fingerprints();
    assert_eq!(before, fingerprints());
    fs::write(path.join("2/a"), "longer").unwrap();
    let after = fingerprints();
    assert_eq!(before[0], after[0]);
    assert_ne!(before[1], after[1]);
    fs::write(path.join("2/weights/0"), "longer").unwrap();
    assert_ne!(after[1], fingerprints()[1], "weights lie in folders, too");
    fs::write(path.join("labels.txt"), "x").unwrap();
    assert_ne!(after[0], fingerprints()[0], "what lies beside belongs to every version");
}

#[test]
fn gpus_decide_where_open_groups_run() {
    let root = repository(&[("m/1/model.onnx", "")]);
    let repository = Repository::open_with_gpus(&[root.path().to_owned()], &[0]).unwrap();
    let group = &repository.model("m").unwrap().config.instance_groups[0];
    assert_eq!((group.kind, group.count, &group.gpus[..]), (crate::InstanceKind::Gpu, 1, &[0][..]));
}

#[test]
fn a_digest_is_of_what_answers_come_from() {
    let config = "backend: 'identity' input { name: 'I' data_type: TYPE_FP32 dims: 1 } output { name: 'O' data_type: TYPE_FP32 dims: 1 }";
    let write = |config: &str, files: &[(&str, &str)]| {
        let files: Vec<_> = files.iter().map(|(name, content)| (format!("m/{name}"), *content)).collect();
        let files = files
            .iter()
            .map(|(name, content)| (name.as_str(), *content))
            .chain([("m/config.pbtxt", config), ("m/1/", "")]);
        repository(&files.collect::<Vec<_>>())
    };
    let digest = |root: &tempfile::TempDir| open(root).unwrap().model("m").unwrap().digest(1, "").unwrap();
    let one = write(config, &[("1/weights", "ab"), ("labels.txt", "x")]);
    let first = digest(&one);
    assert!(first.starts_with("sha256:") && first.len() == 7 + 64, "{first}");
    let elsewhere = format!(
        "# a comment\n{config} instance_group {{ count: 3 }} version_policy {{ all {{ }} }}
        dynamic_batching {{ max_queue_delay_microseconds: 5 }}"
    );
    let more =
        [("1/weights", "ab"), ("labels.txt", "x"), ("1/.cache", "y"), ("1/__pycache__/a", "z"), ("2/weights", "c")];
    assert_eq!(digest(&write(&elsewhere, &more)), first);
    let others = [
        write(&format!("{config} max_batch_size: 4"), &[("1/weights", "ab"), ("labels.txt", "x")]),
        write(
            &format!("{config} dynamic_batching {{ preserve_ordering: true }}"),
            &[("1/weights", "ab"), ("labels.txt", "x")],
        ),
        write(config, &[("1/weights", "ac"), ("labels.txt", "x")]),
        write(config, &[("1/weights", "ab"), ("labels.txt", "y")]),
        write(config, &[("1/weights", "a"), ("labels.txt", "bx")]),
        write(config, &[("1/weight", "ab"), ("labels.txt", "x")]),
    ];
    others.iter().for_each(|other| assert_ne!(digest(other), first));
    assert_ne!(open(&one).unwrap().model("m").unwrap().digest(1, "numpy 2").unwrap(), first);
    // A file that has changed is read again.
    fs::write(one.path().join("m/1/weights"), "abc").unwrap();
    assert_ne!(digest(&one), first);
    fs::write(one.path().join("m/1/weights"), "ab").unwrap();
    assert_eq!(digest(&one), first);
}

#[test]
fn only_the_code_of_a_model_in_python_may_complete_what_an_input_or_output_lacks() {
    let half = "input { name: 'i' data_type: TYPE_INT32 } output { name: 'o' dims: 1 } output { name: 'p' data_type: TYPE_FP32 dims: 2 }";
    let opened = |backend: &str, tensors: &str| {
        let config = format!("backend: '{backend}' {tensors}");
        open(&repository(&[("m/config.pbtxt", &config), ("m/1/model.py", "")]))
    };
    let repository = opened("python", half).unwrap();
    let config = &repository.model("m").unwrap().config;
    let names: Vec<_> = config.outputs.iter().map(|output| output.name.as_str()).collect();
    assert!(config.inputs.is_empty() && names == ["p"], "{names:?}");
    let lacks = config.check_whole().unwrap_err().to_string();
    assert_eq!(lacks, "model input 'i' must specify 'dims' for m");
    assert!(opened("identity", half).unwrap_err()[0].contains("model input 'i' must specify 'dims' for m"));
    let nameless = opened("python", "output { data_type: TYPE_FP32 dims: 1 }").unwrap_err();
    assert!(nameless[0].contains("model output must specify 'name' for m"), "{nameless:?}");
}
