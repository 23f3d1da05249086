//! Statistics and metrics: the identities that clients rely on hold while workers come and go, and docs/metrics.md
//! matches the exported metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{
    Mode, ModelFolder, Process, Request, Sandbox, Setup, Stage, answer, basic_repository, golden, in_one_mode, load,
    wait_until, workspace,
};

in_one_mode!(
    every_request_is_counted_once_at_every_step,
    metrics_say_what_statistics_say,
    the_cache_and_a_models_own_bounds_show,
);

/// The longest time until a change is visible.
const SOON: Duration = Duration::from_secs(60);

const PAGE: &str = "docs/metrics.md";
const TABLE_BEGIN: &str = "<!-- metrics: begin -->";
const TABLE_END: &str = "<!-- metrics: end -->";

fn text(number: usize) -> Value {
    let golden = golden();
    json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [golden[number % golden.len()].text]}]})
}

#[track_caller]
fn statistics(sandbox: &Sandbox, model: &str) -> Value {
    let response = sandbox.get(&format!("/v2/models/{model}/stats"));
    assert_eq!(response.status, 200, "{}", response.text());
    let mut stats = response.json();
    let models = stats["model_stats"].as_array_mut().expect("an array");
    assert_eq!(models.len(), 1);
    models.remove(0)
}

/// Number of requests that a model has answered; checks that its numbers are consistent.
#[track_caller]
fn checked(sandbox: &Sandbox, model: &str) -> u64 {
    let stats = statistics(sandbox, model);
    let count = |part: &str| stats["inference_stats"][part]["count"].as_u64().expect("a number");
    let success = count("success");
    for part in ["queue", "compute_input", "compute_infer", "compute_output"] {
        assert_eq!(count(part), success, "{part} of {model}: {stats}");
    }
    let batches = stats["batch_stats"].as_array().expect("an array");
    let runs: u64 = batches.iter().map(|batch| batch["compute_infer"]["count"].as_u64().expect("a number")).sum();
    assert_eq!(stats["execution_count"], runs, "{stats}");
    assert!(stats["inference_count"].as_u64().expect("a number") >= success, "{stats}");
    success
}

fn every_request_is_counted_once_at_every_step(mode: Mode) {
    let sandbox = Sandbox::start(mode);
    for number in 1..=20 {
        assert_eq!(sandbox.infer("tiny_embedding", &text(number)).status, 200);
        for model in ["tiny_embedding", "tiny_tokenizer", "tiny_encoder", "tiny_pool"] {
            assert_eq!(checked(&sandbox, model), number as u64, "{model}, read right after the answer");
        }
    }
    // Over all steps the parts are measured by several processes, whose clocks may differ by some milliseconds.
    let whole = if mode == Mode::AllInOne { "tiny_embedding" } else { "tiny_encoder" };
    let stats = statistics(&sandbox, whole);
    let ns = |part: &str| stats["inference_stats"][part]["ns"].as_u64().expect("a number");
    assert!(ns("success") > ns("queue") + ns("compute_infer"), "{stats}");
    assert!(stats["last_inference"].as_u64().expect("a number") > 1_600_000_000_000, "{stats}");

    // A request that never reached a model does not count as its failure.
    let refused = json!({"inputs": [{"name": "TEXT", "datatype": "INT32", "shape": [1], "data": [1]}]});
    assert_eq!(sandbox.infer("tiny_embedding", &refused).status, 400);
    assert_eq!(statistics(&sandbox, "tiny_embedding")["inference_stats"]["fail"]["count"], 0);
    // A request that was too late counts for the model that was asked for.
    let late = json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1.0]}],
        "parameters": {"trireme_timeout_ms": 1}});
    assert_eq!(sandbox.infer("slow_identity", &late).status, 503);
    assert_eq!(statistics(&sandbox, "slow_identity")["inference_stats"]["fail"]["count"], 1);
}

#[test]
fn counters_never_go_backwards() {
    let mut sandbox = Setup::new(Mode::Services).replicas(Stage::Model, 2).start();
    let address = sandbox.address;
    let ask = |number: usize| {
        let response = Request::infer("tiny_embedding", &text(number)).send(address).expect("an answer");
        assert_eq!(response.status, 200, "{}", response.text());
    };
    load(200, 4, ask, || {}).assert_all_right(200);
    assert_eq!(checked(&sandbox, "tiny_encoder"), 200, "both workers' work, read right after the answers");

    // Counts of a killed worker stay.
    sandbox.worker(Stage::Model, 0).kill();
    assert_eq!(checked(&sandbox, "tiny_encoder"), 200);
    load(100, 4, ask, || {}).assert_all_right(100);
    assert_eq!(checked(&sandbox, "tiny_encoder"), 300);
    assert_eq!(checked(&sandbox, "tiny_embedding"), 300);

    // A worker that leaves in order sends its last statistics, and a new worker begins at 0.
    sandbox.start_worker(Stage::Model);
    sandbox.wait_ready();
    load(50, 4, ask, || {}).assert_all_right(50);
    let leaving = sandbox.worker(Stage::Model, 1);
    leaving.terminate();
    assert_eq!(leaving.wait_exit(Duration::from_secs(35)).code(), Some(0));
    wait_until("its last word", SOON, || (checked(&sandbox, "tiny_encoder") == 350).then_some(()));

    // Under load, while a worker is killed, every reading is at least the one before.
    sandbox.start_worker(Stage::Model);
    sandbox.wait_ready();
    let mut readings = Vec::new();
    load(200, 4, ask, || {
        sandbox.worker(Stage::Model, 2).kill();
        readings.extend((0..10).map(|_| checked(&sandbox, "tiny_encoder")));
    })
    .assert_all_right(200);
    assert!(readings.is_sorted() && readings[0] >= 350, "{readings:?}");
    assert_eq!(checked(&sandbox, "tiny_embedding"), 550);
}

#[test]
fn one_call_changes_what_every_process_logs() {
    let mut sandbox = Sandbox::start(Mode::Services);
    let changed = sandbox.send(&Request::post("/v2/logging", r#"{"log_verbose_level":1}"#));
    assert_eq!(changed.status, 200, "{}", changed.text());
    for stage in [Stage::Tokenizer, Stage::Model, Stage::Postprocess] {
        let worker = sandbox.worker(stage, 0);
        wait_until("the worker logs as told", SOON, || (worker.count("log levels were changed") > 0).then_some(()));
    }
    // A failed request leaves a log line with its ids.
    let refused = json!({"id": "mine", "inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["a"]}],
        "parameters": {"trireme_timeout_ms": 1}});
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let response = sandbox.send(&Request::infer("tiny_embedding", &refused).header("traceparent", parent));
    assert_eq!(response.status, 503, "{}", response.text());
    let line = wait_until("the gateway's line", SOON, || {
        sandbox.gateway.events().into_iter().find(|event| event["message"] == "request failed")
    });
    assert_eq!(
        (&line["id"], &line["trace_id"]),
        (&json!("mine"), &json!("4bf92f3577b34da6a3ce929d0e0e4736")),
        "{line}"
    );
    assert!(line["request_id"].is_string(), "{line}");
}

// === Metrics ===

/// The exported metrics of a process.
pub struct Scrape {
    /// Kind and help of each family.
    families: BTreeMap<String, (String, String)>,
    /// Samples by name and labels, as written.
    pub samples: BTreeMap<String, f64>,
}

/// The metrics of a process, at the address that its log names.
#[track_caller]
pub fn scrape(process: &Process, listener: &str) -> Scrape {
    let address: SocketAddr = wait_until(listener, SOON, || {
        let events = process.events();
        let listening = events.iter().find(|event| event["message"] == listener)?;
        listening["address"].as_str()?.parse().ok()
    });
    let response = Request::get("/metrics").send(address).expect("an answer");
    assert_eq!((response.status, response.header("content-type")), (200, Some("text/plain; charset=utf-8")));
    let (mut families, mut samples, mut helps) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for line in response.text().lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            helps.insert(name.to_owned(), help.to_owned());
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let help = helps.get(name).cloned().expect("a help text comes first");
            assert!(families.insert(name.to_owned(), (kind.to_owned(), help)).is_none(), "{name} comes twice");
        } else {
            let (name, value) = line.rsplit_once(' ').expect("a sample has a value");
            let value = value.parse().expect("a value is a number");
            assert!(samples.insert(name.to_owned(), value).is_none(), "{name} comes twice");
        }
    }
    Scrape { families, samples }
}

fn metrics_say_what_statistics_say(mode: Mode) {
    let sandbox = Sandbox::start(mode);
    for number in 0..5 {
        assert_eq!(sandbox.infer("tiny_embedding", &text(number)).status, 200);
    }
    // An answer is sent before its message is acknowledged, so gauges of requests in flight become 0 a moment later.
    let pending = |name: &str| {
        ["nv_inference_pending", "trireme_queue", "trireme_gateway_in_flight"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    let scraped = wait_until("nothing is pending", SOON, || {
        let scraped = scrape(&sandbox.gateway, "metrics listener");
        scraped.samples.iter().all(|(name, value)| !pending(name) || *value == 0.0).then_some(scraped)
    });
    let value = |name: &str| *scraped.samples.get(name).unwrap_or_else(|| panic!("no {name}: {:#?}", scraped.samples));
    for model in ["tiny_embedding", "tiny_tokenizer", "tiny_encoder", "tiny_pool"] {
        let labels = format!(r#"model="{model}",version="1""#);
        let stats = statistics(&sandbox, model);
        let stats = |part: &str| stats["inference_stats"][part]["ns"].as_u64().expect("a number") / 1000;
        assert_eq!(value(&format!("nv_inference_request_success{{{labels}}}")), 5.0);
        assert_eq!(value(&format!("nv_inference_count{{{labels}}}")), 5.0);
        assert_eq!(value(&format!("nv_inference_request_duration_us{{{labels}}}")), stats("success") as f64);
        assert_eq!(value(&format!("nv_inference_queue_duration_us{{{labels}}}")), stats("queue") as f64);
        assert_eq!(value(&format!("nv_inference_pending_request_count{{{labels}}}")), 0.0);
        for reason in ["REJECTED", "CANCELED", "BACKEND", "OTHER", "BROKER"] {
            let failed = format!(r#"nv_inference_request_failure{{model="{model}",reason="{reason}",version="1"}}"#);
            assert_eq!(value(&failed), 0.0);
        }
    }
    assert_eq!(value(r#"trireme_queue_waiting_messages{model="tiny_encoder",version="1"}"#), 0.0);
    assert_eq!(value(r#"trireme_workers{model="tiny_encoder",version="1"}"#), 1.0);
    assert_eq!(value(r#"trireme_gateway_request_seconds_count{model="tiny_embedding",version="1"}"#), 5.0);
    assert_eq!(value("trireme_gateway_in_flight_requests"), 0.0);
    assert!(value("nv_cpu_memory_total_bytes") > 1e8);
}

/// The basic repository with a cache for one model, which also sets histogram bounds of its own.
fn cached() -> ModelFolder {
    let family = "nv_inference_first_response_histogram_ms";
    let bounds = format!(
        "response_cache {{ enable: true }} model_metrics {{ metric_control {{
           metric_identifier {{ family: '{family}' }} histogram_options {{ buckets: [0.5, 20000] }} }} }}"
    );
    ModelFolder::copy_of(&basic_repository()).with_setting("identity_fp32", &bounds)
}

/// Arguments of a gateway with a cache and with all metrics.
const EVERYTHING: [&str; 8] = [
    "--text-cache",
    "1000000",
    "--cache-config",
    "local,size=1000000",
    "--metrics-config",
    "summary_latencies=true",
    "--metrics-config",
    "histogram_latencies=true",
];

#[track_caller]
fn ask_cached(sandbox: &Sandbox) {
    let input = json!({"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]});
    assert_eq!(sandbox.infer("identity_fp32", &json!({"inputs": [input]})).numbers("OUTPUT0"), [1.0, 2.0]);
}

fn the_cache_and_a_models_own_bounds_show(mode: Mode) {
    let models = cached();
    let sandbox = Setup::new(mode).repository(models.path()).gateway_arguments(&EVERYTHING).start();
    (0..3).for_each(|_| ask_cached(&sandbox));
    assert_eq!(sandbox.infer("tiny_embedding", &text(0)).status, 200);
    let scraped = scrape(&sandbox.gateway, "metrics listener").samples;
    let labels = r#"model="identity_fp32",version="1""#;
    let value = |name: &str| *scraped.get(name).unwrap_or_else(|| panic!("no {name}: {scraped:#?}"));
    let inference = statistics(&sandbox, "identity_fp32")["inference_stats"].clone();
    for (kind, count) in [("hit", 2.0), ("miss", 1.0)] {
        let number = if kind == "hit" { "hits" } else { "misses" };
        assert_eq!(value(&format!("nv_cache_num_{number}_per_model{{{labels}}}")), count);
        assert_eq!(value(&format!("nv_cache_{kind}_summary_per_model_count{{{labels}}}")), count);
        let told = inference[format!("cache_{kind}")]["ns"].as_u64().expect("a number") / 1000;
        assert_eq!(value(&format!("nv_cache_{kind}_duration_per_model{{{labels}}}")), told as f64);
    }
    let others = |name: &&String| name.starts_with("nv_cache") && !name.contains("identity_fp32");
    assert_eq!(scraped.keys().find(others), None, "only models with a cache have its metrics");

    let buckets = |model: &str| {
        let start = format!(r#"nv_inference_first_response_histogram_ms_bucket{{model="{model}""#);
        let of_model = scraped.keys().filter(|name| name.starts_with(&start));
        of_model.filter_map(|name| name.split("le=\"").nth(1)?.split('"').next().map(str::to_owned)).collect()
    };
    let (own, usual): (BTreeSet<String>, BTreeSet<String>) = (buckets("identity_fp32"), buckets("tiny_embedding"));
    assert_eq!(own, BTreeSet::from(["0.5", "20000", "+Inf"].map(str::to_owned)));
    assert_eq!(usual, BTreeSet::from(["100", "500", "2000", "5000", "+Inf"].map(str::to_owned)));
}

/// The page's table is generated from the exported metrics; `UPDATE_DOCS=1` renews it.
#[test]
fn the_page_names_what_is_exported() {
    let models = cached();
    let mut sandbox = Setup::new(Mode::Services)
        .repository(models.path())
        .gateway_arguments(&EVERYTHING)
        .worker_arguments(&["--admin-address", "127.0.0.1:0"])
        .start();
    assert_eq!(sandbox.infer("tiny_embedding", &text(0)).status, 200);
    answer(&sandbox, "/v1/embeddings", json!({"model": "tiny_embedding", "input": "a"}));
    let gateway = scrape(&sandbox.gateway, "metrics listener");
    let worker = scrape(sandbox.worker(Stage::Model, 0), "admin listener");
    let stage = r#"model="tiny_encoder",stage="model",version="1""#;
    for name in
        ["trireme_stage_transit_seconds_count", "trireme_stage_queue_seconds_count", "trireme_stage_batch_rows_count"]
    {
        assert_eq!(worker.samples.get(&format!("{name}{{{stage}}}")), Some(&2.0), "{:#?}", worker.samples);
    }

    let left = r#"trireme_stage_time_left_ratio_count{lane="live",model="tiny_encoder",stage="model",version="1"}"#;
    assert_eq!(worker.samples.get(left), Some(&2.0), "{:#?}", worker.samples);

    let mut table = String::from("| metric | kind | from | labels | meaning |\n|---|---|---|---|---|\n");
    let names: BTreeSet<_> = gateway.families.keys().chain(worker.families.keys()).collect();
    for name in names {
        let from = match (gateway.families.contains_key(name), worker.families.contains_key(name)) {
            (true, true) => "all",
            (true, false) => "gateway",
            _ => "workers",
        };
        let (kind, help) = gateway.families.get(name).or(worker.families.get(name)).expect("one of them has it");
        let samples = gateway.samples.keys().chain(worker.samples.keys());
        let labels = labels(name, samples);
        writeln!(table, "| `{name}` | {kind} | {from} | {labels} | {help} |").expect("text can be written");
    }
    let path = workspace().join(PAGE);
    let page = fs::read_to_string(&path).expect("the page is there");
    let (before, rest) = page.split_once(TABLE_BEGIN).expect("the page has the mark of the table's beginning");
    let (_, after) = rest.split_once(TABLE_END).expect("the page has the mark of the table's end");
    let renewed = format!("{before}{TABLE_BEGIN}\n\n{table}\n{TABLE_END}{after}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        return fs::write(&path, renewed).expect("the page can be written");
    }
    let differs = renewed.lines().zip(page.lines()).find(|(renewed, page)| renewed != page);
    let how = "renew it with `UPDATE_DOCS=1 cargo test -p trireme-e2e --test suite statistics::`";
    assert!(renewed == page, "{PAGE} is out of date, {how}; it first differs here: {differs:#?}");
}

/// The labels of a family, without those that belong to its kind.
fn labels<'a>(family: &str, samples: impl Iterator<Item = &'a String>) -> String {
    let mut labels = BTreeSet::new();
    for sample in samples {
        let (name, rest) = sample.split_once('{').unwrap_or((sample, ""));
        let suffix = name.strip_prefix(family).filter(|suffix| ["", "_sum", "_count", "_bucket"].contains(suffix));
        if suffix.is_some() {
            let names = rest.trim_end_matches('}').split(',').filter_map(|pair| pair.split_once('='));
            labels.extend(names.map(|(name, _)| name).filter(|name| !["le", "quantile"].contains(name)));
        }
    }
    labels.into_iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ")
}
