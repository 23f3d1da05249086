//! Many faults as one line that a person can read.

use std::fmt::Display;

/// The most bytes of faults that are listed, unless a single fault is longer.
const MOST: usize = 1500;

/// The most models that are named where they have one fault.
const MOST_NAMES: usize = 5;

/// The faults, as many of them as a line takes, and how many more there are. A fault of several models, such as a library that is
/// missing, stands there once, behind their names.
pub fn list<T: Display>(faults: impl IntoIterator<Item = T>) -> String {
    let mut faults = together(faults).into_iter();
    let mut line = faults.next().unwrap_or_default();
    let mut more = 0;
    for fault in faults {
        match more == 0 && line.len() + fault.len() <= MOST {
            true => line.extend(["; ", &fault]),
            false => more += 1,
        }
    }
    match more {
        0 => line,
        _ => format!("{line}; and {more} more, which `trireme validate` names, too"),
    }
}

/// The model that a fault is about, and the fault without its name.
pub fn of_model(fault: &str) -> Option<(&str, &str)> {
    fault.strip_prefix("model '")?.split_once("': ")
}

/// The faults in their order, those that differ in the model's name only as one.
fn together<T: Display>(faults: impl IntoIterator<Item = T>) -> Vec<String> {
    let mut alike: Vec<(Vec<String>, String)> = Vec::new();
    for fault in faults {
        let fault = fault.to_string();
        let (names, fault) = match of_model(&fault) {
            Some((name, fault)) => (vec![name.to_owned()], fault.to_owned()),
            None => (Vec::new(), fault),
        };
        match alike.iter_mut().find(|(known, same)| *same == fault && known.is_empty() == names.is_empty()) {
            // Versions of one model may have one fault.
            Some((known, _)) if names.iter().all(|name| known.contains(name)) => {}
            Some((known, _)) => known.extend(names),
            None => alike.push((names, fault)),
        }
    }
    let say = |(names, fault): (Vec<String>, String)| match &names[..] {
        [] => fault,
        [name] => format!("model '{name}': {fault}"),
        names => {
            let shown = &names[..names.len().min(MOST_NAMES)];
            let more = match names.len() - shown.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("models '{}'{more}: {fault}", shown.join("', '"))
        }
    };
    alike.into_iter().map(say).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_several_models_is_said_once() {
        let fault = |model: &str| format!("model '{model}': no ONNX Runtime library found");
        let faults = [fault("a"), "model 'x': no file".to_owned(), fault("b"), "elsewhere".to_owned()];
        assert_eq!(list(faults), "models 'a', 'b': no ONNX Runtime library found; model 'x': no file; elsewhere");
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        assert_eq!(list(names.map(fault)), "models 'a', 'b', 'c', 'd', 'e' and 2 more: no ONNX Runtime library found");
        assert_eq!(list([fault("a"), fault("a")]), fault("a"));
        // The same words of no model stay one fault.
        assert_eq!(list(["elsewhere", "elsewhere"]), "elsewhere");
    }

    #[test]
    fn a_great_many_faults_are_counted() {
        assert_eq!(list(["a"]), "a");
        assert_eq!(list(["a", "b"]), "a; b");
        assert_eq!(list([] as [&str; 0]), "");
        let many = list((0..30).map(|number| format!("{number} {}", "x".repeat(200))));
        assert!(many.len() < MOST + 100, "{}", many.len());
        assert!(many.ends_with("; and 23 more, which `trireme validate` names, too"), "{many}");
        // A single long fault is listed whole.
        assert_eq!(list(["y".repeat(3000)]).len(), 3000);
    }
}
