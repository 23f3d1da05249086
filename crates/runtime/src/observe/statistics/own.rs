//! Metrics that the code of models defines itself, beside ours at this process's port.
//!
//! Each model has an [`OwnMetrics`], which its instances share. Several models may use one name: the label `model`
//! distinguishes their samples. The number of a model's families and samples is bounded: [`MAX_FAMILIES`], [`MAX_SAMPLES`].

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use trireme_telemetry::metrics::{Exposition, Kind};

/// Most families of a model.
const MAX_FAMILIES: usize = 100;

/// Most samples of a family.
const MAX_SAMPLES: usize = 1000;

/// Most bounds of a histogram.
const MAX_BOUNDS: usize = 100;

/// Beginnings of names that are ours or Triton's.
const RESERVED: [&str; 3] = ["trireme_", "nv_", "process_"];

/// The metrics of all models in this process.
static ALL: Mutex<Vec<Weak<ModelMetrics>>> = Mutex::new(Vec::new());

/// The metrics of a model. Clones are the same. They are gone with the last clone.
#[derive(Clone, Debug)]
pub struct OwnMetrics(Arc<ModelMetrics>);

#[derive(Debug)]
struct ModelMetrics {
    model: String,
    families: Mutex<BTreeMap<String, Family>>,
}

#[derive(Clone, Debug)]
struct Family {
    kind: Kind,
    help: String,
    samples: BTreeMap<BTreeMap<String, String>, Sample>,
}

#[derive(Clone, Debug)]
enum Sample {
    Value(f64),
    /// The bounds, each with the number of values up to it and above the bound before; the number of all values, and their sum.
    Histogram(Vec<(f64, u64)>, u64, f64),
}

/// A change of a sample.
#[derive(Clone, Debug)]
pub struct SampleChange {
    /// The family's name.
    pub name: String,
    /// Its type: a counter, a gauge or a histogram.
    pub kind: Kind,
    /// Its help text.
    pub help: String,
    /// The sample's labels.
    pub labels: BTreeMap<String, String>,
    /// The new value, or by how much the sample changes.
    pub what: What,
}

/// A new value of a sample, or a change of its value.
#[derive(Clone, Debug)]
pub enum What {
    /// A counter or a gauge grows by this.
    Add(f64),
    /// A gauge is this.
    Set(f64),
    /// A histogram with these bounds gets this value; with `None` it only begins to exist.
    Observe(Vec<f64>, Option<f64>),
}

// === impl OwnMetrics ===

impl OwnMetrics {
    /// The metrics of a model, which are none so far.
    pub fn new(model: &str) -> OwnMetrics {
        let shared = Arc::new(ModelMetrics { model: model.to_owned(), families: Mutex::default() });
        let mut all = ALL.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&shared));
        OwnMetrics(shared)
    }

    /// Makes a change. The error says why it is none.
    pub fn change(&self, change: SampleChange) -> Result<(), String> {
        let SampleChange { name, kind, help, labels, what } = change;
        if !is_name(&name, true) || RESERVED.iter().any(|reserved| name.starts_with(reserved)) {
            return Err(format!("'{name}' is no name for a metric of a model"));
        }
        if let Some(label) = labels.keys().find(|label| !is_name(label, false) || label.starts_with("__")) {
            return Err(format!("metric '{name}': '{label}' is no name for a label"));
        }
        let mut families = self.0.families.lock();
        if families.len() >= MAX_FAMILIES && !families.contains_key(&name) {
            return Err(format!("metric '{name}' is one more than {MAX_FAMILIES}, the most that a model may have"));
        }
        let family = families.entry(name.clone()).or_insert(Family { kind, help, samples: BTreeMap::new() });
        if family.kind != kind {
            return Err(format!("metric '{name}' is a {}, found a {}", family.kind.name(), kind.name()));
        }
        if family.samples.len() >= MAX_SAMPLES && !family.samples.contains_key(&labels) {
            return Err(format!("metric '{name}' has {MAX_SAMPLES} combinations of labels, the most that it may have"));
        }
        let new = match (&what, kind) {
            (What::Add(value), Kind::Counter) if *value < 0.0 => {
                return Err(format!("metric '{name}' is a counter, which cannot grow by {value}"));
            }
            (What::Add(_), Kind::Counter | Kind::Gauge) | (What::Set(_), Kind::Gauge) => Sample::Value(0.0),
            (What::Observe(bounds, _), Kind::Histogram) if bounds.len() <= MAX_BOUNDS && bounds.is_sorted() => {
                Sample::Histogram(bounds.iter().map(|&bound| (bound, 0)).collect(), 0, 0.0)
            }
            _ => return Err(format!("metric '{name}' is a {}, for which {what:?} means nothing", kind.name())),
        };
        match (family.samples.entry(labels).or_insert(new), what) {
            (Sample::Value(value), What::Add(more)) => *value += more,
            (Sample::Value(value), What::Set(now)) => *value = now,
            (Sample::Histogram(bounds, count, sum), What::Observe(_, Some(value))) => {
                if let Some((_, number)) = bounds.iter_mut().find(|(bound, _)| value <= *bound) {
                    *number += 1;
                }
                *count += 1;
                *sum += value;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Writes the metrics of all models.
pub fn export(out: &mut Exposition) {
    let all: Vec<_> = ALL.lock().iter().filter_map(Weak::upgrade).collect();
    let mut families = BTreeMap::<String, Family>::new();
    for model in &all {
        for (name, found) in model.families.lock().iter() {
            let empty = || Family { samples: BTreeMap::new(), ..found.clone() };
            let family = families.entry(name.clone()).or_insert_with(empty);
            if family.kind != found.kind {
                // Models need not know of each other. The family is that of the first one.
                continue;
            }
            for (labels, sample) in &found.samples {
                let mut labels = labels.clone();
                labels.entry("model".to_owned()).or_insert_with(|| model.model.clone());
                // A model that is loaded again counts anew.
                family.samples.insert(labels, sample.clone());
            }
        }
    }
    for (name, Family { kind, help, samples }) in &families {
        out.own_family(name, *kind, help, |out| {
            for (labels, sample) in samples {
                let labels: Vec<_> = labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                match sample {
                    Sample::Value(value) => out.value(&labels, *value),
                    Sample::Histogram(bounds, count, sum) => {
                        let up_to = bounds.iter().scan(0, |before, (bound, number)| {
                            *before += number;
                            Some((*bound, *before))
                        });
                        out.histogram(&labels, up_to, *count, *sum);
                    }
                }
            }
        });
    }
}

/// Whether Prometheus takes it as a name; only those of families have colons.
fn is_name(name: &str, colons: bool) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || (colons && c == ':');
    !name.is_empty() && name.chars().all(fits) && !name.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str, kind: Kind, labels: &[(&str, &str)], what: What) -> SampleChange {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        SampleChange { name: name.to_owned(), kind, help: "first\nsecond".to_owned(), labels, what }
    }

    #[test]
    fn a_model_counts_what_it_wants_and_nothing_that_is_ours() {
        let (one, other) = (OwnMetrics::new("one"), OwnMetrics::new("other"));
        for _ in 0..2 {
            one.change(change("own_total", Kind::Counter, &[("kind", "a\"b")], What::Add(1.5))).unwrap();
            other.change(change("own_total", Kind::Counter, &[], What::Add(1.0))).unwrap();
            one.change(change("own_level", Kind::Gauge, &[], What::Set(-2.0))).unwrap();
        }
        for value in [0.5, 3.0, 30.0] {
            let what = What::Observe(vec![1.0, 10.0], Some(value));
            one.change(change("own_times", Kind::Histogram, &[], what)).unwrap();
        }
        let text = || {
            let mut out = Exposition::default();
            export(&mut out);
            out.into_text()
        };
        for line in [
            "# HELP own_total first\\nsecond\n# TYPE own_total counter\n",
            "own_total{kind=\"a\\\"b\",model=\"one\"} 3\n",
            "own_total{model=\"other\"} 2\n",
            "own_level{model=\"one\"} -2\n",
            "own_times_count{model=\"one\"} 3\n",
            "own_times_bucket{model=\"one\",le=\"1\"} 1\n",
            "own_times_bucket{model=\"one\",le=\"10\"} 2\n",
            "own_times_bucket{model=\"one\",le=\"+Inf\"} 3\n",
        ] {
            assert!(text().contains(line), "{line} in {}", text());
        }
        drop(other);
        assert!(!text().contains("other"), "a model that is gone has no metrics");

        let refused = |change| one.change(change).unwrap_err();
        assert!(refused(change("trireme_x", Kind::Gauge, &[], What::Set(1.0))).contains("no name"));
        assert!(refused(change("1x", Kind::Gauge, &[], What::Set(1.0))).contains("no name"));
        assert!(refused(change("x", Kind::Gauge, &[("a-b", "")], What::Set(1.0))).contains("no name for a label"));
        assert!(refused(change("own_total", Kind::Gauge, &[], What::Set(1.0))).contains("is a counter, found a gauge"));
        assert!(refused(change("own_total", Kind::Counter, &[], What::Add(-1.0))).contains("cannot grow"));
        let many = |number: usize| change(&format!("m{number}"), Kind::Gauge, &[], What::Set(1.0));
        assert!((0..MAX_FAMILIES).any(|number| one.change(many(number)).is_err()));
    }
}
