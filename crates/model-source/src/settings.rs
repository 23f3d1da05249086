//! Where the hub is and where files are kept: Hugging Face's environment variables, and one of this project.

use std::fmt;
use std::path::PathBuf;

use trireme_model_repository::Choices;

/// Settings of downloads. Object stores read their own variables (`AWS_*`, `GOOGLE_*`, `AZURE_*`).
#[derive(Clone)]
pub struct Settings {
    /// `HF_ENDPOINT`: the hub's URL, without a slash at its end.
    pub hub_endpoint: String,
    /// `HF_TOKEN`, or the file at `HF_TOKEN_PATH` that `hf auth login` writes.
    pub hub_token: Option<String>,
    /// `HF_HUB_CACHE`, or `hub` in `HF_HOME`.
    pub hub_cache: PathBuf,
    /// `HF_HUB_OFFLINE`: models of the hub come from the cache only.
    pub hub_offline: bool,
    /// `TRIREME_DOWNLOAD_CACHE`: the cache of all other places.
    pub cache: PathBuf,
    /// Which of several ONNX files of a model folder is wanted.
    pub choices: Choices,
    /// Whether a model folder without an ONNX file is downloaded with its weights, so that one can be made; otherwise it is an error.
    pub to_export: bool,
}

// === impl Settings ===

impl Settings {
    /// Reads the environment. An empty variable counts as not set.
    pub fn from_env() -> Settings {
        Settings::read(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Settings {
        let path = |name: &str| variable(name).map(PathBuf::from);
        let home = path("HOME").unwrap_or_else(std::env::temp_dir);
        let cache = path("XDG_CACHE_HOME").unwrap_or_else(|| home.join(".cache"));
        let hub_home = path("HF_HOME").unwrap_or_else(|| cache.join("huggingface"));
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| hub_home.join("token"));
        let token = variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN"));
        let token = token.or_else(|| std::fs::read_to_string(token_file).ok()).map(|token| token.trim().to_owned());
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let truth = ["1", "on", "yes", "true"];
        Settings {
            hub_endpoint: endpoint.trim_end_matches('/').to_owned(),
            hub_token: token.filter(|token| !token.is_empty()),
            hub_cache: path("HF_HUB_CACHE").unwrap_or_else(|| hub_home.join("hub")),
            hub_offline: variable("HF_HUB_OFFLINE").is_some_and(|value| truth.contains(&value.to_lowercase().as_str())),
            cache: path("TRIREME_DOWNLOAD_CACHE").unwrap_or_else(|| cache.join("trireme").join("models")),
            choices: Choices::default(),
            to_export: false,
        }
    }
}

// The token is a secret.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("hub_endpoint", &self.hub_endpoint)
            .field("hub_token", &self.hub_token.as_ref().map(|_| "…"))
            .field("hub_cache", &self.hub_cache)
            .field("hub_offline", &self.hub_offline)
            .field("cache", &self.cache)
            .field("choices", &self.choices)
            .field("to_export", &self.to_export)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_those_of_hugging_face() {
        let read = |set: &[(&str, &str)]| {
            let find = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
            Settings::read(find)
        };
        let plain = read(&[("HOME", "/nowhere")]);
        assert_eq!(plain.hub_endpoint, "https://huggingface.co");
        assert_eq!(plain.hub_cache, PathBuf::from("/nowhere/.cache/huggingface/hub"));
        assert_eq!(plain.cache, PathBuf::from("/nowhere/.cache/trireme/models"));
        assert!(plain.hub_token.is_none() && !plain.hub_offline);
        let set = read(&[
            ("HF_HOME", "/h"),
            ("HF_TOKEN", " secret\n"),
            ("HF_ENDPOINT", "http://mirror/"),
            ("HF_HUB_OFFLINE", "True"),
            ("TRIREME_DOWNLOAD_CACHE", "/c"),
        ]);
        assert_eq!((set.hub_cache.to_str(), set.hub_endpoint.as_str()), (Some("/h/hub"), "http://mirror"));
        assert_eq!((set.hub_token.as_deref(), set.hub_offline, set.cache.to_str()), (Some("secret"), true, Some("/c")));
        assert!(!format!("{set:?}").contains("secret"));
        assert_eq!(read(&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "/x")]).hub_cache, PathBuf::from("/x"));
    }
}
