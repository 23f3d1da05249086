//! Models of the Hugging Face hub, from a server with its routes: which files are downloaded, their places, and the effects of faults.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use trireme_inference::ErrorCode;
use trireme_model_repository::Choices;
use trireme_model_source::{FetchError, Settings, fetch};
use trireme_testkit::{HUB_COMMIT, HubFault, HubServer};

const WORD: &str = "hf://org/name";

/// Larger than what one read of a connection brings.
const LARGE: usize = 300_000;

fn files() -> Vec<(String, Vec<u8>)> {
    let large: Vec<u8> =
        (0..LARGE as u32).flat_map(|number| (number.wrapping_mul(2_654_435_761) >> 24).to_le_bytes()).collect();
    let modules = r#"[{"type": "m.Transformer", "path": ""}, {"type": "m.Pooling", "path": "1_Pooling"}]"#;
    let file = |name: &str, content: &[u8]| (name.to_owned(), content.to_vec());
    vec![
        file("1_Pooling/config.json", b"{}"),
        file("README.md", b"words"),
        file("config.json", b"{}"),
        file("model.safetensors", b"weights that nothing reads"),
        file("modules.json", modules.as_bytes()),
        file("onnx/model.onnx", &large[..LARGE]),
        file("tokenizer.json", b"{}"),
    ]
}

/// A hub, and an empty cache.
fn start() -> (HubServer, TempDir, Settings) {
    let (hub, cache) = (HubServer::start("org/name", files()), tempfile::tempdir().expect("a temporary directory"));
    let settings = Settings {
        hub_endpoint: hub.url(),
        hub_token: None,
        hub_cache: cache.path().join("hub"),
        hub_offline: false,
        cache: cache.path().join("others"),
        choices: Choices::default(),
        to_export: false,
    };
    (hub, cache, settings)
}

fn snapshot(settings: &Settings) -> PathBuf {
    settings.hub_cache.join("models--org--name/snapshots").join(HUB_COMMIT)
}

fn assert_model(folder: &Path) {
    for (name, content) in files() {
        let needed = !["README.md", "model.safetensors"].contains(&name.as_str());
        let found = fs::read(folder.join(&name)).ok();
        assert_eq!(found.as_ref().map(Vec::len), needed.then_some(content.len()), "{name}");
        assert!(!needed || found == Some(content), "{name} has another content");
    }
}

fn count(hub: &HubServer, part: &str) -> usize {
    hub.requests().iter().filter(|request| request.contains(part)).count()
}

#[tokio::test]
async fn a_model_lies_in_hugging_faces_cache_and_is_downloaded_once() {
    let (hub, _cache, settings) = start();
    let folder = fetch("hf://org/name@v1", &settings).await.unwrap();
    assert_eq!(folder, snapshot(&settings));
    assert_model(&folder);
    let root = settings.hub_cache.join("models--org--name");
    assert_eq!(fs::read_to_string(root.join("refs/v1")).unwrap(), HUB_COMMIT);
    let link = fs::read_link(folder.join("onnx/model.onnx")).unwrap();
    assert!(link.starts_with("../../../blobs"), "{}", link.display());
    assert_eq!(fs::read_dir(root.join("blobs")).unwrap().count(), 3, "three files have the same content");
    let before = hub.requests().len();
    assert_eq!(fetch("hf://org/name@v1", &settings).await.unwrap(), folder);
    assert_eq!(hub.requests().len(), before + 1, "the list of files alone is asked for again: {:?}", hub.requests());
    assert!(hub.requests()[0].starts_with("GET /api/models/org/name/revision/v1"), "{:?}", hub.requests());

    let offline = Settings { hub_offline: true, hub_endpoint: "http://127.0.0.1:1".to_owned(), ..settings.clone() };
    assert_eq!(fetch("hf://org/name@v1", &offline).await.unwrap(), folder);
    let error = fetch("hf://org/name@v2", &offline).await.unwrap_err();
    assert!(matches!(error, FetchError::Offline { .. }), "{error}");
    // A hub that is away is no reason not to serve.
    drop(hub);
    assert_eq!(fetch("hf://org/name@v1", &settings).await.unwrap(), folder);
}

#[tokio::test]
async fn a_download_that_is_cut_goes_on_where_it_ended() {
    let (hub, _cache, settings) = start();
    hub.set_fault("onnx/model.onnx", Some(HubFault::Cut(LARGE / 2)));
    assert_model(&fetch(WORD, &settings).await.unwrap());
    assert_eq!(count(&hub, "/cdn/onnx/model.onnx from "), 1, "{:?}", hub.requests());
}

#[tokio::test]
async fn a_later_process_goes_on_where_one_ended() {
    let (hub, _cache, settings) = start();
    fetch(WORD, &settings).await.unwrap();
    let root = settings.hub_cache.join("models--org--name");
    let blob = fs::canonicalize(snapshot(&settings).join("onnx/model.onnx")).unwrap();
    let half = fs::read(&blob).unwrap()[..LARGE / 2].to_vec();
    let partial = blob.with_file_name(format!("{}.trireme-incomplete", blob.file_name().unwrap().to_string_lossy()));
    fs::write(&partial, &half).unwrap();
    fs::remove_file(&blob).unwrap();
    fs::remove_dir_all(root.join("snapshots")).unwrap();
    assert_model(&fetch(WORD, &settings).await.unwrap());
    assert_eq!(count(&hub, &format!("/cdn/onnx/model.onnx from {}", LARGE / 2)), 1, "{:?}", hub.requests());
    // Half of another content is thrown away.
    fs::write(&partial, vec![7; LARGE / 2]).unwrap();
    fs::remove_file(&blob).unwrap();
    fs::remove_dir_all(root.join("snapshots")).unwrap();
    assert_model(&fetch(WORD, &settings).await.unwrap());
}

#[tokio::test]
async fn files_of_another_size_or_content_are_never_served() {
    for (fault, expected) in [
        (HubFault::Short(1000), "expected 300000 bytes, the server sent 1000"),
        (HubFault::Garbled, "expected sha256 "),
    ] {
        let (hub, _cache, settings) = start();
        hub.set_fault("onnx/model.onnx", Some(fault));
        let error = fetch(WORD, &settings).await.unwrap_err().to_string();
        assert!(error.contains("/org/name/resolve/") && error.contains(expected), "{error}");
        assert!(!snapshot(&settings).exists(), "a model that lacks a file has no folder");
        hub.set_fault("onnx/model.onnx", None);
        assert_model(&fetch(WORD, &settings).await.unwrap());
    }
}

#[tokio::test]
async fn a_private_model_needs_the_token_and_the_error_says_so() {
    let (hub, _cache, settings) = start();
    hub.require_token("secret");
    let error = fetch(WORD, &settings).await.unwrap_err().to_string();
    assert!(error.contains("the server answered 401") && error.contains("set HF_TOKEN"), "{error}");
    let with_token = Settings { hub_token: Some("secret".to_owned()), ..settings };
    assert_model(&fetch(WORD, &with_token).await.unwrap());
    let error = fetch("hf://org/other", &with_token).await.unwrap_err().to_string();
    assert!(error.contains("answered 404") && error.contains("'org/other'"), "{error}");
}

#[tokio::test]
async fn a_machine_without_the_hub_is_told_what_to_do() {
    let (hub, cache, settings) = start();
    // A port that was free just now.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let away = Settings { hub_endpoint: format!("http://{closed}"), ..settings.clone() };
    for (word, download) in [
        (WORD, "`hf download org/name --local-dir FOLDER`"),
        ("hf://org/name@v1", "`hf download org/name --revision v1 --local-dir FOLDER`"),
    ] {
        let error = fetch(word, &away).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Unavailable, "{error}");
        let (error, asked) = (error.to_string(), format!("http://{closed}/api/models/org/name/revision/"));
        for part in [word, &asked, "Connection refused", download, "HF_HUB_CACHE", "HF_ENDPOINT", "HTTPS_PROXY"] {
            assert!(error.contains(part), "expected {part:?} in: {error}");
        }
    }
    let folder = format!("http://{closed}/models/minilm?signature=secret");
    let error = fetch(&folder, &away).await.unwrap_err().to_string();
    assert!(error.contains("Connection refused") && error.contains("serve its path"), "{error}");
    assert!(error.contains(&format!("{closed}/models/minilm")) && !error.contains("secret"), "{error}");

    // Two of the cures: a mirror, and a cache that was copied.
    let mirror = Settings { hub_endpoint: hub.url(), ..away.clone() };
    assert_model(&fetch(WORD, &mirror).await.unwrap());
    let copied = Settings { hub_cache: cache.path().join("copied"), ..away };
    fs::rename(&settings.hub_cache, &copied.hub_cache).unwrap();
    assert_model(&fetch(WORD, &copied).await.unwrap());
    let offline = Settings { hub_offline: true, ..settings };
    let error = fetch(WORD, &offline).await.unwrap_err().to_string();
    assert!(error.contains("HF_HUB_CACHE") && error.contains("serve the path"), "{error}");
}

#[tokio::test]
async fn a_mirror_that_lists_names_only_is_asked_for_each_file() {
    let (hub, _cache, settings) = start();
    hub.be_terse();
    assert_model(&fetch(WORD, &settings).await.unwrap());
    assert_eq!(count(&hub, "HEAD "), 5, "{:?}", hub.requests());
    hub.set_fault("onnx/model.onnx", Some(HubFault::Garbled));
    fs::remove_dir_all(&settings.hub_cache).unwrap();
    let error = fetch(WORD, &settings).await.unwrap_err().to_string();
    assert!(error.contains("expected sha256"), "{error}");
}

#[tokio::test]
async fn processes_that_start_together_download_once() {
    let (hub, _cache, settings) = start();
    let both = tokio::join!(fetch(WORD, &settings), fetch(WORD, &settings));
    assert_eq!(both.0.unwrap(), both.1.unwrap());
    assert_eq!(count(&hub, "/cdn/onnx/model.onnx"), 1, "{:?}", hub.requests());
}
