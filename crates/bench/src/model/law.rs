//! The universal scalability law (Gunther). The capacity of N workers, relative to one worker, is
//! `N / (1 + σ (N − 1) + κ N (N − 1))`. σ is the contention, and κ the cost of coherence.

/// The parameters σ and κ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Law {
    pub(super) contention: f64,
    pub(super) coherence: f64,
}

impl Law {
    /// Fits the law to points. A point is a number of workers N and its capacity C, relative to one
    /// worker.
    ///
    /// The law has a form that is linear in both parameters: `(N / C − 1) / (N − 1) = σ + κ N`. The
    /// fit minimizes the squared errors of this form. A negative parameter is replaced by 0,
    /// because a capacity above N can only be noise. A single point with N above 1 determines only
    /// σ.
    pub(super) fn fit(points: &[(u32, f64)]) -> Self {
        let lines: Vec<(f64, f64)> = points
            .iter()
            .filter(|(workers, capacity)| *workers > 1 && *capacity > 0.0)
            .map(|&(workers, capacity)| {
                let workers = f64::from(workers);
                (workers, (workers / capacity - 1.0) / (workers - 1.0))
            })
            .collect();
        let count = lines.len().max(1) as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| lines.iter().map(of).sum::<f64>() / count;
        let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
        let spread: f64 = lines.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
        let slope = lines.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum::<f64>() / spread;
        if slope.is_finite() && slope > 0.0 {
            let contention = mean_y - slope * mean_x;
            if contention >= 0.0 {
                return Law { contention, coherence: slope };
            }
            // With a free fit, σ would be negative. It is set to 0, which is a fit of a line
            // through the origin.
            let squares: f64 = lines.iter().map(|(x, _)| x * x).sum();
            return Law { contention: 0.0, coherence: lines.iter().map(|(x, y)| x * y).sum::<f64>() / squares };
        }
        Law { contention: mean_y.max(0.0), coherence: 0.0 }
    }

    /// Returns the capacity of `workers`, relative to one worker.
    pub(super) fn capacity(&self, workers: u32) -> f64 {
        let workers = f64::from(workers);
        workers / (1.0 + self.contention * (workers - 1.0) + self.coherence * workers * (workers - 1.0))
    }

    /// Returns the number of workers with the highest capacity. Returns `None` if every further
    /// worker adds capacity.
    pub(super) fn peak(&self) -> Option<f64> {
        (self.coherence > 0.0).then(|| ((1.0 - self.contention).max(0.0) / self.coherence).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_law_is_found_from_its_own_points() {
        for (contention, coherence) in [(0.03, 0.0005), (0.0, 0.001), (0.2, 0.0), (0.0, 0.0)] {
            let law = Law { contention, coherence };
            let points = [1, 2, 4, 16, 64].map(|workers| (workers, law.capacity(workers)));
            let found = Law::fit(&points);
            let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
            assert!(near(found.contention, contention) && near(found.coherence, coherence), "{law:?}: {found:?}");
        }
    }

    #[test]
    fn one_point_tells_contention_alone() {
        let law = Law::fit(&[(1, 1.0), (2, 1.6)]);
        assert!((law.contention - 0.25).abs() < 1e-9 && law.coherence == 0.0, "{law:?}");
        assert_eq!(Law::fit(&[(2, 2.2)]), Law { contention: 0.0, coherence: 0.0 }, "noise");
        assert_eq!(Law::fit(&[]), Law { contention: 0.0, coherence: 0.0 });
    }

    #[test]
    fn the_peak_is_where_capacity_is_greatest() {
        let law = Law { contention: 0.05, coherence: 0.0004 };
        let greatest = (1..500).max_by(|a, b| law.capacity(*a).total_cmp(&law.capacity(*b))).unwrap();
        assert!((law.peak().unwrap() - f64::from(greatest)).abs() <= 1.0, "{greatest}");
        assert_eq!(Law { contention: 0.1, coherence: 0.0 }.peak(), None);
        assert_eq!(law.capacity(1), 1.0);
    }
}
