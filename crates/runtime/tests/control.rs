//! Model control on the in-process bus: the calls of participants, their order, and the contents of the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use parking_lot::Mutex;
use trireme_bus::InProcess;
use trireme_runtime::TaskSet;
use trireme_runtime::model_control::{
    self, Memory, ModelChange, Outcome, Outcomes, Override, Participant, Participation,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// The configuration of a model whose load never ends.
const HANGS: &str = "hangs";

/// Records the models that it loads. A load takes some time.
#[derive(Default)]
struct Host {
    /// The configuration of each model.
    models: Mutex<BTreeMap<String, Option<String>>>,
    /// The configurations it has loaded, in order.
    loads: Mutex<Vec<String>>,
    is_gateway: bool,
}

#[async_trait]
impl Participant for Host {
    async fn load(&self, model: &str, with: &Override) -> Outcome {
        if with.config.as_deref() == Some(HANGS) {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.loads.lock().extend(with.config.clone());
        self.models.lock().insert(model.to_owned(), with.config.clone());
        Outcome::Done(Vec::new())
    }

    async fn unload(&self, model: &str) -> Outcome {
        tokio::time::sleep(Duration::from_millis(2)).await;
        self.models.lock().remove(model);
        Outcome::Done(Vec::new())
    }

    async fn wanted_changed(&self, model: &str, wanted: Option<&Override>) {
        match wanted {
            Some(with) => self.load(model, with).await,
            None => self.unload(model).await,
        };
    }

    fn restores(&self) -> bool {
        self.is_gateway
    }
}

/// A process of the deployment.
struct Process {
    host: Arc<Host>,
    memory: Memory,
}

impl Process {
    async fn start(bus: &Arc<InProcess>, name: &str, tasks: &TaskSet) -> Process {
        let joined = Participation::join(bus.clone(), name.to_owned()).await.expect("in process nothing refuses");
        let host = Arc::new(Host { is_gateway: name.starts_with("gateway"), ..Host::default() });
        let memory = joined.memory().clone();
        for change in memory.changes() {
            host.wanted_changed(&change.model, change.wanted.as_ref()).await;
        }
        joined.serve(host.clone(), tasks);
        Process { host, memory }
    }

    /// Sends a command and writes the wanted configuration, as a gateway does for a client.
    async fn order(&self, bus: &InProcess, model: &str, wanted: Option<Override>, expected: &BTreeSet<String>) {
        let answers =
            model_control::command(bus, &self.memory, model, wanted.as_ref(), expected).await.expect("answers");
        assert_eq!(answers.into_keys().collect::<BTreeSet<_>>(), *expected);
        model_control::write_wanted(bus, &self.memory, model, wanted, false).await.expect("the store takes it");
    }

    /// The wanted configurations that this process knows.
    fn wanted(&self) -> BTreeMap<String, Option<String>> {
        let changes = self.memory.changes().into_iter();
        changes.filter_map(|change| Some((change.model, change.wanted?.config))).collect()
    }
}

fn configured(config: &str) -> Override {
    Override { config: Some(config.to_owned()), ..Override::default() }
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_gateways_at_once_end_with_one_state_everywhere() {
    const ORDERS: usize = 12;
    let (bus, tasks) = (Arc::new(InProcess::default()), TaskSet::new());
    let everybody = ["gateway 1", "gateway 2", "worker 1", "worker 2"];
    let processes = join_all(everybody.map(|name| Process::start(&bus, name, &tasks))).await;
    let expected = names(&everybody);
    let clients = processes[..2].iter().enumerate().map(async |(gateway, process)| {
        for number in 0..ORDERS {
            let wanted = (number % 3 > 0).then(|| configured(&format!("{gateway} {number}")));
            process.order(&bus, ["a", "b"][number % 2], wanted, &expected).await;
        }
    });
    join_all(clients).await;
    // The store has a change for every order: no order overwrote an order that it did not know.
    let later = Process::start(&bus, "worker 3", &tasks).await;
    for model in ["a", "b"] {
        let ModelChange { number, .. } = later.memory.get(model).expect("there were orders");
        assert_eq!(number, ORDERS as u64, "{model}");
    }
    let same = async {
        while processes.iter().any(|process| process.memory.changes() != later.memory.changes()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, same).await.expect("every process hears of every change");
    for (name, process) in everybody.iter().zip(&processes).chain([(&"worker 3", &later)]) {
        assert_eq!(*process.host.models.lock(), later.wanted(), "{name}");
    }
    tasks.join().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_joins_later_hosts_what_was_loaded() {
    let (bus, tasks) = (Arc::new(InProcess::default()), TaskSet::new());
    let gateway = Process::start(&bus, "gateway", &tasks).await;
    let expected = names(&["gateway"]);
    for model in ["loaded", "unloaded"] {
        gateway.order(&bus, model, Some(configured("{}")), &expected).await;
    }
    gateway.order(&bus, "unloaded", None, &expected).await;
    for name in ["worker", "gateway 2"] {
        let later = Process::start(&bus, name, &tasks).await;
        assert_eq!(*later.host.models.lock(), BTreeMap::from([("loaded".to_owned(), Some("{}".to_owned()))]));
        assert_eq!(later.memory.changes(), gateway.memory.changes());
    }
    tasks.join().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_for_one_model_are_carried_out_in_the_order_they_came_in() {
    let (bus, tasks) = (Arc::new(InProcess::default()), TaskSet::new());
    let worker = Process::start(&bus, "worker", &tasks).await;
    let (wanted, expected) = ((0..50).map(|number| configured(&number.to_string())), names(&["worker"]));
    let wanted: Vec<_> = wanted.collect();
    // Each command is sent when its future is first polled, which happens in this order.
    let commands = wanted.iter().map(|with| model_control::command(&*bus, &worker.memory, "m", Some(with), &expected));
    for answers in join_all(commands).await {
        assert_eq!(answers.unwrap(), Outcomes::from([("worker".to_owned(), Outcome::Done(Vec::new()))]));
    }
    let configurations: Vec<_> = wanted.into_iter().filter_map(|with| with.config).collect();
    assert_eq!(*worker.host.loads.lock(), configurations);
    tasks.join().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_hangs_holds_up_no_other_model() {
    let (bus, tasks) = (Arc::new(InProcess::default()), TaskSet::new());
    let gateway = Process::start(&bus, "gateway", &tasks).await;
    let worker = Process::start(&bus, "worker", &tasks).await;
    let (hangs, expected) = (configured(HANGS), names(&["worker", "gateway"]));
    let mut hanging = model_control::command(&*bus, &gateway.memory, "hang", Some(&hangs), &expected);
    assert!(futures_util::poll!(&mut hanging).is_pending());
    // A change in the store hangs, too.
    let stored = async {
        let _ = model_control::write_wanted(&*bus, &gateway.memory, "stored", Some(hangs.clone()), false).await;
        std::future::pending::<()>().await;
    };
    let others = async {
        gateway.order(&bus, "other", Some(configured("{}")), &expected).await;
        gateway.order(&bus, "other", None, &expected).await;
        gateway.order(&bus, "another", Some(configured("{}")), &expected).await;
    };
    tokio::select! {
        biased;
        () = stored => {}
        done = tokio::time::timeout(PATIENCE, others) => done.expect("nothing waits for models that hang"),
    }
    assert!(futures_util::poll!(&mut hanging).is_pending());
    drop(hanging);
    tokio::time::timeout(PATIENCE, tasks.join()).await.expect("nor does the end of the process");
    assert!(worker.host.models.lock().contains_key("another"));
}
