//! `trireme status`: the running system as a gateway knows it, from its document at `/v2/trireme/status`, and its batches.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::Value;
use trireme_runtime::service;

use crate::client::{Client, ServerArgs};
use crate::style::{self, Cell, Style, cell, colours, paint, table};

mod pipeline;

/// The path of the document.
const PATH: &str = "/v2/trireme/status";

/// The path of the latest batches.
const BATCHES: &str = "/v1/batches?limit=10";

/// The names that a server has in its metadata when nobody gave it one of its own.
const USUAL_NAMES: [&str; 2] = ["triton", "trireme"];

/// Seconds by which a clock may be off without a warning.
const WORTH_A_WARNING: f64 = 1.0;

/// Clears the terminal and its scrollback.
const CLEAR: &str = "\x1b[H\x1b[2J\x1b[3J";

/// Flags of `trireme status`.
#[derive(Args)]
pub struct StatusArgs {
    #[command(flatten)]
    server: ServerArgs,

    /// Print the gateway's document as it is
    #[arg(long)]
    json: bool,

    /// Go on, and show changes; every two seconds unless another number of seconds is given
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
}

/// Asks and prints, once or for ever.
pub fn run(args: &StatusArgs) -> ExitCode {
    match show(args) {
        Ok(code) => code,
        Err(error) => service::fail(&error),
    }
}

fn show(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let client = Client::new(&args.server)?;
    let mut before: Option<Value> = None;
    let clear = if args.watch.is_some() && std::io::stdout().is_terminal() && !args.json { CLEAR } else { "" };
    loop {
        let now = client.get(PATH);
        let text = match (&now, args.watch) {
            (Ok(now), _) if args.json => format!("{}\n", style::harmless_json(now)),
            (Ok(now), _) => {
                let batches = (now["jobs"] == true).then(|| client.get(BATCHES));
                format!("{clear}{}{}", render(now, before.as_ref(), colours()), show_batches(now, batches, colours()))
            }
            (Err(_), None) => return now.context("no status").map(|_| ExitCode::FAILURE),
            // Waits for a gateway that restarts.
            (Err(error), Some(_)) => format!("{clear}{}\n", paint(&format!("{error:#}"), Style::Bad, colours())),
        };
        let written = crate::output::write_out(text.as_bytes());
        let Some(seconds) = args.watch else { return Ok(written) };
        if written != ExitCode::SUCCESS {
            return Ok(written);
        }
        before = now.ok().or(before);
        std::thread::sleep(Duration::from_secs(seconds));
    }
}

/// The tables; with an earlier document, rates since then.
fn render(now: &Value, before: Option<&Value>, colours: bool) -> String {
    let mut out = String::new();
    let ready = match now["ready"].as_bool() {
        Some(true) => paint("ready", Style::Good, colours),
        _ => paint("not ready", Style::Bad, colours),
    };
    let product = paint("trireme", Style::Strong, colours);
    let own = text(&now["name"]);
    let name = if USUAL_NAMES.contains(&own) { String::new() } else { format!(" '{}'", style::harmless(own)) };
    let deployment = now["deployment"].as_str().map(|name| format!(" of deployment '{}'", style::harmless(name)));
    let deployment = deployment.unwrap_or_default();
    let version = style::harmless(text(&now["version"]));
    let _ = writeln!(out, "{product} {version}{name}{deployment} is {ready}\n");
    for problem in list(&now["problems"]) {
        let _ = writeln!(out, "  {}", paint(text(problem), Style::Bad, colours));
    }
    if list(&now["problems"]).next().is_some() {
        out.push('\n');
    }
    let lines: Vec<_> = list(&now["gateways"]).map(gateway).collect();
    table(&mut out, &["gateway", ">up", ">in flight"], &lines, colours);
    if lines.is_empty() {
        out.push_str("  none yet: gateways are listed from their first heartbeat on, within 3 s of their start\n");
    }
    out.push('\n');
    let lines: Vec<_> = list(&now["workers"]).flat_map(worker).collect();
    table(&mut out, &["worker", "service", "host", ">up", "model", "state", ">capacity", ">seen"], &lines, colours);
    out.push('\n');
    for process in list(&now["gateways"]).chain(list(&now["workers"])) {
        if let Some(warning) = clock(process) {
            let _ = writeln!(out, "{}\n", paint(&warning, Style::Bad, colours));
        }
    }
    let earlier: HashMap<String, &Value> =
        before.into_iter().flat_map(|before| list(&before["models"])).map(|model| (key(model), model)).collect();
    let elapsed = before.map(|before| number(&now["time"]) - number(&before["time"])).filter(|elapsed| *elapsed > 0.0);
    let lines: Vec<_> = list(&now["models"])
        .map(|model| {
            let since = elapsed.and_then(|elapsed| Some((*earlier.get(&key(model))?, elapsed)));
            self::model(model, since)
        })
        .collect();
    let heading = [
        "model",
        "state",
        ">workers",
        ">queued",
        ">in work",
        ">oldest",
        ">done",
        ">failed",
        ">per s",
        ">p50",
        ">p99",
        ">queue p50",
        ">compute p50",
    ];
    table(&mut out, &heading, &lines, colours);
    if lines.is_empty() {
        out.push_str("  no models: the model repository is empty, and no worker serves one\n");
    }
    let steps: HashSet<&str> = list(&now["models"])
        .flat_map(|model| list(&model["steps"]))
        .filter_map(|step| step["model"].as_str())
        .collect();
    for model in list(&now["models"]) {
        if let Some(steps) = model["steps"].as_array() {
            let name = paint(text(&model["name"]), Style::Plain, colours);
            for (number, line) in pipeline::draw(steps).iter().enumerate() {
                let line = paint(line, Style::Plain, colours);
                let _ = if number == 0 { write!(out, "\n  {name} = {line}") } else { write!(out, "\n    {line}") };
            }
            if let Some(reason) = model["bottleneck"]["reason"].as_str() {
                let _ = write!(out, "\n    bottleneck: {}", paint(reason, Style::Bad, colours));
            }
        }
        // The space of a step is a part of its ensemble's space.
        if let Some(space) = model["space"].as_str().filter(|_| !steps.contains(text(&model["name"]))) {
            let others: Vec<&str> = list(&model["equivalent_spaces"]).filter_map(Value::as_str).collect();
            let equals = if others.is_empty() { String::new() } else { format!(", equals {}", others.join(", ")) };
            let space = style::harmless(&format!("{space}{equals}"));
            let _ = match model["steps"].is_array() {
                true => write!(out, "\n    space: {space}"),
                false => write!(out, "\n  {}: space {space}", paint(&key(model), Style::Plain, colours)),
            };
        }
        let name = format!("'{}'", text(&model["name"]));
        let is_said = list(&now["problems"]).any(|problem| text(problem).contains(&name));
        if let Some(reason) = model["reason"].as_str().filter(|_| !is_said) {
            let _ = write!(
                out,
                "\n  {}: {}",
                paint(&key(model), Style::Plain, colours),
                paint(reason, Style::Bad, colours)
            );
        }
    }
    out.push('\n');
    out
}

/// The table of the latest batches; nothing where the gateway takes no durable work, or has no batch.
fn show_batches(now: &Value, batches: Option<anyhow::Result<Value>>, colours: bool) -> String {
    let batches = match batches {
        None => return String::new(),
        Some(Err(error)) => {
            return format!("\n{}\n", paint(&format!("no batches are shown: {error:#}"), Style::Bad, colours));
        }
        Some(Ok(batches)) => batches,
    };
    let lines: Vec<_> = list(&batches["data"]).map(|batch| self::batch(batch, number(&now["time"]))).collect();
    if lines.is_empty() {
        return String::new();
    }
    let mut out = "\n".to_owned();
    let heading = ["batch", "state", "endpoint", ">lines", ">done", ">failed", ">per s", ">left"];
    table(&mut out, &heading, &lines, colours);
    for batch in list(&batches["data"]) {
        for error in list(&batch["errors"]["data"]) {
            let message = paint(text(&error["message"]), Style::Bad, colours);
            let _ = writeln!(out, "\n  {}: {message}", style::harmless(text(&batch["id"])));
        }
    }
    if batches["has_more"] == true {
        out.push_str("  older batches: GET /v1/batches\n");
    }
    out
}

/// A batch's line at `now`, in seconds since 1970.
fn batch(batch: &Value, now: f64) -> Vec<Cell> {
    let counts = &batch["request_counts"];
    let (total, failed) = (number(&counts["total"]), number(&counts["failed"]));
    let done = number(&counts["completed"]) + failed;
    let ends = ["completed_at", "failed_at", "expired_at", "cancelled_at"];
    let end = ends.iter().find_map(|end| batch[*end].as_f64()).unwrap_or(now);
    let rate = batch["in_progress_at"].as_f64().map(|begun| done / (end - begun).max(1.0));
    let state = text(&batch["status"]);
    let left = rate.filter(|rate| state == "in_progress" && *rate > 0.0).map(|rate| style::age((total - done) / rate));
    let style = match state {
        "completed" if failed == 0.0 => Style::Good,
        "completed" | "failed" | "expired" => Style::Bad,
        _ => Style::Plain,
    };
    vec![
        cell(text(&batch["id"])),
        (state.to_owned(), style),
        cell(text(&batch["endpoint"])),
        cell(total),
        cell(done),
        (failed.to_string(), if failed > 0.0 { Style::Bad } else { Style::Plain }),
        cell(rate.map_or("-".to_owned(), |rate| format!("{rate:.1}"))),
        cell(left.unwrap_or_else(|| "-".to_owned())),
    ]
}

fn gateway(gateway: &Value) -> Vec<Cell> {
    vec![cell(text(&gateway["name"])), cell(age(&gateway["uptime_seconds"])), cell(&gateway["in_flight"])]
}

fn worker(worker: &Value) -> Vec<Vec<Cell>> {
    let line = |(i, hosted): (usize, &Value)| {
        let own = |value: String| if i == 0 { cell(value) } else { cell("") };
        let state = text(&hosted["state"]);
        let style = if ["READY", "ASLEEP"].contains(&state) { Style::Good } else { Style::Bad };
        vec![
            own(text(&worker["name"]).to_owned()),
            own(text(&worker["service"]).to_owned()),
            own(text(&worker["host"]).to_owned()),
            own(age(&worker["uptime_seconds"])),
            cell(format!("{}:{}", text(&hosted["model"]), hosted["version"])),
            (state.to_lowercase() + &asleep(hosted), style),
            cell(&hosted["capacity"]),
            cell(age(&hosted["age_seconds"])),
        ]
    };
    list(&worker["models"]).enumerate().map(line).collect()
}

/// A warning about a process whose clock is far off.
fn clock(process: &Value) -> Option<String> {
    let offset = number(&process["clock_offset_seconds"]);
    let way = if offset > 0.0 { "behind" } else { "ahead of" };
    let off = age(&Value::from(offset.abs()));
    let host = process["host"].as_str().map(|host| format!(" (host {host})")).unwrap_or_default();
    let name = text(&process["name"]);
    (offset.abs() > WORTH_A_WARNING).then(|| format!("the clock of {name}{host} is {off} {way} the broker's"))
}

/// A model's line; `since` is the same model earlier, and the seconds that have passed.
fn model(model: &Value, since: Option<(&Value, f64)>) -> Vec<Cell> {
    let ready = model["ready"].as_bool() == Some(true);
    let (queue, counters, latencies) = (&model["queue"], &model["counters"], &model["latencies"]);
    let rate = since.map(|(before, elapsed)| {
        (number(&counters["requests"]) - number(&before["counters"]["requests"])).max(0.0) / elapsed
    });
    let of_queue = |field: &str| if queue.is_null() { cell("-") } else { cell(&queue[field]) };
    let failed = failures(counters);
    vec![
        cell(key(model)),
        match (ready, asleep(model)) {
            (true, asleep) if !asleep.is_empty() => (format!("asleep{asleep}"), Style::Good),
            (true, _) => ("ready".to_owned(), Style::Good),
            (false, _) => ("not ready".to_owned(), Style::Bad),
        },
        cell(&model["workers"]),
        of_queue("waiting"),
        of_queue("delivered"),
        if queue.is_null() { cell("-") } else { cell(age(&queue["oldest_seconds"])) },
        cell(number(&counters["requests"])),
        (failed.to_string(), if failed > 0.0 { Style::Bad } else { Style::Plain }),
        cell(rate.map_or("-".to_owned(), |rate| format!("{rate:.1}"))),
        cell(millis(&latencies["request"]["p50_seconds"])),
        cell(millis(&latencies["request"]["p99_seconds"])),
        cell(millis(&latencies["worker_queue"]["p50_seconds"])),
        cell(millis(&latencies["compute"]["p50_seconds"])),
    ]
}

/// How long a model has been out of memory; empty where it is in it.
fn asleep(model: &Value) -> String {
    model["asleep_seconds"].as_f64().map(|seconds| format!(" {}", style::age(seconds))).unwrap_or_default()
}

fn failures(counters: &Value) -> f64 {
    counters["failures"].as_object().into_iter().flat_map(|reasons| reasons.values()).map(number).sum()
}

fn key(model: &Value) -> String {
    match model["version"].as_i64() {
        Some(version) => format!("{}:{version}", text(&model["name"])),
        None => text(&model["name"]).to_owned(),
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

fn age(seconds: &Value) -> String {
    seconds.as_f64().map_or("-".to_owned(), style::age)
}

fn millis(seconds: &Value) -> String {
    seconds.as_f64().map_or("-".to_owned(), |seconds| format!("{:.2} ms", seconds * 1e3))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document(time: f64, requests: u64) -> Value {
        json!({
            "name": "triton", "version": "1", "ready": false, "time": time,
            "gateways": [{"name": "g", "uptime_seconds": 30.0, "in_flight": 2}],
            "workers": [{"name": "w", "service": "model", "host": "h", "uptime_seconds": 7200.0, "models": [
                {"model": "m", "version": 1, "state": "READY", "capacity": 4, "age_seconds": 0.5},
                {"model": "n", "version": 1, "state": "UNAVAILABLE", "reason": "x", "capacity": 4, "age_seconds": 0.5}]}],
            "models": [
                {"name": "m", "version": 1, "ready": true, "workers": 1,
                 "queue": {"waiting": 3, "delivered": 4, "oldest_seconds": 0.25},
                 "counters": {"requests": requests, "failures": {"OTHER": 1, "BACKEND": 2}},
                 "latencies": {"request": {"p50_seconds": 0.0015, "p99_seconds": null}}},
                {"name": "e\u{1b}[2J", "version": 1, "ready": false, "reason": "no worker serves it", "workers": 0, "queue": null,
                 "steps": [{"model": "m", "outputs": [{"tensor": "t"}]}, {"model": "n", "inputs": [{"tensor": "t"}]}],
                 "bottleneck": {"step": 1, "model": "n", "reason": "requests wait 400 ms for n, and it runs 5.0 ms"}}]
        })
    }

    #[test]
    fn clocks_that_are_off_are_named() {
        let process = |offset: f64| json!({"name": "w", "host": "h", "clock_offset_seconds": offset});
        assert_eq!(clock(&process(2.5)).unwrap(), "the clock of w (host h) is 2.5 s behind the broker's");
        assert_eq!(clock(&process(-180.0)).unwrap(), "the clock of w (host h) is 3 min ahead of the broker's");
        assert_eq!(clock(&process(0.9)), None);
        assert_eq!(clock(&json!({"name": "g"})), None);
        let mut document = document(10.0, 1);
        document["gateways"][0]["clock_offset_seconds"] = json!(7200.0);
        assert!(render(&document, None, false).contains("the clock of g is 2 h behind the broker's"));
    }

    #[test]
    fn problems_are_said_once() {
        let mut document = document(10.0, 1);
        let problem = "no live worker for step 1 (tokenizer) of model 'e'";
        document["problems"] = json!(["the broker cannot be reached, since 12 s: the connection is lost", problem]);
        document["models"][1]["name"] = json!("e");
        let shown = render(&document, None, false);
        assert!(shown.contains("the broker cannot be reached, since 12 s") && shown.contains(problem), "{shown}");
        assert!(!shown.contains("no worker serves it"), "{shown}");
    }

    #[test]
    fn the_product_is_named_and_an_own_name_beside_it() {
        let first = |name: &str| {
            let mut document = document(10.0, 1);
            document["name"] = json!(name);
            render(&document, None, false).lines().next().unwrap().to_owned()
        };
        assert_eq!(first("triton"), "trireme 1 is not ready");
        assert_eq!(first("edge\u{1b}[2J"), "trireme 1 'edge\\u{1b}[2J' is not ready");
    }

    #[test]
    fn models_that_sleep_say_since_when() {
        let mut document = document(10.0, 1);
        document["workers"][0]["models"][0]["state"] = json!("ASLEEP");
        document["workers"][0]["models"][0]["asleep_seconds"] = json!(7200.0);
        document["models"][0]["asleep_seconds"] = json!(90.0);
        let shown = render(&document, None, false);
        assert!(shown.contains("asleep 2 h") && shown.contains("asleep 2 min"), "{shown}");
    }

    #[test]
    fn a_system_without_models_says_so() {
        let mut document = document(10.0, 1);
        document["models"] = json!([]);
        assert!(render(&document, None, false).contains("no models: the model repository is empty"));
    }

    #[test]
    fn a_gateway_that_is_not_known_yet_is_said() {
        let mut document = document(10.0, 1);
        assert!(!render(&document, None, false).contains("none yet"));
        document["gateways"] = json!([]);
        assert!(render(&document, None, false).contains("none yet: gateways are listed from their first heartbeat on"));
    }

    #[test]
    fn batches_have_their_progress_rate_and_errors() {
        let batch = |state: &str, counts: [u64; 3]| {
            json!({"id": "batch_1", "endpoint": "/v1/embeddings", "status": state, "in_progress_at": 100, "errors": null,
                "request_counts": {"total": counts[0], "completed": counts[1], "failed": counts[2]}})
        };
        let shown = |batches: Value| show_batches(&json!({"time": 110.0}), Some(Ok(batches)), false);
        let words = |text: &str| text.lines().nth(2).unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let running = shown(json!({"data": [batch("in_progress", [1000, 190, 10])], "has_more": true}));
        let expected = ["batch_1", "in_progress", "/v1/embeddings", "1000", "200", "10", "20.0", "40.0", "s"];
        assert_eq!(words(&running), expected, "{running}");
        assert!(running.contains("GET /v1/batches"));
        let mut ended = batch("completed", [50, 50, 0]);
        ended["completed_at"] = json!(105);
        assert_eq!(words(&shown(json!({"data": [ended]})))[3..], ["50", "50", "0", "10.0", "-"]);
        let mut faulty = batch("failed", [0, 0, 0]);
        faulty["errors"] = json!({"data": [{"message": "no\u{1b} lines"}]});
        assert!(shown(json!({"data": [faulty]})).contains("batch_1: no\\u{1b} lines"));
        assert_eq!(shown(json!({"data": []})), "");
        let refused = show_batches(&json!({}), Some(Err(anyhow::anyhow!("the server answered 403"))), false);
        assert_eq!(refused, "\nno batches are shown: the server answered 403\n");
        assert_eq!(show_batches(&json!({}), None, false), "");
    }

    #[test]
    fn rates_come_from_two_readings() {
        let alone = render(&document(10.0, 100), None, false);
        let row = |text: &str| text.lines().find(|line| line.trim_start().starts_with("m:1")).unwrap().to_owned();
        assert_eq!(
            row(&alone).split_whitespace().collect::<Vec<_>>()[..11],
            ["m:1", "ready", "1", "3", "4", "0.2", "s", "100", "3", "-", "1.50"]
        );
        let later = render(&document(12.0, 150), Some(&document(10.0, 100)), false);
        assert!(row(&later).contains(" 25.0 "), "{later}");
        assert!(later.contains("bottleneck: requests wait 400 ms for n"), "{later}");
        assert!(later.contains("m → n") && later.contains("no worker serves it") && later.contains("2 h"), "{later}");
        assert!(!later.contains('\u{1b}'), "names from elsewhere do not command the terminal");
    }
}
