//! Metrics as OTLP has them.
//!
//! Names and labels are those of `/metrics`, suffixes included (`elbowroom_ticks_total`), so a dashboard works with both. Gauges and
//! infos (always 1) are gauges, a counter is a cumulative monotonic sum.

use elbowroom_types::metric::{MetricFamily, MetricKind};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum,
    number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;

/// What all metrics of one push have in common.
pub(super) struct PushOrigin {
    /// This machine.
    pub(super) host: String,
    /// When the policy process began to count, in milliseconds since 1970.
    pub(super) started_unix_ms: u64,
}

impl PushOrigin {
    /// A push of what was so at `now_unix_ms`.
    pub(super) fn request(
        &self,
        families: Vec<MetricFamily>,
        now_unix_ms: u64,
    ) -> ExportMetricsServiceRequest {
        // Receivers make labels `job` and `instance` of service.name and service.instance.id (OpenTelemetry specification, "Prometheus
        // and OpenMetrics compatibility", "Resource attributes").
        let attributes = [
            ("service.name", "elbowroom"),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("service.instance.id", &self.host),
            ("host.name", &self.host),
        ];
        let attributes =
            attributes.into_iter().map(|(key, value)| attribute(key, value.to_owned())).collect();
        let metrics = families.into_iter().map(|family| self.metric(family, now_unix_ms)).collect();
        let resource = Resource { attributes, ..Resource::default() };
        let scope = ScopeMetrics { metrics, ..ScopeMetrics::default() };
        let all = ResourceMetrics {
            resource: Some(resource),
            scope_metrics: vec![scope],
            ..ResourceMetrics::default()
        };
        ExportMetricsServiceRequest { resource_metrics: vec![all] }
    }

    fn metric(&self, family: MetricFamily, now_unix_ms: u64) -> Metric {
        let start_unix_ms = match family.kind {
            // A clock that was set back since would have it begin after it was read, which receivers refuse.
            MetricKind::Counter => self.started_unix_ms.min(now_unix_ms),
            // The kernel has counted since an unknown time: that of the agent would look like a new beginning whenever the agent restarts.
            MetricKind::KernelCounter | MetricKind::Gauge | MetricKind::Info => 0,
        };
        let data_points = family.samples.into_iter().map(|(labels, value)| NumberDataPoint {
            start_time_unix_nano: nanoseconds(start_unix_ms),
            time_unix_nano: nanoseconds(now_unix_ms),
            value: Some(number_data_point::Value::AsDouble(value)),
            attributes: labels.into_iter().map(|(key, value)| attribute(key, value)).collect(),
            ..NumberDataPoint::default()
        });
        let data_points = data_points.collect();
        let data = match family.kind {
            MetricKind::Gauge | MetricKind::Info => Data::Gauge(Gauge { data_points }),
            MetricKind::Counter | MetricKind::KernelCounter => Data::Sum(Sum {
                data_points,
                aggregation_temporality: AggregationTemporality::Cumulative.into(),
                is_monotonic: true,
            }),
        };
        Metric {
            name: format!("{}{}", family.name, family.kind.sample_suffix()),
            description: family.help.to_owned(),
            unit: ucum(family.unit).unwrap_or_default().to_owned(),
            data: Some(data),
            ..Metric::default()
        }
    }
}

fn attribute(key: &str, value: String) -> KeyValue {
    let value = Some(AnyValue { value: Some(any_value::Value::StringValue(value)) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

const fn nanoseconds(unix_ms: u64) -> u64 {
    unix_ms.saturating_mul(1_000_000)
}

/// A unit of OpenMetrics as OTLP writes it, which is UCUM. It is empty for a bare number, because `1` makes receivers add `_ratio` to the
/// name, and for a rate, because `By/s` makes them add `_per_second` to a name that ends with it (`addUnitTokens` of
/// github.com/prometheus/otlptranslator looks for it as one word).
fn ucum(unit: &str) -> Option<&'static str> {
    Some(match unit {
        "" | "bytes_per_second" | "operations_per_second" => "",
        "bytes" => "By",
        "ratio" => "1",
        "requests" => "{request}",
        "seconds" => "s",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::metric::{self, MetricSet, TABLE};

    #[test]
    fn every_unit_of_the_table_is_known() {
        for metric in TABLE {
            assert!(ucum(metric.unit).is_some(), "{}: give {:?} its UCUM name", metric.name, metric.unit);
        }
    }

    #[test]
    fn names_kinds_units_and_times_are_those_of_the_table() {
        let mut page = MetricSet::default();
        page.add(&metric::AGENT, &["9.9", "files"], 1.0);
        page.add(&metric::TICKS, &[], 7.0);
        page.add(&metric::CPU_USED, &["0123", "web"], 0.5);
        page.add(&metric::MEMORY_LENT, &["0123", ""], 0.0);
        page.add(&metric::IO_BYTES, &["0123", "", "sda", "read"], 1.0);
        let origin = PushOrigin { host: "n1".into(), started_unix_ms: 1 };
        let request = origin.request(page.families(), 2);
        let [all] = &request.resource_metrics[..] else { panic!("{request:?}") };
        let resource: Vec<_> = all.resource.as_ref().unwrap().attributes.iter().map(pair).collect();
        assert_eq!(resource[0], "service.name=elbowroom");
        assert_eq!(resource[2..], ["service.instance.id=n1", "host.name=n1"]);
        let lines: Vec<_> = all.scope_metrics[0].metrics.iter().map(line).collect();
        assert_eq!(
            lines,
            [
                "elbowroom_info [] gauge 0..2000000 source=files,version=9.9 1",
                "elbowroom_ticks_total [] sum 1000000..2000000  7",
                "elbowroom_container_cpu_used_seconds_total [s] sum 0..2000000 id=0123,name=web 0.5",
                "elbowroom_container_memory_lent_bytes [By] gauge 0..2000000 id=0123,name= 0",
                "elbowroom_container_disk_bytes_per_second [] gauge 0..2000000 disk=sda,id=0123,name=,op=read 1",
            ]
        );
    }

    #[test]
    fn a_clock_that_was_set_back_makes_no_counter_begin_after_it_was_read() {
        let mut page = MetricSet::default();
        page.add(&metric::TICKS, &[], 7.0);
        let origin = PushOrigin { host: "n1".into(), started_unix_ms: 9 };
        let request = origin.request(page.families(), 2);
        let lines: Vec<_> = request.resource_metrics[0].scope_metrics[0].metrics.iter().map(line).collect();
        assert_eq!(lines, ["elbowroom_ticks_total [] sum 2000000..2000000  7"]);
    }

    fn pair(attribute: &KeyValue) -> String {
        match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
            Some(any_value::Value::StringValue(text)) => format!("{}={text}", attribute.key),
            other => panic!("{}: {other:?}", attribute.key),
        }
    }

    fn line(metric: &Metric) -> String {
        let (kind, point) = match metric.data.as_ref() {
            Some(Data::Gauge(gauge)) => ("gauge", &gauge.data_points[0]),
            Some(Data::Sum(sum)) => {
                assert!(
                    sum.is_monotonic && sum.aggregation_temporality() == AggregationTemporality::Cumulative
                );
                ("sum", &sum.data_points[0])
            }
            other => panic!("{other:?}"),
        };
        let Some(number_data_point::Value::AsDouble(value)) = point.value else { panic!("{point:?}") };
        let labels = point.attributes.iter().map(pair).collect::<Vec<_>>().join(",");
        let (start, end) = (point.start_time_unix_nano, point.time_unix_nano);
        format!("{} [{}] {kind} {start}..{end} {labels} {value}", metric.name, metric.unit)
    }
}
