//! The state of the whole system in one document, for `trireme status` and the console.
//!
//! Its fields are documented in docs/status.md. Counters only grow, so that rates come from two readings.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Map, Value, json};
use trireme_bus::{ModelState, QueueStatus, WorkerEntry};
use trireme_inference::{Counters, DropReason, FailureReason, Latencies, ModelKey, PlanStep, TensorSpec, UnixMicros};
use trireme_operations::Origin;
use trireme_protocol::repository::IndexState;

use super::bottleneck::{StepLoad, bottleneck};
use super::{Handlers, Queues};
use crate::registry::{Catalog, Process, ServedModel};
use crate::statistics::{Totals, Windows};

/// How long a document is kept: however many clients ask, the system is read twice a second.
const FRESH: Duration = Duration::from_millis(500);

impl Handlers {
    /// The system as it is now, as JSON.
    pub async fn status(&self) -> Bytes {
        let mut last = self.last_status.lock().await;
        if let Some((at, told)) = &last.told
            && at.elapsed() < FRESH
        {
            return told.clone();
        }
        let (totals, queues) = tokio::join!(self.totals(), self.queues());
        last.windows.advance(Instant::now(), &totals);
        let catalog = self.registry.catalog();
        let (entries, processes) = (self.registry.entries(), self.collector.processes());
        let now = UnixMicros::now();
        let document = json!({
            "name": self.id,
            "version": env!("CARGO_PKG_VERSION"),
            "deployment": Some(&self.deployment).filter(|name| !name.is_empty()),
            "gateway": self.dispatcher.gateway(),
            "ready": self.server_ready().unwrap_or(false),
            "problems": self.problems(&catalog),
            "jobs": self.keeps_jobs,
            "time": seconds(now.since(UnixMicros(0))),
            "latencies_since_start": last.windows.begin_at_the_start(Instant::now()),
            "gateways": gateways(&processes, now),
            "workers": workers(&entries, &processes, &totals, now),
            "models": models(&catalog, &entries, &queues, &totals, &last.windows),
        });
        let told = Bytes::from(document.to_string());
        last.told = Some((Instant::now(), told.clone()));
        told
    }
}

fn gateways(processes: &[Process], now: UnixMicros) -> Vec<Value> {
    let gateways = processes.iter().filter_map(|process| Some((process, process.in_flight?)));
    gateways
        .map(|(process, in_flight)| {
            let uptime = seconds(now.since(process.started));
            json!({
                "name": process.name,
                "uptime_seconds": uptime,
                "in_flight": in_flight,
                "clock_offset_seconds": offset(process),
            })
        })
        .collect()
}

/// Seconds by which a process's clock is behind the broker's.
fn offset(process: &Process) -> f64 {
    process.clock_offset_us as f64 / 1e6
}

fn workers(entries: &[(WorkerEntry, Duration)], processes: &[Process], totals: &Totals, now: UnixMicros) -> Vec<Value> {
    let mut workers: BTreeMap<&str, Vec<&(WorkerEntry, Duration)>> = BTreeMap::new();
    entries.iter().for_each(|entry| workers.entry(&entry.0.worker).or_default().push(entry));
    let worker = |(name, mut entries): (&str, Vec<&(WorkerEntry, Duration)>)| {
        entries.sort_by(|left, right| left.0.model.cmp(&right.0.model));
        let first = &entries.first()?.0;
        let process = processes.iter().find(|process| process.name == name);
        let models: Vec<_> = entries.iter().map(|(entry, age)| hosted(entry, *age, asleep(totals, entry))).collect();
        Some(json!({
            "name": name,
            "service": first.service,
            "host": first.host,
            "uptime_seconds": process.map(|process| seconds(now.since(process.started))),
            "clock_offset_seconds": process.map(offset),
            "models": models,
        }))
    };
    workers.into_iter().filter_map(worker).collect()
}

/// How long a worker has had a model out of memory, if it has.
fn asleep(totals: &Totals, entry: &WorkerEntry) -> Option<Duration> {
    let asleep = &totals.get(&entry.model)?.asleep;
    asleep.iter().find(|(process, _)| *process == entry.worker).map(|(_, asleep)| *asleep)
}

fn hosted(entry: &WorkerEntry, age: Duration, asleep: Option<Duration>) -> Value {
    let asleep = asleep.filter(|_| entry.state == ModelState::Ready);
    let (state, reason) = match &entry.state {
        ModelState::Ready if asleep.is_some() => ("ASLEEP", None),
        ModelState::Ready => ("READY", None),
        ModelState::Recovering(reason) => ("RECOVERING", Some(reason)),
        ModelState::Unloading => ("UNLOADING", None),
        ModelState::Loading(activity) => ("LOADING", Some(activity)),
        ModelState::Unavailable(reason) => ("UNAVAILABLE", Some(reason)),
    };
    json!({
        "model": entry.model.name,
        "version": entry.model.version,
        "state": state,
        "reason": reason,
        "asleep_seconds": asleep.map(seconds),
        "capacity": entry.capacity,
        "age_seconds": seconds(age),
    })
}

fn models(
    catalog: &Catalog,
    entries: &[(WorkerEntry, Duration)],
    queues: &Queues,
    totals: &Totals,
    windows: &Windows,
) -> Vec<Value> {
    let none = Counters::default();
    let load = |step: &PlanStep| {
        let Ok((version, _)) = catalog.find(&step.model, step.version) else { return StepLoad::default() };
        let key = ModelKey { name: step.model.clone(), version };
        let now = totals.get(&key).map_or(&none, |total| &total.counters);
        let before = windows.before(Instant::now(), &key).unwrap_or(&none);
        let median = |of: Of| lately(of, now, before).quantile(0.5).unwrap_or_default();
        StepLoad {
            waiting: queues.get(&key).map_or(0, QueueStatus::all_waiting),
            transit: median(|counters| &counters.transit),
            worker_queue: median(|counters| &counters.worker_queue),
            compute: median(|counters| &counters.compute),
        }
    };
    let model = |name: String, version: Option<(i64, bool, String)>| {
        let Some((version, ready, reason)) = version else {
            return json!({"name": name, "version": null, "ready": false, "reason": "no version of it is known"});
        };
        let key = ModelKey { name: name.into(), version };
        let mut model = Map::new();
        model.insert("name".to_owned(), json!(key.name));
        model.insert("version".to_owned(), json!(version));
        model.insert("ready".to_owned(), json!(ready));
        model.insert("reason".to_owned(), json!(Some(reason).filter(|reason| !reason.is_empty())));
        if let Ok((_, served)) = catalog.find(&key.name, Some(version)) {
            describe(served, &mut model);
            let Origin { space, equivalent, files_at } = catalog.origin_told(version, served, &[]);
            model.insert("space".to_owned(), json!(space));
            model.insert("equivalent_spaces".to_owned(), json!(equivalent));
            model.insert("files_changed_at".to_owned(), json!(files_at));
            if served.config.is_ensemble() {
                model.insert("bottleneck".to_owned(), slowest(&served.plan.steps, load));
            }
        }
        let hosts = entries.iter().filter(|(entry, _)| entry.model == key && entry.state == ModelState::Ready);
        let sleep: Vec<_> = hosts.map(|(entry, _)| asleep(totals, entry)).collect();
        model.insert("workers".to_owned(), json!(sleep.len()));
        // Where a worker is awake, no request waits for a load.
        let shortest = sleep.into_iter().collect::<Option<Vec<_>>>().and_then(|sleep| sleep.into_iter().min());
        model.insert("asleep_seconds".to_owned(), json!(shortest.map(seconds)));
        model.insert("queue".to_owned(), json!(queues.get(&key).map(queue)));
        let total = totals.get(&key).map_or(&none, |total| &total.counters);
        let before = windows.before(Instant::now(), &key).unwrap_or(&none);
        model.insert("counters".to_owned(), counters(total));
        model.insert("latencies".to_owned(), latencies(total, before));
        Value::Object(model)
    };
    let index = catalog.index().into_iter();
    index
        .map(|entry| {
            let version =
                entry.version.map(|version| (version.version, version.state == IndexState::Ready, version.reason));
            model(entry.name, version)
        })
        .collect()
}

/// Adds the inputs, outputs and steps of a model that is ready.
fn describe(served: &ServedModel, model: &mut Map<String, Value>) {
    let tensors = |specs: &[TensorSpec]| -> Vec<Value> {
        let tensor = |spec: &TensorSpec| json!({"name": spec.name, "datatype": spec.datatype.name(), "shape": &spec.shape[..], "optional": spec.optional});
        specs.iter().map(tensor).collect()
    };
    model.insert("platform".to_owned(), json!(served.platform()));
    model.insert("decoupled".to_owned(), json!(served.config.decoupled));
    model.insert("inputs".to_owned(), json!(tensors(&served.inputs)));
    model.insert("outputs".to_owned(), json!(tensors(&served.outputs)));
    if let Ok(capabilities) = &served.capabilities {
        model.insert("tasks".to_owned(), json!(capabilities.tasks.keys().map(|task| task.name()).collect::<Vec<_>>()));
    }
    // Clients name that model, and their prompt the route.
    if let Some(whole) = served.config.parameters.get("route_of") {
        model.insert("route_of".to_owned(), json!(whole));
    }
    if served.config.is_ensemble() {
        model.insert("steps".to_owned(), json!(served.plan.steps.iter().map(step).collect::<Vec<_>>()));
    }
}

/// The step that the others wait for, with the reason in words; null if there is none.
fn slowest(steps: &[PlanStep], load: impl Fn(&PlanStep) -> StepLoad) -> Value {
    let loads: Vec<StepLoad> = steps.iter().map(load).collect();
    let Some((index, load)) = bottleneck(&loads).and_then(|index| Some((index, loads.get(index)?))) else {
        return Value::Null;
    };
    let (model, wait, run) = (&steps[index].model, load.wait(), load.compute);
    let reason = format!(
        "requests wait {:.0} ms for {model}, and it runs {:.1} ms",
        wait.as_secs_f64() * 1e3,
        run.as_secs_f64() * 1e3
    );
    json!({"step": index, "model": model, "wait_seconds": seconds(wait), "run_seconds": seconds(run), "reason": reason})
}

fn step(step: &PlanStep) -> Value {
    let inputs = step.inputs.iter().map(|input| json!({"name": input.name, "tensor": input.tensor}));
    let outputs = step.outputs.iter().map(|output| json!({"name": output.name, "tensor": output.tensor}));
    json!({
        "model": step.model,
        "version": step.version,
        "inputs": inputs.collect::<Vec<_>>(),
        "outputs": outputs.collect::<Vec<_>>(),
    })
}

fn queue(status: &QueueStatus) -> Value {
    let oldest = status.oldest.into_iter().max().unwrap_or_default();
    json!({"waiting": status.all_waiting(), "delivered": status.delivered, "oldest_seconds": seconds(oldest)})
}

fn counters(counters: &Counters) -> Value {
    let failures = FailureReason::ALL.iter().zip(counters.failures);
    let failures: Map<_, _> = failures.map(|((_, label), count)| ((*label).to_owned(), json!(count))).collect();
    let dropped = DropReason::ALL.iter().zip(counters.dropped);
    let dropped: Map<_, _> = dropped.map(|((_, label), count)| ((*label).to_owned(), json!(count))).collect();
    json!({
        "requests": counters.request.count,
        "inferences": counters.inferences,
        "executions": counters.executions,
        "failures": failures,
        "dropped": dropped,
        "redeliveries": counters.redeliveries,
        "dead_letters": counters.dead_letters,
        "tokens": counters.tokens,
        "padding_tokens": counters.padding_tokens,
        "answered": counters.answered.count,
    })
}

/// Latencies of one kind.
type Of = fn(&Counters) -> &Latencies;

/// The latencies of the last minute: those in `now` without those in `before`, the counts of a minute ago.
fn lately(of: Of, now: &Counters, before: &Counters) -> Latencies {
    of(now).since(of(before))
}

/// Latencies: the totals of `now`, and quantiles of the difference to `before`, the counts of a minute ago.
fn latencies(now: &Counters, before: &Counters) -> Value {
    let stages: [(&str, Of); 5] = [
        ("request", |counters| &counters.request),
        ("transit", |counters| &counters.transit),
        ("worker_queue", |counters| &counters.worker_queue),
        ("compute", |counters| &counters.compute),
        ("first_response", |counters| &counters.first_response),
    ];
    let stage = |(name, of): (&str, Of)| {
        let (all, lately) = (of(now), lately(of, now, before));
        let quantile = |share| lately.quantile(share).map(seconds);
        let sum = Duration::from_nanos(all.ns);
        let described = json!({"count": all.count, "sum_seconds": seconds(sum), "p50_seconds": quantile(0.5), "p99_seconds": quantile(0.99)});
        (name.to_owned(), described)
    };
    Value::Object(stages.into_iter().map(stage).collect())
}

/// Seconds, to the microsecond.
fn seconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Total;

    #[test]
    fn quantiles_are_of_lately_and_sums_of_ever() {
        let mut before = Counters::default();
        before.compute.record(Duration::from_secs(10));
        let mut now = before.clone();
        (0..9).for_each(|_| now.compute.record(Duration::from_millis(10)));
        let compute = &latencies(&now, &before)["compute"];
        assert_eq!(compute["count"], 10);
        assert_eq!(compute["sum_seconds"], 10.09);
        assert!(compute["p99_seconds"].as_f64().unwrap() <= 0.01, "{compute}");
        assert_eq!(latencies(&now, &before)["request"]["p50_seconds"], Value::Null);
    }

    #[test]
    fn workers_are_listed_with_all_they_host() {
        let entry = |worker: &str, model: &str| {
            let entry = WorkerEntry {
                worker: worker.to_owned(),
                service: "model".to_owned(),
                host: "h".to_owned(),
                model: ModelKey { name: model.into(), version: 1 },
                state: if model == "z" { ModelState::Ready } else { ModelState::Unavailable("broken".to_owned()) },
                config: String::new(),
                capacity: 4,
                bulk: true,
                content: None,
                since: UnixMicros(1),
            };
            (entry, Duration::from_millis(1500))
        };
        let process = |name: &str, in_flight| Process {
            name: name.to_owned(),
            started: UnixMicros(0),
            in_flight,
            clock_offset_us: -2_500_000,
        };
        let processes = [process("a", None), process("g", Some(3))];
        let now = UnixMicros(2_000_000);
        let asleep = [("y", "a"), ("z", "c")].map(|(model, process)| {
            let asleep = vec![(process.to_owned(), Duration::from_secs(90))];
            (ModelKey { name: model.into(), version: 1 }, Total { asleep, ..Total::default() })
        });
        let entries = [entry("b", "y"), entry("a", "y"), entry("a", "x"), entry("c", "z"), entry("d", "z")];
        let workers = workers(&entries, &processes, &Totals::from(asleep), now);
        assert_eq!(workers[0]["models"][1]["state"], "UNAVAILABLE");
        let states = [2, 3].map(|worker: usize| &workers[worker]["models"][0]);
        assert_eq!((&states[0]["state"], &states[0]["asleep_seconds"]), (&json!("ASLEEP"), &json!(90.0)));
        assert_eq!((&states[1]["state"], &states[1]["asleep_seconds"]), (&json!("READY"), &Value::Null));
        assert_eq!(workers[0]["uptime_seconds"], 2.0);
        assert_eq!(workers[0]["models"][0]["model"], "x");
        assert_eq!(workers[0]["models"][1]["reason"], "broken");
        assert_eq!((&workers[1]["name"], &workers[1]["uptime_seconds"]), (&json!("b"), &Value::Null));
        assert_eq!(workers[0]["clock_offset_seconds"], -2.5);
        let gateway = json!({"name": "g", "uptime_seconds": 2.0, "in_flight": 3, "clock_offset_seconds": -2.5});
        assert_eq!(gateways(&processes, now), [gateway]);
    }
}
