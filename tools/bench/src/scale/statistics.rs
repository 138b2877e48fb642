// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Statistics of samples.

/// Jain's fairness index: 1 if all shares are equal, 1/n if one of n shares has everything. `None`
/// if all shares are 0.
pub fn fairness(shares: &[u64]) -> Option<f64> {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// The percentile `part` (0 to 1) of the sorted `values`.
pub fn percentile(values: &[f64], part: f64) -> Option<f64> {
    let rank = (values.len() as f64 * part).ceil() as usize;
    values.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_between_one_and_one_of_n() {
        assert_eq!(fairness(&[5, 5, 5, 5]), Some(1.0));
        assert_eq!(fairness(&[0, 7, 0, 0]), Some(0.25));
        assert_eq!(fairness(&[1, 3]), Some(0.8));
        assert_eq!(fairness(&[0, 0]), None);
        assert_eq!(fairness(&[]), None);
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=1000).map(f64::from).collect();
        assert_eq!(percentile(&values, 0.5), Some(500.0));
        assert_eq!(percentile(&values, 0.999), Some(999.0));
        assert_eq!(percentile(&values, 1.0), Some(1000.0));
        assert_eq!(percentile(&[3.0], 0.5), Some(3.0));
        assert_eq!(percentile(&[], 0.5), None);
    }
}
