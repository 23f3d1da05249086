//! The measured values, the bars that they have to meet, and how they are shown.

use std::fmt;

use serde_json::{Value, json};

use super::shape::Shape;

/// The scenes whose figures are compared across sizes.
const GROWING: [&str; 2] = ["idle", "idle, three brokers"];

/// The figures whose growth with the size of the deployment is reported, and the largest allowed exponent, if there is
/// one: 1 is growth with the number of workers and gateways, 2 is growth with their product.
const GROWTH: [(&str, Option<f64>); 6] = [
    (figure::BROKER_CPU, Some(1.5)),
    (figure::MESSAGES_IN, Some(1.5)),
    (figure::MESSAGES_OUT, None),
    (figure::BYTES_OUT, None),
    (figure::GATEWAY_CPU, None),
    (figure::WORKER_CPU, None),
];

/// The names of figures that are used in more than one place.
pub mod figure {
    /// CPU of the broker, in percent of one core; in a cluster, of the busiest server.
    pub const BROKER_CPU: &str = "broker, CPU";
    /// CPU of the gateway with a process of its own, in percent of one core.
    pub const GATEWAY_CPU: &str = "gateway, CPU";
    /// CPU of one worker, in percent of one core.
    pub const WORKER_CPU: &str = "worker, CPU";
    /// Messages per second into the broker.
    pub const MESSAGES_IN: &str = "messages into the broker";
    /// Messages per second out of the broker.
    pub const MESSAGES_OUT: &str = "messages out of the broker";
    /// CPU of all processes on the machine, including the harness and unrelated ones, in percent of one core.
    pub const WHOLE_MACHINE: &str = "the whole machine, CPU";
    /// Bytes per second out of the broker.
    pub const BYTES_OUT: &str = "bytes out of the broker";
}

/// A measured value.
#[derive(Clone, Debug)]
pub struct Finding {
    scene: String,
    at: String,
    figure: String,
    value: f64,
    unit: &'static str,
    /// The most that the value may be.
    bar: Option<f64>,
    /// Number of models, workers and gateways of the deployment, if it has one of the sizes.
    parts: Option<[usize; 3]>,
    /// The course of the value over time: seconds and values.
    series: Vec<[f64; 2]>,
}

/// All values measured so far.
pub struct Findings {
    all: Vec<Finding>,
    progress: Box<dyn FnMut(&Finding)>,
}

// === impl Finding ===

impl Finding {
    /// The head of a Markdown table whose lines are findings.
    pub const HEAD: &str = "| scene | at | figure | value | at most | |\n|---|---|---|---:|---:|---|";

    /// A figure of a scene.
    pub fn new(scene: &str, at: &str, figure: &str, value: f64, unit: &'static str) -> Finding {
        let (scene, at, figure) = (scene.to_owned(), at.to_owned(), figure.to_owned());
        Finding { scene, at, figure, value, unit, bar: None, parts: None, series: Vec::new() }
    }

    /// A scene that broke before its end.
    pub fn broken(scene: &str, at: &str, reason: &str) -> Finding {
        let figure = format!("broke: {}", reason.replace('|', "/"));
        Finding::new(scene, at, &figure, 1.0, "").at_most(0.0)
    }

    /// The same with the most that the value may be.
    pub fn at_most(self, bar: f64) -> Finding {
        Finding { bar: Some(bar), ..self }
    }

    /// The same with the parts of the deployment.
    pub fn of(self, shape: &Shape) -> Finding {
        Finding { parts: Some([shape.models(), shape.workers(), shape.gateways]), ..self }
    }

    /// The same with the course over time: seconds and values.
    pub fn over_time(self, series: Vec<[f64; 2]>) -> Finding {
        Finding { series, ..self }
    }

    /// Whether the value meets its bar.
    pub fn is_met(&self) -> bool {
        self.bar.is_none_or(|bar| self.value <= bar)
    }

    /// The finding as a JSON object.
    pub fn json(&self) -> Value {
        let mut object = json!({
            "scene": self.scene, "at": self.at, "figure": self.figure, "value": self.value, "unit": self.unit,
            "at_most": self.bar, "met": self.is_met(),
        });
        if let Some([models, workers, gateways]) = self.parts {
            object["models"] = json!(models);
            object["workers"] = json!(workers);
            object["gateways"] = json!(gateways);
        }
        if !self.series.is_empty() {
            object["series"] = json!(self.series);
        }
        object
    }
}

/// A line of the table.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { scene, at, figure, value, unit, bar, .. } = self;
        let (value, bar) = (number(*value), bar.map(number).unwrap_or_default());
        let verdict = match (self.bar, self.is_met()) {
            (None, _) => "",
            (Some(_), true) => "met",
            (Some(_), false) => "MISSED",
        };
        write!(f, "| {scene} | {at} | {figure} | {value} {unit} | {bar} | {verdict} |")
    }
}

// === impl Findings ===

impl Findings {
    pub(super) fn new(progress: impl FnMut(&Finding) + 'static) -> Findings {
        Findings { all: Vec::new(), progress: Box::new(progress) }
    }

    pub(super) fn add(&mut self, finding: Finding) {
        (self.progress)(&finding);
        self.all.push(finding);
    }

    /// Adds how figures grow with the number of workers and gateways, if more than one size was measured.
    pub(super) fn growth(&mut self) {
        for scene in GROWING {
            for (figure, bar) in GROWTH {
                let of_figure = self.all.iter().filter(|found| found.scene == scene && found.figure == figure);
                let points: Vec<[f64; 2]> = of_figure
                    .filter_map(|found| {
                        found.parts.map(|[_, workers, gateways]| [(workers + gateways) as f64, found.value])
                    })
                    .collect();
                let Some(exponent) = exponent(&points) else { continue };
                let at = format!("{} sizes", points.len());
                let finding = Finding::new(&format!("growth, {scene}"), &at, figure, exponent, "exponent");
                self.add(bar.map_or(finding.clone(), |bar| finding.at_most(bar)).over_time(points));
            }
        }
    }

    /// All findings, in the order in which they were added.
    pub fn all(&self) -> &[Finding] {
        &self.all
    }

    /// Whether every bar is met.
    pub fn are_met(&self) -> bool {
        self.all.iter().all(Finding::is_met)
    }

    /// The table as a page, with the explanations that are needed to read it.
    pub fn markdown(&self) -> String {
        let build = if cfg!(debug_assertions) { "debug, which costs more CPU than a release" } else { "release" };
        let processors = std::thread::available_parallelism().map_or(0, usize::from);
        let lines: Vec<String> = self.all.iter().map(ToString::to_string).collect();
        format!(
            "# Scale\n\n`make scale` has written this page; `docs/scale.md` says what its words mean.\n\n\
             - build: {build}\n- processors: {processors}\n\n{}\n{}\n",
            Finding::HEAD,
            lines.join("\n")
        )
    }
}

/// The exponent with which the second number grows with the first one: the slope of the best line through the
/// logarithms.
fn exponent(points: &[[f64; 2]]) -> Option<f64> {
    let logs: Vec<[f64; 2]> =
        points.iter().filter(|point| point.iter().all(|value| *value > 0.0)).map(|point| point.map(f64::ln)).collect();
    let count = logs.len() as f64;
    let mean = |index: usize| logs.iter().map(|point| point[index]).sum::<f64>() / count;
    let (x, y) = (mean(0), mean(1));
    let spread: f64 = logs.iter().map(|point| (point[0] - x).powi(2)).sum();
    (spread > 0.0).then(|| logs.iter().map(|point| (point[0] - x) * (point[1] - y)).sum::<f64>() / spread)
}

/// A number for readers: with as many decimals as matter.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_with_a_sum_and_growth_with_a_product_are_told_apart() {
        let grown = |power: i32| exponent(&[22.0, 75.0, 220.0].map(|parts: f64| [parts, 3.0 * parts.powi(power)]));
        let near = |found: Option<f64>, wanted: f64| found.is_some_and(|found| (found - wanted).abs() < 1e-9);
        assert!(near(grown(1), 1.0) && near(grown(2), 2.0));
        assert_eq!(exponent(&[[22.0, 1.0]]), None, "one size says nothing");
        assert_eq!(exponent(&[]), None);
    }

    #[test]
    fn a_finding_is_a_line_with_its_verdict() {
        let finding = Finding::new("idle", "large", "broker, CPU", 4.25, "%");
        assert_eq!(finding.to_string(), "| idle | large | broker, CPU | 4.2 % |  |  |");
        assert!(finding.is_met());
        assert_eq!(finding.clone().at_most(5.0).to_string(), "| idle | large | broker, CPU | 4.2 % | 5 | met |");
        let missed = finding.at_most(4.0);
        assert!(!missed.is_met() && missed.to_string().ends_with("| 4 | MISSED |"));
        assert!(!Finding::broken("crowd", "600 workers", "it waited in vain").is_met());
    }
}
