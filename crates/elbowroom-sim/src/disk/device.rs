//! What a device does with what it is asked.
//!
//! # Approach
//! A request takes a base latency `R0`, and where others are before it waits for `B = sum of q * k`: all containers' `q` requests
//! under way, each of which costs `k` seconds of the device. All wait equally long, so a container with more requests under way
//! gets more done: `x = q / W`. That is a queue served first come, first served, and how a deep queue starves a shallow one.
//!
//! How the two add up is the device's *knee* `p`: `W^p = R0^p + B^p`. With 1 requests get slower from the first one on, as on a
//! flash disk: for one program with depth `Q`, `x = Q / (R0 + Q*k)`, which is what real ones were measured to do. With 4 or
//! more no container notices others until the device is full, as on a disk that a provider throttles.
//!
//! # Properties
//! - `a_device_never_does_more_than_it_can`
//! - `no_container_gets_more_than_asked`
//! - `a_deep_queue_starves_a_shallow_one`
//! - `weights_divide_a_full_device_whatever_the_depth`

/// Time a program takes between an answer and its next request, in seconds.
pub(super) const THINK_TIME: f64 = 20e-6;

/// What a device can do, each per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Bytes read.
    pub rbps: f64,
    /// Bytes written.
    pub wbps: f64,
    /// Reads.
    pub riops: f64,
    /// Writes.
    pub wiops: f64,
}

impl Speed {
    /// Reads as fast as it writes.
    pub const fn both(bps: f64, iops: f64) -> Self {
        Self { rbps: bps, wbps: bps, riops: iops, wiops: iops }
    }

    /// This many times as fast.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        let Self { rbps, wbps, riops, wiops } = self;
        Self { rbps: rbps * factor, wbps: wbps * factor, riops: riops * factor, wiops: wiops * factor }
    }

    /// Seconds of the device per request of `size` bytes, where `reads` of 1 are reads. Moving the bytes and handling the
    /// request overlap: the slower decides.
    pub fn cost(&self, size: f64, reads: f64) -> f64 {
        let read = (size / self.rbps).max(1.0 / self.riops);
        let write = (size / self.wbps).max(1.0 / self.wiops);
        reads * read + (1.0 - reads) * write
    }
}

/// What one program asks of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DeviceDemand {
    /// Seconds of the device per request.
    pub(super) cost: f64,
    /// Requests per second it wants and may have; infinite for as many as it gets.
    pub(super) rate: f64,
    /// Requests it keeps under way at most.
    pub(super) depth: f64,
    /// Its part of a device that divides by weight.
    pub(super) weight: f64,
}

impl DeviceDemand {
    /// Nothing asked.
    pub(super) const NOTHING: Self = Self { cost: 0.0, rate: 0.0, depth: 0.0, weight: 1.0 };

    /// Requests per second when each takes `wait` seconds.
    fn served(&self, wait: f64) -> f64 {
        self.rate.min(self.depth / (wait + THINK_TIME))
    }
}

/// What a device is like beside its speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct QueueModel {
    /// Base latency in seconds.
    pub(super) latency: f64,
    /// How sharp its knee is.
    pub(super) knee: f64,
    /// It is divided by weight.
    pub(super) by_weight: bool,
}

/// Divides a device among `asks`: the requests per second of each, into `served`; the mean time a request takes is returned.
pub(super) fn divide(asks: &[DeviceDemand], manner: QueueModel, served: &mut Vec<f64>) -> f64 {
    served.clear();
    if !manner.by_weight {
        let wait = wait(asks, manner);
        served.extend(asks.iter().map(|ask| ask.served(wait)));
        return wait;
    }
    // Held back before the device, as iocost and bfq do: the device itself never has a queue to speak of.
    let level = weight_level(asks, manner.latency, 0.97);
    let limited: Vec<DeviceDemand> = asks
        .iter()
        .map(|ask| DeviceDemand { rate: ask.rate.min(level * ask.weight / ask.cost), ..*ask })
        .collect();
    divide(&limited, QueueModel { by_weight: false, ..manner }, served)
}

/// The `W` at which `W^p = R0^p + B^p`. What is left of it changes its sign once: found by the Illinois method.
fn wait(asks: &[DeviceDemand], QueueModel { latency, knee, .. }: QueueModel) -> f64 {
    let left = |wait: f64| {
        let ahead: f64 = asks.iter().map(|ask| ask.cost * ask.served(wait) * wait).sum();
        let [wait, ahead] =
            [wait, ahead].map(|time| if knee == 1.0 { time / latency } else { (time / latency).powf(knee) });
        wait - 1.0 - ahead
    };
    let mut low = latency;
    let mut high = latency + asks.iter().map(|ask| ask.depth * ask.cost).sum::<f64>();
    let (mut at_low, mut at_high) = (left(low), left(high));
    if at_low >= 0.0 || at_high <= 0.0 {
        return if at_low >= 0.0 { low } else { high };
    }
    let mut last = 0;
    for step in 0..60 {
        let by_secant = high - at_high * (high - low) / (at_high - at_low);
        // Where the function is steep at one end only, halving is faster.
        let next = if step % 3 == 2 { 0.5 * (low + high) } else { by_secant };
        let at_next = left(next);
        if at_next > 0.0 {
            (high, at_high) = (next, at_next);
            at_low *= if last > 0 { 0.5 } else { 1.0 };
            last = 1;
        } else {
            (low, at_low) = (next, at_next);
            at_high *= if last < 0 { 0.5 } else { 1.0 };
            last = -1;
        }
        if high - low < 1e-5 * low || at_next.abs() < 1e-9 {
            return next;
        }
    }
    0.5 * (low + high)
}

/// The part of the device per weight at which parts add up to `whole`; infinite where all get what they ask.
fn weight_level(asks: &[DeviceDemand], latency: f64, whole: f64) -> f64 {
    let wish = |ask: &DeviceDemand| ask.cost * ask.served(latency);
    let mut order: Vec<usize> = (0..asks.len()).collect();
    order.sort_by(|a, b| {
        let by = |i: &usize| wish(&asks[*i]) / asks[*i].weight;
        by(a).total_cmp(&by(b))
    });
    let (mut left, mut weights) = (whole, asks.iter().map(|ask| ask.weight).sum::<f64>());
    for i in order {
        let ask = &asks[i];
        if wish(ask) / ask.weight > left / weights {
            return left / weights;
        }
        left -= wish(ask);
        weights -= ask.weight;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ASK: DeviceDemand = DeviceDemand { cost: 1e-3, rate: f64::INFINITY, depth: 1.0, weight: 1.0 };

    const FLASH: QueueModel = QueueModel { latency: 1e-4, knee: 1.0, by_weight: false };

    fn served(asks: &[DeviceDemand], manner: QueueModel) -> Vec<f64> {
        let mut served = Vec::new();
        divide(asks, manner, &mut served);
        served
    }

    fn used(asks: &[DeviceDemand], served: &[f64]) -> f64 {
        asks.iter().zip(served).map(|(ask, x)| ask.cost * x).sum()
    }

    fn ask() -> impl Strategy<Value = DeviceDemand> {
        let rate = prop_oneof![Just(f64::INFINITY), (0.0..1e5f64)];
        (1e-6..1e-2f64, rate, 1u32..256, 1u32..1000).prop_map(|(cost, rate, depth, weight)| DeviceDemand {
            cost,
            rate,
            depth: depth.into(),
            weight: weight.into(),
        })
    }

    fn manner() -> impl Strategy<Value = QueueModel> {
        (1e-6..1e-2f64, 1.0..8.0f64, any::<bool>()).prop_map(|(latency, knee, by_weight)| QueueModel {
            latency,
            knee,
            by_weight,
        })
    }

    #[test]
    fn a_device_far_from_its_limit_answers_at_once_and_one_at_it_makes_wait() {
        // The sweep on a real disk: thousands of 4k reads per second with 1 to 64 requests under way.
        let measured =
            [(1.0, 15.1), (2.0, 26.3), (4.0, 54.7), (8.0, 75.1), (16.0, 102.5), (32.0, 122.3), (64.0, 147.5)];
        for (depth, thousands) in measured {
            let x = served(
                &[DeviceDemand { cost: 1.0 / 159e3, depth, ..ASK }],
                QueueModel { latency: 40e-6, ..FLASH },
            )[0] / 1e3;
            assert!((x / thousands - 1.0).abs() < 0.25, "depth {depth}: {x} instead of {thousands}");
        }
        let slow = divide(&[DeviceDemand { cost: 16e-3, ..ASK }], FLASH, &mut Vec::new());
        assert!((slow / 16e-3 - 1.0).abs() < 0.02, "{slow}");
    }

    #[test]
    fn a_deep_queue_starves_a_shallow_one() {
        let victim = DeviceDemand { rate: 300.0, ..ASK };
        let alone = served(&[victim], FLASH)[0];
        let beside = served(&[victim, DeviceDemand { depth: 64.0, ..ASK }], FLASH)[0];
        assert!(alone > 299.0 && beside < 20.0, "{alone} {beside}");
        let capped = served(&[victim, DeviceDemand { depth: 64.0, rate: 600.0, ..ASK }], FLASH);
        assert!(capped[0] > 299.0 && capped[1] > 599.0, "{capped:?}");
    }

    #[test]
    fn weights_divide_a_full_device_whatever_the_depth() {
        let asks = [
            DeviceDemand { depth: 2.0, weight: 300.0, ..ASK },
            DeviceDemand { depth: 200.0, weight: 100.0, ..ASK },
        ];
        let served = served(&asks, QueueModel { latency: 1e-5, by_weight: true, ..FLASH });
        assert!((served[0] / served[1] / 3.0 - 1.0).abs() < 0.05, "{served:?}");
    }

    #[test]
    fn a_throttled_disk_answers_at_once_until_it_is_full() {
        let throttled = QueueModel { knee: 4.0, ..FLASH };
        let wait = |rate| divide(&[DeviceDemand { rate, depth: 64.0, ..ASK }], throttled, &mut Vec::new());
        assert!(wait(800.0) < 1.2e-4 && wait(1100.0) > 0.05, "{} {}", wait(800.0), wait(1100.0));
    }

    proptest! {
        #[test]
        fn a_device_never_does_more_than_it_can(
            asks in proptest::collection::vec(ask(), 0..8), manner in manner()
        ) {
            let served = served(&asks, manner);
            prop_assert!(used(&asks, &served) <= 1.0 + 1e-4, "{:?}", served);
        }

        #[test]
        fn no_container_gets_more_than_asked(
            asks in proptest::collection::vec(ask(), 1..8), manner in manner()
        ) {
            for (ask, x) in asks.iter().zip(served(&asks, manner)) {
                prop_assert!(x >= 0.0 && x <= ask.rate * (1.0 + 1e-9));
            }
        }
    }
}
