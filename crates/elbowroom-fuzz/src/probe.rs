use elbowroom_types::probe::prometheus::{MetricMapping, MetricSelector};
use elbowroom_types::probe::{ProbeDefaults, ProbeMeter, ProbeRecord};
use elbowroom_types::unit::Micros;

/// Arbitrary bytes as a record, as a page of metrics and as a selector: nothing panics, and what is taken for a record has
/// only numbers that mean something and comes out of its own JSON the same.
pub fn run(data: &[u8]) {
    let mut meter = ProbeMeter::default();
    for (second, line) in (1..).zip(data.split(|byte| *byte == b'\n')) {
        let Ok(record) = ProbeRecord::parse(line) else { continue };
        assert_eq!(record.check().as_ref(), Ok(&record));
        meter.report(&record, ProbeDefaults::default(), Micros::secs(second));
        let json = serde_json::to_vec(&record).expect("numbers and words");
        assert!(ProbeRecord::parse(&json).is_ok(), "{record:?}");
    }
    let text = String::from_utf8_lossy(data);
    let (selector, page) = text.split_once('\0').unwrap_or((&text, ""));
    if let Ok(selector) = selector.parse::<MetricSelector>() {
        assert_eq!(selector.to_string().parse::<MetricSelector>().as_ref(), Ok(&selector));
        let metrics = MetricMapping([("served".to_owned(), selector)].into());
        if let Ok(record) = metrics.record(page, ProbeRecord::default()) {
            assert!(record.check().is_ok());
        }
    }
}
