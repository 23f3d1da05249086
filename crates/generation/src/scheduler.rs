//! The policy for which rows of the decoder take the next step together, without tensors.
//! docs/adr/0005-generation-batching.md has the reasons and the numbers.
//!
//! A graph with a cache takes only rows of one length, so rows are in groups of equal length. The shortest group steps
//! until it has the length of the next one, and the two become one group. New texts start in waves, so that groups are
//! large.

/// Waiting texts start when they take this many times the number of running rows.
const WAVE: usize = 2;
/// They also start when the first of them has waited this many steps for each running row.
const PATIENCE: usize = 8;
/// The most times in a row that a group is passed over.
const FAIRNESS: u32 = 32;

/// Whether waiting texts start now.
pub fn starts(waiting_rows: usize, running_rows: usize, waited_steps: usize) -> bool {
    waiting_rows > 0 && (waiting_rows >= WAVE * running_rows || waited_steps >= PATIENCE * running_rows)
}

/// The group that steps next. Each group has a length and the number of times it was passed over since its last step.
pub fn next(groups: &[(usize, u32)]) -> Option<usize> {
    let starved = (0..groups.len()).filter(|&index| groups[index].1 >= FAIRNESS).max_by_key(|&index| groups[index].1);
    starved.or_else(|| (0..groups.len()).min_by_key(|&index| groups[index].0))
}

/// Sorts texts into encoder batches by their lengths, so that none is padded by more than a quarter of the longest.
/// Returns indices into `lengths`.
pub fn encoder_batches(lengths: &[usize]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(lengths[index]));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    for index in order {
        match batches.last_mut() {
            Some(batch) if lengths[batch[0]] * 3 <= lengths[index] * 4 => batch.push(index),
            _ => batches.push(vec![index]),
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The throughput of a simulated server with 16 requests at a time: tokens over time, where a step of n rows costs
    /// `fixed + n`.
    fn throughput(lengths: &[usize], fixed: f64) -> f64 {
        let (mut time, mut tokens, mut next_text) = (0.0, 0, 0);
        let (mut waiting, mut groups, mut waited) = (Vec::new(), Vec::<(usize, u32, Vec<usize>)>::new(), 0);
        let mut arrive = |waiting: &mut Vec<usize>| {
            waiting.extend(lengths.get(next_text));
            next_text += 1;
        };
        (0..16).for_each(|_| arrive(&mut waiting));
        while !waiting.is_empty() || !groups.is_empty() {
            let running = groups.iter().map(|group| group.2.len()).sum();
            if starts(waiting.len(), running, waited) {
                groups.push((0, 0, std::mem::take(&mut waiting)));
                waited = 0;
            }
            waited += usize::from(!waiting.is_empty());
            let chosen = next(&groups.iter().map(|group| (group.0, group.1)).collect::<Vec<_>>()).unwrap();
            groups.iter_mut().for_each(|group| group.1 += 1);
            let (length, passed_over, rows) = &mut groups[chosen];
            *passed_over = 0;
            *length += 1;
            time += fixed + rows.len() as f64;
            tokens += rows.len();
            let before = rows.len();
            let at = *length;
            rows.retain(|&wanted| wanted > at);
            (rows.len()..before).for_each(|_| arrive(&mut waiting));
            let (at, moved) = (groups[chosen].0, std::mem::take(&mut groups[chosen].2));
            match groups.iter().position(|group| group.0 == at && !group.2.is_empty()) {
                Some(other) => groups[other].2.extend(moved),
                None => groups[chosen].2 = moved,
            }
            groups.retain(|group| !group.2.is_empty());
        }
        tokens as f64 / time
    }

    fn alone(lengths: &[usize], fixed: f64, batch: usize) -> f64 {
        let cost = |texts: &[usize]| *texts.iter().max().unwrap() as f64 * (fixed + texts.len() as f64);
        lengths.iter().sum::<usize>() as f64 / lengths.chunks(batch).map(cost).sum::<f64>()
    }

    #[test]
    fn mixed_lengths_go_faster_than_in_static_batches() {
        let lengths: Vec<usize> = (0..400).map(|i| 4 + i * 7919 % 61).collect();
        for fixed in [1.0, 2.0, 8.0] {
            let ours = throughput(&lengths, fixed);
            let (one, eight) = (ours / alone(&lengths, fixed, 1), ours / alone(&lengths, fixed, 8));
            assert!(eight >= 1.3, "{fixed}: {one:.2} times one at a time, {eight:.2} times static batches of 8");
        }
    }

    #[test]
    fn a_lone_text_does_not_wait_long_beside_a_long_one() {
        assert!(starts(1, 0, 0));
        assert!(!starts(1, 1, 0) && starts(1, 1, 8) && starts(2, 1, 0));
        assert!(!starts(4, 12, 20) && starts(11, 5, 0));
        assert!(!starts(0, 0, 100));
    }

    #[test]
    fn the_shortest_group_catches_up_but_nobody_starves() {
        assert_eq!(next(&[]), None);
        assert_eq!(next(&[(20, 3), (4, 0), (9, 5)]), Some(1));
        assert_eq!(next(&[(20, 40), (4, 0), (9, 35)]), Some(0));
    }

    #[test]
    fn the_encoder_pads_little() {
        assert_eq!(encoder_batches(&[10, 40, 9, 38, 8, 30]), [vec![1, 3, 5], vec![0, 2, 4]]);
        assert!(encoder_batches(&[]).is_empty());
    }
}
