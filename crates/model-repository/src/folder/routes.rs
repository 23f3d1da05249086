//! The routes of a folder with a Router, whose queries and documents go through modules of their own.
//!
//! Not here: the descriptions of routes (`routed`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::fields;
use super::files::{Json, Reader, kind};
use super::origin::Derived;

/// The list of a folder's modules.
pub(super) const MODULES: &str = "modules.json";

/// The kinds of module that are routers: `Asym` in folders of sentence-transformers before 5.
const ROUTERS: [&str; 2] = ["Router", "Asym"];

/// The library's name for the modality of texts, in routes and their mappings.
const TEXT: &str = "text";

/// Names of routes for other things than texts.
const OTHERS: [&str; 4] = ["image", "audio", "video", "message"];

/// The chains of modules that texts may go through.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Routes {
    /// The route of each task, by the name that a request's prompt has.
    pub(crate) of_tasks: BTreeMap<String, String>,
    /// The route of texts whose request says no task; without one such a request is an error.
    pub(crate) usual: Option<Derived<String>>,
}

/// The routes of the folder; `None` where it has no Router. A Router that cannot be read is a fault.
pub(crate) fn routes(reader: &Reader<'_>) -> Option<Routes> {
    let value = reader.value(MODULES)?;
    let (index, module) = value.as_array()?.iter().enumerate().find(|(_, module)| is_router(module))?;
    let config = config(reader, module)?;
    let structure = config.object(reader, "structure").unwrap_or_default();
    if structure.is_empty() {
        reader.fault(format_args!(
            "{MODULES}: [{index}].type is a Router, but {} has no structure, which lists the modules of each route",
            config.file
        ));
        return None;
    }
    let parameters = config.get("parameters").cloned().unwrap_or_default();
    let mapped: BTreeMap<(Option<String>, Option<String>), String> = parameters["route_mappings"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, route)| Some((pair(key)?, route.as_str()?.to_owned())))
        .collect();
    let has = |route: &str| structure.contains_key(route).then(|| route.to_owned());
    // The order in which the library looks for a route.
    let resolve = |task: Option<&str>| {
        let keys = [(task, Some(TEXT)), (task, None), (None, Some(TEXT)), (None, None)];
        let by_mapping = keys
            .into_iter()
            .find_map(|(task, modality)| mapped.get(&(task.map(str::to_owned), modality.map(str::to_owned))).cloned());
        by_mapping.or_else(|| has(task?)).or_else(|| has(TEXT))
    };
    let tasks = structure.keys().cloned().chain(mapped.keys().filter_map(|(task, _)| task.clone()));
    let tasks: BTreeSet<String> = tasks.filter(|task| task != TEXT && !OTHERS.contains(&task.as_str())).collect();
    let of_tasks: BTreeMap<_, _> =
        tasks.into_iter().filter_map(|task| Some((task.clone(), resolve(Some(&task))?))).collect();
    let by_parameter = || {
        let route = parameters["default_route"].as_str().map(str::to_owned);
        // The library takes the first one of the file, whose order is lost here; its own files always name one.
        route.or_else(|| structure.keys().next().filter(|_| structure.len() == 1).cloned())
    };
    let origin = |key: &str| format!("{}: parameters.{key}", config.file);
    let usual = resolve(None).map(|route| Derived::from(route, origin("route_mappings")));
    let usual = usual.or_else(|| by_parameter().map(|route| Derived::from(route, origin("default_route"))));
    for route in of_tasks.values().chain(usual.iter().map(|usual| &usual.value)) {
        if !structure.contains_key(route) {
            let known = structure.keys().cloned().collect::<Vec<_>>().join(", ");
            reader.fault(format_args!("{}: parameters names route '{route}', but structure has: {known}", config.file));
        }
        if route.is_empty() || !route.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')) {
            reader.fault(format_args!(
                "{}: structure has route '{route}', which becomes a part of a model's name: expected letters, digits, '-', '_' and '.'",
                config.file
            ));
        }
    }
    Some(Routes { of_tasks, usual })
}

/// The modules of modules.json, each with its place; in place of a Router those of one of its routes.
pub(super) fn expand(reader: &Reader<'_>, list: &[Value]) -> Vec<(String, Value)> {
    let mut modules = Vec::new();
    for (index, module) in list.iter().enumerate() {
        let place = format!("{MODULES}: [{index}]");
        match is_router(module) {
            true => modules.extend(of_route(reader, &place, module)),
            false => modules.push((place, module.clone())),
        }
    }
    modules
}

fn of_route(reader: &Reader<'_>, place: &str, module: &Value) -> Vec<(String, Value)> {
    let Some(config) = config(reader, module) else {
        reader.fault(format_args!(
            "{place}.type is a Router, but router_config.json is missing, whose types and structure list the modules of each route"
        ));
        return Vec::new();
    };
    fields::check(reader, "router_config.json", &config);
    let routes = routes(reader);
    let route = reader.route().map(str::to_owned).or_else(|| routes.and_then(|routes| routes.first()));
    let Some(route) = route else { return Vec::new() };
    let folder = folder(module);
    let listed = config.get("structure").and_then(|structure| structure.get(&route)).cloned().unwrap_or_default();
    let Some(listed) = listed.as_array() else {
        reader.fault(format_args!(
            "{}: structure.{route} is {}, expected a list of modules",
            config.file,
            kind(&listed)
        ));
        return Vec::new();
    };
    let entry = |(index, name): (usize, &Value)| {
        let place = format!("{}: structure.{route}[{index}]", config.file);
        let name = name.as_str().unwrap_or_default();
        let kind = config.get("types").and_then(|types| types.get(name)).cloned().unwrap_or_default();
        (place, json!({"type": kind, "path": format!("{folder}{name}")}))
    };
    listed.iter().enumerate().map(entry).collect()
}

/// The modules of modules.json, and those of all routes in place of a Router.
fn all(reader: &Reader<'_>, list: &[Value]) -> Vec<Value> {
    let mut modules = Vec::new();
    for module in list {
        let Some(config) = is_router(module).then(|| config(reader, module)).flatten() else {
            modules.push(module.clone());
            continue;
        };
        let types = config.get("types").and_then(Value::as_object);
        let of_type =
            |(name, kind): (&String, &Value)| json!({"type": kind, "path": format!("{}{name}", folder(module))});
        modules.extend(types.into_iter().flatten().map(of_type));
    }
    modules
}

/// The folders that modules lie in, each with a slash at its end, and whether weights of the module are read there.
pub(crate) fn folders(reader: &Reader<'_>) -> Vec<(String, bool)> {
    let place = |value: &Value| {
        let text = |key: &str| value.get(key).and_then(Value::as_str);
        let path = text("path")?.trim_matches('/');
        let kind = text("type")?.rsplit('.').next()?;
        let has_weights = matches!(kind, "Dense" | "LayerNorm" | "StaticEmbedding" | "SparseStaticEmbedding");
        (!matches!(path, "" | ".")).then(|| (format!("{path}/"), has_weights))
    };
    let listed = reader.value(MODULES).as_ref().and_then(Value::as_array).map(|list| all(reader, list));
    listed.iter().flatten().filter_map(place).collect()
}

/// The folders of all transformers, those of every route among them.
pub(crate) fn transformers(reader: &Reader<'_>) -> Vec<String> {
    let Some(Value::Array(list)) = reader.value(MODULES) else { return Vec::new() };
    let is_transformer = |value: &Value| {
        let kind = value.get("type").and_then(Value::as_str).unwrap_or_default();
        matches!(kind.rsplit('.').next(), Some("Transformer" | "MLMTransformer"))
    };
    let listed = all(reader, &list).into_iter().filter(is_transformer);
    let mut folders: Vec<_> = listed.map(|value| folder(&value)).collect();
    folders.sort();
    folders.dedup();
    folders
}

/// The router's own file, whose older name is that of other modules' files.
fn config(reader: &Reader<'_>, module: &Value) -> Option<Json> {
    let folder = folder(module);
    let older = (!folder.is_empty()).then(|| format!("{folder}config.json"));
    [Some(format!("{folder}router_config.json")), older].into_iter().flatten().find_map(|file| reader.json(&file))
}

/// The folder of a module: with a slash at its end, or empty.
fn folder(module: &Value) -> String {
    match module.get("path").and_then(Value::as_str).unwrap_or_default().trim_matches('/') {
        "" | "." => String::new(),
        path => format!("{path}/"),
    }
}

fn is_router(module: &Value) -> bool {
    let class = module.get("type").and_then(Value::as_str).unwrap_or_default();
    class.rsplit('.').next().is_some_and(|name| ROUTERS.contains(&name))
}

/// The task and the modality of a mapping's key, as Python writes a pair: `('query', None)`. `None` for a pair of modalities, and for
/// a key of another form.
fn pair(key: &str) -> Option<(Option<String>, Option<String>)> {
    let (task, modality) = key.trim().strip_prefix('(')?.strip_suffix(')')?.split_once(',')?;
    let word = |text: &str| match text.trim() {
        "None" => Some(None),
        text => {
            let quoted = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
            quoted('\'').or_else(|| quoted('"')).map(|word| Some(word.to_owned()))
        }
    };
    Some((word(task)?, word(modality)?))
}

// === impl Routes ===

impl Routes {
    /// The routes that texts take, the usual one first.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for name in self.usual.iter().map(|usual| &usual.value).chain(self.of_tasks.values()) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    /// The route whose steps the folder's own model runs.
    pub(crate) fn first(&self) -> Option<String> {
        self.names().into_iter().next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_mappings_are_pairs_of_python() {
        let some = |word: &str| Some(word.to_owned());
        assert_eq!(pair("('query', 'text')"), Some((some("query"), some("text"))));
        assert_eq!(pair("(\"query\", None)"), Some((some("query"), None)));
        assert_eq!(pair("(None, None)"), Some((None, None)));
        assert_eq!(pair("('query', ('image', 'text'))"), None);
        assert_eq!(pair("query"), None);
    }
}
