//! Runs without padding, for models whose graph is packed: whether it is, and the groups of a run.
//!
//! A packed graph runs several groups of requests side by side. All that works on each token alone costs nothing for padding; only attention
//! works on the rows of a group, padded to the longest of them. So the groups are cut so that attention has the least to do.

/// Groups of a packed graph. With two, attention pads more; each further one has its own short operators in every run
/// (docs/adr/0038-packed-graphs.md).
pub const GROUPS: usize = 3;

/// Most tokens of a run where nothing was measured: activations of more tokens leave the caches.
pub const TOKEN_BUDGET: u32 = 384;

/// Whether a model is served by its packed graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Packing {
    /// The plain graph.
    #[default]
    Off,
    /// The packed graph, where the graph can be packed, gives the same results and is faster.
    Auto,
    /// The packed graph; a model whose graph cannot be packed does not load.
    On,
}

/// Cuts requests into at most `most` groups so that the sum of rows × length² of all groups is the least. `sizes` are each request's rows and length;
/// the groups have their places in it, each group in the order of length.
pub fn groups(sizes: &[(u32, u32)], most: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    // Stable: requests of equal length stay in the order of arrival.
    order.sort_by_key(|&at| sizes[at].1);
    // Least costs of the first requests in so many groups, and where the last of these groups begins.
    let mut least: Vec<Vec<(f64, usize)>> = vec![vec![(f64::INFINITY, 0); sizes.len() + 1]; most.max(1) + 1];
    least[0][0].0 = 0.0;
    for count in 1..least.len() {
        for end in 1..=order.len() {
            let length = f64::from(sizes[order[end - 1]].1);
            let (mut rows, mut best) = (0.0, (f64::INFINITY, 0));
            for start in (0..end).rev() {
                rows += f64::from(sizes[order[start]].0.max(1));
                let cost = least[count - 1][start].0 + rows * length * length;
                if cost < best.0 {
                    best = (cost, start);
                }
            }
            least[count][end] = best;
        }
    }
    let end = order.len();
    let fewest = (0..least.len()).min_by(|&one, &other| least[one][end].0.total_cmp(&least[other][end].0));
    let (mut count, mut end, mut groups) = (fewest.unwrap_or(0), end, Vec::new());
    while end > 0 && count > 0 {
        let start = least[count][end].1;
        groups.push(order[start..end].to_vec());
        (end, count) = (start, count - 1);
    }
    groups.reverse();
    groups
}

#[cfg(test)]
mod tests;
