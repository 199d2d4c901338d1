//! Numbers that look random and are the same for the same seed.

/// A generator: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The sequence of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// From 0 up to, and without, 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From `low` up to `high`.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// From `low` up to `high`, as many between 1 and 10 as between 10 and 100.
    pub(crate) fn magnitude(&mut self, low: f64, high: f64) -> f64 {
        self.between(low.ln(), high.ln()).exp()
    }

    /// 0 to `n - 1`; 0 where `n` is.
    pub fn below(&mut self, n: usize) -> usize {
        ((self.unit() * n as f64) as usize).min(n.saturating_sub(1))
    }

    /// True once in `n`.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of them.
    pub fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())]
    }

    /// About 1, with this standard deviation, from 0.5 to 1.5.
    pub fn noise(&mut self, deviation: f64) -> f64 {
        // The sum of four uniform numbers has a variance of 4/12.
        let sum: f64 = (0..4).map(|_| self.unit()).sum::<f64>() - 2.0;
        (1.0 + deviation * sum * 3f64.sqrt()).clamp(0.5, 1.5)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_its_sequence_and_noise_has_its_width() {
        let draw = |seed| SplitMix64::new(seed).unit();
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let mut random = SplitMix64::new(7);
        let noise: Vec<f64> = (0..10_000).map(|_| random.noise(0.1)).collect();
        let mean = noise.iter().sum::<f64>() / 1e4;
        let deviation = (noise.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / 1e4).sqrt();
        assert!((mean - 1.0).abs() < 0.005 && (deviation - 0.1).abs() < 0.005, "{mean} {deviation}");
    }
}
