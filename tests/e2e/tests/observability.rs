//! The dashboard, the rules and the scrape configuration in `deploy/observability` match the exported metrics; a real
//! Prometheus, if there is one, has every series.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{
    Mode, ModelFolder, Process, Request, Sandbox, Setup, Stage, basic_repository, golden, in_one_mode, load,
    wait_until, workspace,
};
use trireme_testkit::quiet_port;

in_one_mode!(prometheus_has_every_series);

/// The variable with the path of Prometheus, if it is not in PATH.
const PROMETHEUS: &str = "PROMETHEUS";

/// Time for several scrapes, which come every 5 s.
const SCRAPED: Duration = Duration::from_secs(60);

fn read(path: &str) -> String {
    fs::read_to_string(workspace().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The metrics of docs/metrics.md, name and kind; another test compares that page with the exported metrics.
fn documented() -> BTreeMap<String, String> {
    let page = read("docs/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let row = |row: &str| {
        let (name, rest) = row.split_once("` | ")?;
        Some((name.to_owned(), rest.split(' ').next()?.to_owned()))
    };
    rows.filter_map(row).filter(|(_, kind)| ["counter", "gauge", "histogram", "summary"].contains(&&kind[..])).collect()
}

/// The dashboard's queries, with the title of their panel.
fn dashboard() -> Vec<(String, String)> {
    let dashboard: Value =
        serde_json::from_str(&read("deploy/observability/grafana/dashboards/trireme.json")).expect("it is JSON");
    let panels = dashboard["panels"].as_array().expect("a list of panels");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let targets = |panel: &Value| panel["targets"].as_array().cloned().unwrap_or_default();
    panels
        .iter()
        .flat_map(|panel| targets(panel).into_iter().map(|t| (text(&panel["title"]), text(&t["expr"]))))
        .collect()
}

/// The names of metrics in an expression.
fn names(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|word| ["nv_", "trireme_", "process_"].iter().any(|p| word.starts_with(p)))
        .map(str::to_owned)
        .collect()
}

#[test]
fn dashboards_and_rules_name_what_is_exported() {
    let documented = documented();
    let is_exported = |series: &str| {
        let parts = ["_bucket", "_sum", "_count"].iter().filter_map(|suffix| series.strip_suffix(suffix));
        let kind = |name: &str| documented.get(name).map(String::as_str);
        match kind(series) {
            Some(kind) => ["counter", "gauge"].contains(&kind),
            None => parts.into_iter().any(|name| kind(name) == Some("histogram")),
        }
    };
    let rules = read("deploy/observability/rules.yml");
    let asked = dashboard().into_iter().chain([("rules.yml".to_owned(), rules)]);
    let mut used = BTreeSet::new();
    for (place, expression) in asked {
        for name in names(&expression) {
            // `trireme_dead` is the stream of dead letters, named in a text.
            assert!(is_exported(&name) || name == "trireme_dead", "{place} uses {name}, which nobody exports");
            used.insert(name);
        }
    }
    for wanted in [
        "nv_inference_request_success",
        "nv_inference_request_failure",
        "trireme_stage_transit_seconds_bucket",
        "trireme_stage_queue_seconds_bucket",
        "trireme_stage_compute_seconds_bucket",
        "trireme_stage_batch_rows_sum",
        "trireme_stage_padding_tokens_total",
        "trireme_queue_waiting_messages",
        "trireme_queue_oldest_age_seconds",
        "trireme_stage_redeliveries_total",
        "trireme_stage_dead_letters_total",
        "process_cpu_seconds_total",
    ] {
        assert!(used.contains(wanted), "neither dashboard nor rules show {wanted}");
    }
}

fn program(name: &str) -> Option<PathBuf> {
    let named = std::env::var_os(PROMETHEUS).map(|path| PathBuf::from(path).with_file_name(name));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).map(|folder| folder.join(name));
    named.into_iter().chain(installed).find(|path| path.is_file())
}

/// The address of a process's metrics.
#[track_caller]
fn metrics_address(process: &Process, listener: &str) -> String {
    wait_until(listener, SCRAPED, || {
        let events = process.events();
        let listening = events.iter().find(|event| event["message"] == listener)?;
        listening["address"].as_str().map(str::to_owned)
    })
}

/// The shipped configuration, with these addresses in place of compose's host names.
fn configuration(targets: &[(&str, String)]) -> String {
    let shipped = read("deploy/observability/prometheus.yml");
    let (head, _) = shipped.split_once("scrape_configs:").expect("it says what to scrape");
    let mut configuration = format!("{head}scrape_configs:\n");
    for (job, address) in targets {
        assert!(shipped.contains(&format!("job_name: {job}\n")) || *job == "serve", "{job} is not scraped");
        configuration += &format!("  - {{job_name: {job}, static_configs: [{{targets: ['{address}']}}]}}\n");
    }
    configuration
}

/// The result of a query: the value of each series.
fn ask(prometheus: SocketAddr, query: &str) -> Result<Vec<f64>, String> {
    let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let response = Request::get(&format!("/api/v1/query?query={encoded}")).send(prometheus);
    let response = response.map_err(|error| error.to_string())?;
    if response.status != 200 {
        return Err(response.text());
    }
    let series = response.json()["data"]["result"].as_array().cloned().unwrap_or_default();
    let value = |series: &Value| series["value"][1].as_str().and_then(|value| value.parse().ok());
    Ok(series.iter().filter_map(value).collect())
}

fn prometheus_has_every_series(mode: Mode) {
    let (Some(prometheus), Some(promtool)) = (program("prometheus"), program("promtool")) else {
        return println!(
            "left out: prometheus is not installed (Debian: apt-get install prometheus), nor does {PROMETHEUS} name it"
        );
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let check = |path: PathBuf| {
        let checked = Command::new(&promtool).args(["check", "config"]).arg(path).output().expect("promtool runs");
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    };
    check(workspace().join("deploy/observability/prometheus.yml"));

    let mut everything =
        vec!["--metrics-config", "summary_latencies=true", "--metrics-config", "histogram_latencies=true"];
    everything.extend(["--cache-config", "local,size=1000000"]);
    let cached = "response_cache { enable: true }";
    let models = ModelFolder::copy_of(&basic_repository()).with_setting("identity_fp32", cached);
    let mut sandbox = Setup::new(mode)
        .repository(models.path())
        .gateway_arguments(&everything)
        .worker_arguments(if mode == Mode::Services { &["--admin-address", "127.0.0.1:0"] } else { &[] })
        .start();
    let mut targets = Vec::new();
    if mode == Mode::Services {
        targets.push(("gateway", metrics_address(&sandbox.gateway, "metrics listener")));
        for stage in [Stage::Tokenizer, Stage::Model, Stage::Postprocess] {
            targets.push((stage.service(), metrics_address(sandbox.worker(stage, 0), "admin listener")));
        }
    } else {
        targets.push(("serve", metrics_address(&sandbox.gateway, "metrics listener")));
    }
    let config = folder.path().join("prometheus.yml");
    fs::write(&config, configuration(&targets)).expect("the folder can be written");
    fs::write(folder.path().join("rules.yml"), read("deploy/observability/rules.yml"))
        .expect("the folder can be written");
    check(config.clone());
    let address = free_address();
    let mut command = Command::new(prometheus);
    command.arg("--config.file").arg(&config).arg("--storage.tsdb.path").arg(folder.path().join("data"));
    command.arg(format!("--web.listen-address={address}"));
    let process = Process::start("prometheus", &mut command, folder.path());

    let ready = wait_until("every target is up", SCRAPED, || {
        ask(address, "up == 1").ok().filter(|up| up.len() == targets.len())
    });
    assert_eq!(ready.len(), targets.len());
    // Scrapes with traffic in between, so that rates can be computed.
    for times in 1..=2 {
        traffic(&sandbox);
        wait_until("the requests are scraped", SCRAPED, || {
            let answered = ask(address, "max(nv_inference_request_success{model=\"tiny_embedding\"})");
            (answered == Ok(vec![f64::from(times) * 20.0])).then_some(())
        });
    }
    every_series(address);
    every_panel(address);
    let rules = Request::get("/api/v1/rules").send(address).expect("an answer").json();
    let rules = rules["data"]["groups"][0]["rules"].as_array().cloned().unwrap_or_default();
    assert!(!rules.is_empty() && rules.iter().all(|rule| rule["health"] != "err"), "{rules:#?}");
    drop(process);
}

fn traffic(sandbox: &Sandbox) {
    let golden = golden();
    let ask = |number: usize| {
        let data = [&golden[number % golden.len()].text];
        let body = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": data}]});
        assert_eq!(sandbox.infer("tiny_embedding", &body).status, 200);
    };
    load(20, 4, ask, || {}).assert_all_right(20);
}

/// Every metric of docs/metrics.md has samples.
#[track_caller]
fn every_series(prometheus: SocketAddr) {
    for (name, kind) in documented() {
        let series = match kind.as_str() {
            "histogram" => format!("{name}_bucket"),
            "summary" => format!("{name}_count"),
            _ => name,
        };
        wait_until(&series, SCRAPED, || ask(prometheus, &series).ok().filter(|values| !values.is_empty()));
    }
}

/// Every query of the dashboard has a result.
#[track_caller]
fn every_panel(prometheus: SocketAddr) {
    for (panel, expression) in dashboard() {
        let query = expression.replace("$__rate_interval", "1m").replace("$model", ".*");
        wait_until(&format!("{panel}: {query}"), SCRAPED, || match ask(prometheus, &query) {
            Ok(values) => (!values.is_empty()).then_some(()),
            Err(error) => panic!("{panel}: {query}: {error}"),
        });
    }
}

/// Prometheus does not report the port that it chose, so the test chooses one that is free now.
fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], quiet_port()))
}
