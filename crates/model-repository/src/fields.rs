//! Fields of the message that several modules read.

use std::collections::BTreeMap;

use trireme_inference::DataType;

use crate::proto;
use crate::proto::model_metrics::metric_control::MetricOptions;

/// The bounds that `model_metrics` sets, by the metric's name.
pub(crate) fn histogram_bounds(message: &proto::ModelConfig) -> BTreeMap<String, Vec<f64>> {
    let bounds = |control: &proto::model_metrics::MetricControl| {
        let family = control.metric_identifier.as_ref()?.family.clone();
        let Some(MetricOptions::HistogramOptions(options)) = &control.metric_options else { return None };
        Some((family, options.buckets.clone()))
    };
    message.model_metrics.iter().flat_map(|metrics| &metrics.metric_control).filter_map(bounds).collect()
}

/// A datatype by its number in the schema.
pub(crate) fn read_data_type(value: i32) -> Result<DataType, String> {
    let name = proto::DataType::try_from(value).map(|data_type| data_type.as_str_name());
    name.ok().and_then(DataType::from_config_name).ok_or_else(|| format!("unknown data type {value}"))
}
