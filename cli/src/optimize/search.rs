//! Chooses the matrices that a variant leaves out: as few as possible, and those first that cost the most fidelity for their size.

use std::collections::BTreeMap;

/// Matrices in the order in which they are left out: the most damage for each weight first, because the time that a matrix takes
/// grows with its weights.
pub fn order(weights: &BTreeMap<String, u64>, damage: &BTreeMap<String, f64>) -> Vec<String> {
    let worth = |name: &String| damage.get(name).copied().unwrap_or(0.0) / weights[name].max(1) as f64;
    let mut names: Vec<String> = weights.keys().cloned().collect();
    names.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
    names
}

/// The smallest count from 1 to `most` for which `holds` is true, found with few trials: the count doubles until one holds, then the
/// range is halved. `None` where no count holds.
pub fn smallest<E>(most: usize, mut holds: impl FnMut(usize) -> Result<bool, E>) -> Result<Option<usize>, E> {
    let (mut fails, mut count) = (0, 1);
    loop {
        let tried = count.min(most);
        if tried <= fails {
            return Ok(None);
        }
        if holds(tried)? {
            let mut found = tried;
            while found - fails > 1 {
                let middle = fails + (found - fails) / 2;
                match holds(middle)? {
                    true => found = middle,
                    false => fails = middle,
                }
            }
            return Ok(Some(found));
        }
        (fails, count) = (tried, count * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_that_cost_much_and_are_small_come_first() {
        let weights = [("a", 100), ("b", 10), ("c", 100)].map(|(name, count)| (name.to_owned(), count)).into();
        let damage = [("a", 1.0), ("b", 0.5), ("c", 2.0)].map(|(name, cost)| (name.to_owned(), cost)).into();
        assert_eq!(order(&weights, &damage), ["b", "c", "a"]);
    }

    #[test]
    fn the_smallest_count_is_found_with_few_trials() {
        for most in [1, 2, 7, 36] {
            for bar in 1..=most + 1 {
                let mut trials = 0;
                let found = smallest(most, |count| {
                    trials += 1;
                    Ok::<_, ()>(count >= bar)
                });
                assert_eq!(found, Ok((bar <= most).then_some(bar)));
                assert!(trials <= 12, "{trials} trials for {bar} of {most}");
            }
        }
        assert_eq!(smallest(4, |_| Err("broken")), Err("broken"));
    }
}
