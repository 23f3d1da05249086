use proptest::prelude::*;

use super::*;

fn cost(sizes: &[(u32, u32)], groups: &[Vec<usize>]) -> u64 {
    let of = |group: &Vec<usize>| {
        let rows: u64 = group.iter().map(|&at| u64::from(sizes[at].0)).sum();
        let longest = group.iter().map(|&at| u64::from(sizes[at].1)).max().unwrap_or(0);
        rows * longest * longest
    };
    groups.iter().map(of).sum()
}

#[test]
fn groups_have_similar_lengths() {
    let of_one_row = |lengths: &[u32]| lengths.iter().map(|&length| (1, length)).collect::<Vec<_>>();
    assert_eq!(groups(&of_one_row(&[9, 100, 10, 98]), 4), [vec![0], vec![2], vec![3], vec![1]]);
    assert_eq!(groups(&of_one_row(&[9, 100, 10, 98]), 2), [vec![0, 2], vec![3, 1]]);
    assert_eq!(groups(&of_one_row(&[7, 7, 7]), 4), [vec![0, 1, 2]], "no group without a reason");
    assert_eq!(groups(&[(64, 10), (1, 11), (1, 12)], 2), [vec![0], vec![1, 2]], "rows count");
    assert!(groups(&[], 4).is_empty());
}

proptest! {
    #[test]
    fn no_other_cuts_are_better(sizes in prop::collection::vec((1u32..5, 1u32..60), 1..9), most in 1usize..4) {
        let found = groups(&sizes, most);
        let mut all: Vec<usize> = found.concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..sizes.len()).collect::<Vec<_>>());
        prop_assert!(found.len() <= most && found.iter().all(|group| !group.is_empty()));
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        order.sort_by_key(|&at| sizes[at].1);
        for cuts in (0u32..1 << (sizes.len() - 1)).filter(|cuts| (cuts.count_ones() as usize) < most) {
            let mut other = vec![vec![order[0]]];
            for (at, &next) in order.iter().enumerate().skip(1) {
                if cuts >> (at - 1) & 1 == 1 {
                    other.push(Vec::new());
                }
                other.last_mut().unwrap().push(next);
            }
            prop_assert!(cost(&sizes, &found) <= cost(&sizes, &other));
        }
    }
}
