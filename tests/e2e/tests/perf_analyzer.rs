//! NVIDIA's perf_analyzer can measure Trireme like a Triton: over HTTP, gRPC and gRPC streams, with the other data that
//! it reads: metadata, configuration, statistics of the model and of an ensemble's steps, metrics.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use trireme_e2e::{Mode, Sandbox, in_one_mode, wait_until, workspace};

/// The variable with the path of perf_analyzer, if `scripts/setup-perf-analyzer.sh` did not fetch it.
const PROGRAM: &str = "PERF_ANALYZER";

in_one_mode!(it_measures_an_ensemble_and_its_steps, it_reports_what_fails);

/// Short windows, and any result is stable enough: the test checks that it can measure, not how fast the system is.
const SHORT: [&str; 7] =
    ["-v", "--measurement-interval", "1000", "--stability-percentage", "100000", "--max-trials", "3"];

/// The output of a run of perf_analyzer.
struct Report {
    success: bool,
    text: String,
}

/// The path of the program; `None`, with a message, if it is missing.
fn program() -> Option<PathBuf> {
    let fetched = workspace().join(".tools/perf-analyzer/perf_analyzer");
    let path = std::env::var_os(PROGRAM).map_or(fetched, PathBuf::from);
    if !path.is_file() {
        println!("left out: perf_analyzer is not there: run `make perf-analyzer`, or name one with {PROGRAM}");
        return None;
    }
    Some(path)
}

fn run(program: &PathBuf, arguments: &str) -> Report {
    let output = Command::new(program).args(SHORT).args(arguments.split(' ')).output().expect("the program runs");
    let text = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    println!("perf_analyzer {arguments}\n{text}");
    Report { success: output.status.success(), text }
}

// === impl Report ===

impl Report {
    /// The number after each `prefix` in the report's lines.
    fn numbers(&self, prefix: &str) -> Vec<f64> {
        let lines = self.text.lines().filter_map(|line| line.trim().strip_prefix(prefix));
        lines.filter_map(|rest| rest.trim().split([' ', ',']).next()?.parse().ok()).collect()
    }

    /// The faults of a report about `loads` loads of a model with these steps; empty if there are none.
    fn faults(&self, loads: usize, steps: &[&str]) -> Vec<String> {
        let mut faults = Vec::new();
        if !self.success {
            faults.push("it failed".to_owned());
        }
        let complaints = ["error", "failed", "unable to maintain"];
        let complaint = |line: &&str| complaints.iter().any(|word| line.to_lowercase().contains(word));
        faults.extend(self.text.lines().filter(complaint).map(str::to_owned));
        let measured = self.numbers("Throughput:");
        if measured.len() != loads || measured.iter().any(|throughput| *throughput <= 0.0) {
            faults.push(format!("throughputs {measured:?}, expected {loads} above 0"));
        }
        // One line about the model for each load, and one about each of its steps.
        let counted = self.numbers("Successful request count:");
        if counted.len() != loads * (1 + steps.len()) || counted.iter().any(|count| *count < 1.0) {
            faults.push(format!("request counts {counted:?} of the server, expected {loads} x {}", 1 + steps.len()));
        }
        for step in steps {
            let heading = format!("{step}, version: 1\n");
            let times = self.text.split(&heading).skip(1);
            let timed = times.filter(|text| text.lines().nth(3).is_some_and(tells_queue_and_compute)).count();
            if timed != loads {
                faults.push(format!("{timed} reports of the times of step {step}, expected {loads}"));
            }
        }
        faults
    }
}

/// `Avg request latency: 173 usec (overhead 39 usec + queue 132 usec + compute input 0 usec + ...)`
fn tells_queue_and_compute(line: &str) -> bool {
    ["Avg request latency:", "queue ", "compute input ", "compute infer ", "compute output "]
        .iter()
        .all(|part| line.contains(part))
}

fn it_measures_an_ensemble_and_its_steps(mode: Mode) {
    let Some(program) = program() else { return };
    let mut sandbox = Sandbox::start(mode);
    let (http, grpc) = (sandbox.address, sandbox.grpc_address());
    let metrics = wait_until("the metrics listener", Duration::from_secs(60), || {
        let events = sandbox.gateway.events();
        let listening = events.iter().find(|event| event["message"] == "metrics listener")?;
        listening["address"].as_str().map(str::to_owned)
    });
    let texts = "-m tiny_embedding --shape TEXT:2 --string-data rowers";
    let chain = "-m identity_chain --shape INPUT0:4";
    // With integers, because perf_analyzer writes FP32 tensors in JSON as if they were FP64, with too few elements.
    let json = "-m simple -b 4 --input-tensor-format json --output-tensor-format json";
    let embedding = ["tiny_tokenizer", "tiny_encoder", "tiny_pool"];
    let identities = ["identity_a", "identity_b", "identity_c"];
    let (http, grpc) = (format!("-i http -u {http}"), format!("-i grpc -u {grpc}"));
    let scraped = format!("--collect-metrics --metrics-url {metrics}/metrics");
    let runs: [(String, usize, &[&str]); 6] = [
        (format!("{texts} {http} --concurrency-range 1:4:3"), 2, &embedding),
        (format!("{texts} {grpc} --concurrency-range 1:4:3"), 2, &embedding),
        (format!("{texts} {grpc} --concurrency-range 2 --streaming"), 1, &embedding),
        (format!("{chain} {http} --concurrency-range 2 {scraped}"), 1, &identities),
        (format!("{chain} {grpc} --concurrency-range 2 --async"), 1, &identities),
        (format!("{json} {http} --request-rate-range 50"), 1, &[]),
    ];
    for (arguments, loads, steps) in runs {
        let report = run(&program, &arguments);
        assert_eq!(report.faults(loads, steps), Vec::<String>::new(), "perf_analyzer {arguments}\n{}", report.text);
    }
}

/// The other test would notice faults: a missing model, and an input that the model does not take.
fn it_reports_what_fails(mode: Mode) {
    let Some(program) = program() else { return };
    let sandbox = Sandbox::start(mode);
    let url = format!("-u {}", sandbox.address);
    let missing = run(&program, &format!("-m missing -i http {url}"));
    assert!(!missing.success && missing.text.contains("unknown model: 'missing'"), "{}", missing.text);
    assert!(missing.faults(1, &[]).len() >= 3, "{:?}", missing.faults(1, &[]));
    let refused = run(
        &program,
        &format!("-m tiny_pool -i http {url} --shape last_hidden_state:1,2,8 --shape attention_mask:3,3"),
    );
    assert!(!refused.faults(1, &[]).is_empty(), "{}", refused.text);
}
