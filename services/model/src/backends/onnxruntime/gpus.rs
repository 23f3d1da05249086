//! The GPUs that CUDA can see. CUDA is not asked, because its library is loaded only with the first model that needs it.
//!
//! GPUs have CUDA's numbers: those of the visible ones, from 0.

/// Instances go to these GPUs where `KIND_GPU` names none. GPU 0 is always among them: on a machine without GPUs the error of ONNX
/// Runtime then says which part is missing.
pub fn of_this_process() -> Vec<i32> {
    let names = |folder: &str| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>()
    };
    visible(&names("/dev"), &names("/proc/driver/nvidia/gpus"), |name| std::env::var(name).ok())
}

/// The makes of the driver's GPUs. They tell machines apart that share a disk.
pub fn makes() -> String {
    let entries = std::fs::read_dir("/proc/driver/nvidia/gpus").into_iter().flatten().flatten();
    let texts = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("information")).ok());
    let make = |text: String| Some(text.lines().find_map(|line| line.strip_prefix("Model:"))?.trim().to_owned());
    let mut makes: Vec<_> = texts.filter_map(make).collect();
    makes.sort();
    makes.join(", ")
}

/// The numbers of the visible GPUs, from the names in `/dev`, the GPUs that the driver lists, and the process's variables.
///
/// A container has device files for its own GPUs only, but may see all of the driver's. A host may have no device files until
/// CUDA is first used.
fn visible(devices: &[String], driver: &[String], variable: impl Fn(&str) -> Option<String>) -> Vec<i32> {
    let is_gpu = |name: &&String| {
        name.strip_prefix("nvidia")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let present = match devices.iter().filter(is_gpu).count() {
        0 => driver.len(),
        count => count,
    };
    let count = match (variable("CUDA_VISIBLE_DEVICES"), present) {
        (Some(list), _) => listed(&list, present),
        // Only this variable is left where neither the devices nor the driver can be seen.
        (None, 0) => variable("NVIDIA_VISIBLE_DEVICES").map_or(0, |list| listed(&list, 0)),
        (None, present) => present,
    };
    (0..count.max(1) as i32).collect()
}

/// Number of GPUs in a variable, of `present` ones if that is known. CUDA ignores the entries from the first invalid one on, and
/// uses only one part of a divided GPU (MIG).
fn listed(list: &str, present: usize) -> usize {
    let most = if present == 0 { usize::MAX } else { present };
    let valid = |entry: &&str| {
        entry.starts_with("GPU-") || entry.starts_with("MIG-") || entry.parse().is_ok_and(|number: usize| number < most)
    };
    let entries: Vec<_> = list.split(',').map(str::trim).take_while(valid).collect();
    match entries.iter().any(|entry| entry.starts_with("MIG-")) {
        true => 1,
        false => entries.len().min(most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(devices: &[&str], driver: &[&str], variables: &[(&str, &str)]) -> usize {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let found = visible(&owned(devices), &owned(driver), variable);
        assert!(found.iter().copied().eq(0..found.len() as i32), "{found:?}");
        found.len()
    }

    const FOUR: [&str; 4] = ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0"];

    #[test]
    fn device_files_count_and_the_drivers_list_where_there_are_none() {
        let files = ["null", "nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-caps"];
        assert_eq!(count(&files, &FOUR, &[]), 2);
        assert_eq!(count(&["null"], &FOUR, &[]), 4);
        assert_eq!(count(&[], &[], &[]), 1, "the library says what is missing");
    }

    #[test]
    fn cuda_sees_what_its_variable_lists() {
        let cuda = |list: &str| count(&[], &FOUR, &[("CUDA_VISIBLE_DEVICES", list)]);
        assert_eq!(cuda("2, 3"), 2);
        assert_eq!(cuda("3,1,7,0"), 2, "entries after an invalid one do not count");
        assert_eq!(cuda("GPU-8f2a, GPU-11"), 2);
        assert_eq!(cuda("MIG-8f2a,MIG-11"), 1);
        assert_eq!((cuda(""), cuda("-1")), (1, 1), "there is none, and GPU 0 has the error");
        assert_eq!(count(&[], &[], &[("CUDA_VISIBLE_DEVICES", "0,1,2")]), 3);
    }

    #[test]
    fn the_containers_variable_counts_where_nothing_else_is_known() {
        let container = |list: &str| count(&[], &[], &[("NVIDIA_VISIBLE_DEVICES", list)]);
        assert_eq!(container("GPU-8f2a,GPU-11"), 2);
        for unspecific in ["all", "none", "void", ""] {
            assert_eq!(container(unspecific), 1, "{unspecific}");
        }
        assert_eq!(count(&["nvidia0"], &FOUR, &[("NVIDIA_VISIBLE_DEVICES", "0,1,2")]), 1);
    }
}
