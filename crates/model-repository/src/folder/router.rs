//! Folders whose queries and documents go through modules of their own.

use serde_json::Value;

use super::files::Reader;

/// A folder of several chains: each route is served as a folder of its own, which the fault says how to make.
pub(super) fn refuse(reader: &Reader<'_>, place: &str, name: &str) {
    let root = reader.root().display().to_string();
    let root = root.trim_end_matches('/');
    let config = reader.json_or_empty("router_config.json");
    let types = config.get("types").cloned().unwrap_or_default();
    let routes = config.get("structure").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut ways = Vec::new();
    for (route, modules) in &routes {
        let paths: Vec<_> = modules.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let kind = |path: &&str| types[*path].as_str().unwrap_or_default().to_owned();
        if paths.iter().any(|path| kind(path).ends_with("SparseStaticEmbedding")) {
            ways.push(format!(
                "'{route}' needs no model: the weight of a token is its row of {}/model.safetensors, and /v2/models/MODEL/tokenize gives the \
                 tokens",
                paths[0]
            ));
            continue;
        }
        let listed: Vec<_> = paths
            .iter()
            .enumerate()
            .map(|(idx, path)| serde_json::json!({"idx": idx, "name": idx.to_string(), "path": path, "type": kind(path)}))
            .collect();
        let (listed, paths) =
            (Value::from(listed), paths.iter().map(|path| format!("{root}/{path}")).collect::<Vec<_>>().join(" "));
        ways.push(format!(
            "'{route}': mkdir {root}-{route} && cp -r {paths} {root}/config_sentence_transformers.json {root}-{route} && echo '{listed}' > \
             {root}-{route}/modules.json && trireme serve {root}-{route}"
        ));
    }
    if ways.is_empty() {
        ways.push("a folder for each route, whose modules.json lists the modules of the route".to_owned());
    }
    reader.fault(format_args!(
        "{place}.type is '{name}', which is not supported: queries and documents go through modules of their own. Serve each route as a model \
         of its own: {}",
        ways.join("; ")
    ));
}
