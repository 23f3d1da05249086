//! Describes a folder by each of its routes, like a folder of its own. The folder's model is the usual route; a request whose prompt has
//! the name of a task takes the route of that task, which is an ensemble of its own in the derived repository.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::FolderDescription;
use super::choices::Choices;
use super::describe;
use super::description::Routed;
use super::files::Reader;
use super::origin::Derived;
use super::routes::Routes;
use super::task::Task;

/// Describes the folder by each route, and gives the faults of all.
pub(crate) fn describe(routes: Routes, path: &Path, choices: &Choices) -> (Option<FolderDescription>, Vec<String>) {
    let (mut each, mut faults, mut warnings) = (BTreeMap::new(), Vec::new(), Vec::<String>::new());
    for route in routes.names() {
        let reader = Reader::new(path, choices.clone()).on_route(&route);
        let found = describe::describe(&reader);
        warnings.extend(reader.take_warnings());
        faults.extend(reader.into_faults());
        each.extend(found.map(|description| (route, description)));
    }
    let mut seen = BTreeSet::new();
    faults.retain(|fault| seen.insert(fault.clone()));
    warnings.retain(|warning| seen.insert(warning.clone()));
    let Some(usual) = routes.first().and_then(|route| each.get(&route).cloned()) else { return (None, faults) };
    for (route, other) in &each {
        let kind = |description: &FolderDescription| (description.task.value, description.width.value);
        // The widths of sparse vectors are those of the vocabulary.
        let is_other =
            kind(other) != kind(&usual) && !(other.task.value == Task::Sparse && usual.task.value == Task::Sparse);
        if is_other {
            faults.push(format!(
                "route '{route}' gives {} of width {} ({}), but the usual route gives {} of width {} ({}): serve each by a folder of its \
                 own",
                other.task.value, other.width.value, other.width.origin, usual.task.value, usual.width.value, usual.width.origin
            ));
        }
    }
    for description in each.values_mut() {
        // A request says its task by the name of a prompt, which all routes have to know.
        let known = || Derived::from(BTreeMap::new(), "the names by which requests say what their texts are");
        let prompts = description.prompts.texts.get_or_insert_with(known);
        for task in routes.of_tasks.keys() {
            prompts.value.entry(task.clone()).or_default();
        }
    }
    let prompts = each.values().next().map(|first| first.prompts.clone()).unwrap_or_default();
    let routed = Some(Box::new(Routed { routes, each }));
    (Some(FolderDescription { routed, warnings, prompts, ..usual }), faults)
}
