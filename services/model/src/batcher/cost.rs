//! The cost of a run, by rows and padded length.
//!
//! A [`CostModel`] has a fixed part per run, a part per token, and a part per pair of tokens of a row (attention):
//! `run + token × rows × length + pair × rows × length²`. This form fits a transformer to within some percent as long as
//! its activations stay in the caches. Above that size each token costs more, which no batcher should pay for.
//!
//! The token budget is the smallest run that does about as many tokens a second as the best one: a request that comes next waits for
//! the run under way, so that a larger run costs latency and has to pay for it.

use super::padding::Steps;

/// The cost of a run. [`fit`] uses the unit of its points, which are in seconds where a model was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// Per run.
    pub run: f64,
    /// Per token, padding included.
    pub token: f64,
    /// Per pair of tokens in a row.
    pub pair: f64,
}

/// A measured run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Rows of the run.
    pub rows: u32,
    /// Tokens of each row.
    pub length: u32,
    /// Time it took; above 0.
    pub cost: f64,
}

/// The result of measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// The cost model, in the unit of the points.
    pub model: CostModel,
    /// Most tokens of one run.
    pub token_budget: u32,
    /// Mean error of the model on the points within the budget, as a share of their cost.
    pub error: f64,
    /// The lengths that runs have. [`fit`] leaves each as it is.
    pub steps: Steps,
}

/// Most tokens of one run if nothing was measured.
pub const DEFAULT_TOKEN_BUDGET: u32 = 1024;

/// A run that does this share of the best one's tokens per unit of cost does as many: measurements do not tell them apart.
const AS_MANY: f64 = 0.98;

/// The lowest budget. A measurement below it was disturbed.
const MIN_BUDGET: u32 = 512;

/// The length at which runs of different sizes are compared, in tokens.
const COMPARED_LENGTH: f64 = 32.0;

// === impl CostModel ===

impl CostModel {
    /// The cost model without measurements: starting a run costs as much as ten tokens. The unit is the time of one
    /// token.
    pub const UNMEASURED: CostModel = CostModel { run: 10.0, token: 1.0, pair: 0.0 };

    /// The cost of a run of `rows` rows padded to `length`.
    pub fn cost(&self, rows: u32, length: u32) -> f64 {
        let (rows, length) = (f64::from(rows), f64::from(length));
        self.run + rows * length * (self.token + self.pair * length)
    }
}

// === impl Point ===

impl Point {
    fn tokens(&self) -> u32 {
        self.rows.saturating_mul(self.length)
    }

    /// The factors of the three parts of the model in this run.
    fn parts(&self) -> [f64; 3] {
        let tokens = f64::from(self.rows) * f64::from(self.length);
        [1.0, tokens, tokens * f64::from(self.length)]
    }
}

/// The non-negative cost model with the least relative error on `points`, and the token budget that follows from them.
/// `None` if the points do not determine a model: there are fewer than four, or they are too similar.
pub fn fit(points: &[Point]) -> Option<Fit> {
    let largest = points.iter().map(Point::tokens).max()?;
    // Small runs alone say little about large ones.
    let token_budget = if largest < DEFAULT_TOKEN_BUDGET { DEFAULT_TOKEN_BUDGET } else { sufficient_tokens(points)? };
    let within: Vec<Point> = points.iter().filter(|point| point.tokens() <= token_budget).copied().collect();
    if within.len() < 4 {
        return None;
    }
    let (model, error) = nearest(&within)?;
    Some(Fit { model, token_budget, error: (error / within.len() as f64).sqrt(), steps: Steps::default() })
}

/// Whether larger runs than those of `points` need not be measured: the largest ones do not do more than runs of half their size.
pub fn is_enough(points: &[Point]) -> bool {
    let largest = points.iter().map(Point::tokens).max().unwrap_or_default();
    largest >= 2 * MIN_BUDGET && sufficient_tokens(points).is_some_and(|tokens| tokens <= largest / 2)
}

/// The fewest tokens of a run that does about as many tokens per unit of cost as the best run. Runs of a size have other lengths than
/// those of another size. So each run is compared with the cost that small runs let expect for it, and the median of a size says by how
/// much its runs are dearer or cheaper than that.
fn sufficient_tokens(points: &[Point]) -> Option<u32> {
    let small: Vec<Point> = points.iter().filter(|point| point.tokens() <= MIN_BUDGET).copied().collect();
    let (model, _) = nearest(&small)?;
    let mut sizes: Vec<u32> = points.iter().map(Point::tokens).filter(|tokens| *tokens >= MIN_BUDGET).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let throughput = |tokens: u32| {
        let of_size = points.iter().filter(|point| point.tokens() == tokens);
        let mut dearer: Vec<f64> = of_size.map(|point| point.cost / model.cost(point.rows, point.length)).collect();
        dearer.sort_unstable_by(f64::total_cmp);
        let expected = model.run + f64::from(tokens) * (model.token + model.pair * COMPARED_LENGTH);
        f64::from(tokens) / (expected * dearer[dearer.len() / 2])
    };
    let sizes: Vec<_> = sizes.into_iter().map(|tokens| (tokens, throughput(tokens))).collect();
    let best = sizes.iter().map(|(_, throughput)| *throughput).max_by(f64::total_cmp)?;
    sizes.iter().find(|(_, throughput)| *throughput >= AS_MANY * best).map(|(tokens, _)| *tokens)
}

/// The cost model with the least relative error on `points`, and its sum of squares. Three parts have seven combinations, so the best
/// one without a negative part is found by trying all.
fn nearest(points: &[Point]) -> Option<(CostModel, f64)> {
    let candidates = (1..8u8).filter_map(|parts| least_squares(points, parts));
    candidates.min_by(|(_, a), (_, b)| a.total_cmp(b))
}

/// Least squares of the relative error with those parts whose bits are set in `parts`; returns the model and its sum of
/// squares. `None` if a part would be negative or cannot be separated from another.
fn least_squares(points: &[Point], parts: u8) -> Option<(CostModel, f64)> {
    let chosen: Vec<usize> = (0..3).filter(|part| parts >> part & 1 == 1).collect();
    let relative = |point: &Point| point.parts().map(|part| part / point.cost);
    // The normal equations, with at most three unknowns. The last column is the right side.
    let mut rows: Vec<Vec<f64>> = chosen
        .iter()
        .map(|&i| {
            let product = |j: &usize| points.iter().map(|p| relative(p)[i] * relative(p)[*j]).sum::<f64>();
            chosen.iter().map(product).chain([points.iter().map(|p| relative(p)[i]).sum()]).collect()
        })
        .collect();
    let solution = solve(&mut rows)?;
    if solution.iter().any(|part| *part < 0.0) {
        return None;
    }
    let mut all = [0.0; 3];
    chosen.iter().zip(solution).for_each(|(&part, value)| all[part] = value);
    let error = |point: &Point| all.iter().zip(relative(point)).map(|(value, part)| value * part).sum::<f64>() - 1.0;
    let squares = points.iter().map(|point| error(point).powi(2)).sum();
    let [run, token, pair] = all;
    Some((CostModel { run, token, pair }, squares))
}

/// Gauss-Jordan elimination with pivoting.
fn solve(rows: &mut [Vec<f64>]) -> Option<Vec<f64>> {
    let unknowns = rows.len();
    for column in 0..unknowns {
        let pivot = (column..unknowns).max_by(|&a, &b| rows[a][column].abs().total_cmp(&rows[b][column].abs()))?;
        let scale = rows[pivot].iter().take(unknowns).fold(0.0f64, |largest, value| largest.max(value.abs()));
        if rows[pivot][column].abs() <= scale * 1e-12 || !rows[pivot][column].is_finite() {
            return None;
        }
        rows.swap(column, pivot);
        let divisor = rows[column][column];
        rows[column].iter_mut().for_each(|value| *value /= divisor);
        let pivot = rows[column].clone();
        for (_, row) in rows.iter_mut().enumerate().filter(|(index, _)| *index != column) {
            let factor = row[column];
            row.iter_mut().zip(&pivot).for_each(|(value, pivot)| *value -= factor * pivot);
        }
    }
    Some(rows.iter().map(|row| row[unknowns]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(cost: impl Fn(u32, u32) -> f64) -> Vec<Point> {
        let sizes =
            [1u32, 2, 4, 8, 16, 32].into_iter().flat_map(|rows| [8u32, 16, 32, 64, 128, 256].map(|l| (rows, l)));
        let sizes = sizes.filter(|(rows, length)| rows * length <= 4096);
        sizes.map(|(rows, length)| Point { rows, length, cost: cost(rows, length) }).collect()
    }

    #[test]
    fn a_model_is_found_again() {
        let truth = CostModel { run: 2.2, token: 0.21, pair: 1.5e-4 };
        let fit = fit(&grid(|rows, length| truth.cost(rows, length))).unwrap();
        assert!((fit.model.run - truth.run).abs() < 1e-6 && (fit.model.pair - truth.pair).abs() < 1e-9, "{fit:?}");
        assert!(fit.error < 1e-6);
        assert_eq!(fit.token_budget, 512, "larger runs do less than 2 % more");
    }

    #[test]
    fn runs_are_as_large_as_pays() {
        let budget = |run: f64| {
            let truth = CostModel { run, token: 0.21, pair: 1.5e-4 };
            let points = grid(|rows, length| truth.cost(rows, length));
            (fit(&points).unwrap().token_budget, is_enough(&points))
        };
        assert_eq!(budget(2.2), (512, true));
        assert_eq!(budget(8.0), (2048, true));
        assert_eq!(budget(40.0), (4096, false));
        let small: Vec<Point> =
            grid(|rows, length| f64::from(rows * length)).into_iter().filter(|point| point.tokens() <= 512).collect();
        assert!(!is_enough(&small), "nothing larger was tried");
    }

    #[test]
    fn the_budget_ends_where_tokens_get_dearer() {
        let truth = CostModel { run: 2.2, token: 0.21, pair: 0.0 };
        let spilling = |rows: u32, length: u32| {
            let dearer = if rows * length > 512 { 1.3 } else { 1.0 };
            truth.cost(rows, length) * dearer
        };
        let fit = fit(&grid(spilling)).unwrap();
        assert_eq!(fit.token_budget, 512);
        assert!((fit.model.token - truth.token).abs() < 1e-6, "points past the budget do not count: {fit:?}");
    }

    #[test]
    fn a_short_look_does_not_lower_the_budget() {
        let mut points = grid(|rows, length| CostModel::UNMEASURED.cost(rows, length));
        points.retain(|point| point.tokens() <= 128);
        assert_eq!(fit(&points).unwrap().token_budget, DEFAULT_TOKEN_BUDGET);
    }

    #[test]
    fn no_part_is_negative() {
        // Starting costs nothing and long rows are cheaper than their tokens, so both parts would fit best with
        // negative values.
        let fit = fit(&grid(|rows, length| f64::from(rows * length) * (1.0 - 1e-3 * f64::from(length)))).unwrap();
        let CostModel { run, token, pair } = fit.model;
        assert!(run >= 0.0 && token > 0.0 && pair >= 0.0, "{fit:?}");
    }

    #[test]
    fn too_little_is_no_measurement() {
        let point = Point { rows: 1, length: 8, cost: 1.0 };
        assert_eq!(fit(&[]), None);
        assert_eq!(fit(&[point; 3]), None);
        // All points are alike, so only one part can be determined. That is a model too.
        let alike = fit(&[point; 5]).unwrap().model;
        assert!((alike.cost(1, 8) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_disturbed_measurement_does_not_forbid_batches() {
        let fit = fit(&grid(|rows, length| f64::from(rows * length).powi(2))).unwrap();
        assert_eq!(fit.token_budget, MIN_BUDGET);
    }

    proptest::proptest! {
        #[test]
        fn runs_a_percent_apart_make_no_larger_budget(noise in proptest::collection::vec(0.0..0.01f64, 33)) {
            let truth = CostModel { run: 2.2, token: 0.21, pair: 1.5e-4 };
            let mut points = grid(|rows, length| truth.cost(rows, length));
            points.iter_mut().zip(noise).for_each(|(point, noise)| point.cost *= 1.0 + noise);
            let budget = fit(&points).unwrap().token_budget;
            proptest::prop_assert!(budget <= 1024, "{}", budget);
        }
    }
}
