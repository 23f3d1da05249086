//! The bus over a cluster of three brokers while any single broker fails: requests in progress continue, or fail with a passing
//! error.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_nats::jetstream;
use bytes::Bytes;
use tempfile::TempDir;
use trireme_bus::fixtures::{heavy_message, message, model, number, options, take, within};
use trireme_bus::{
    Bucket, Bus, BusError, Change, Deployment, Nats, NatsOptions, Output, QueueOptions, QueueStatus, SequenceName,
    SequenceStates, WorkMessage,
};
use trireme_inference::{CorrelationId, ModelKey};
use trireme_testkit::{Note, note, quiet_port};

/// Time in which everything works again after a broker was lost or has come back: a few seconds, but brokers on a busy machine
/// repeat elections.
const WORKS_AGAIN_WITHIN: Duration = Duration::from_secs(90);

/// Longer than any call may take to fail.
const ANSWERS_WITHIN: Duration = Duration::from_secs(35);

/// Three clusters at a time: more brokers on few cores take too long to elect leaders, and most of these tests wait for clocks.
static TURNS: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(3);

/// Three brokers, each with its own folder.
struct Cluster {
    _turn: tokio::sync::SemaphorePermit<'static>,
    nodes: Vec<Node>,
    routes: Vec<u16>,
}

struct Node {
    folder: TempDir,
    port: u16,
    process: Option<Child>,
}

// === impl Cluster ===

impl Cluster {
    async fn start() -> Cluster {
        let routes = (0..3).map(|_| quiet_port()).collect();
        let node = || Node { folder: TempDir::new().expect("a temporary folder"), port: quiet_port(), process: None };
        let turn = TURNS.acquire().await.expect("it is never closed");
        let mut cluster = Cluster { _turn: turn, nodes: vec![node(), node(), node()], routes };
        (0..3).for_each(|node| cluster.spawn(node));
        cluster
    }

    /// Starts a broker with the contents of its folder.
    fn spawn(&mut self, number: usize) {
        let routes: Vec<_> = self.routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let node = &mut self.nodes[number];
        let config = format!(
            "server_name: n{number}\nlisten: 127.0.0.1:{port}\nmax_payload: 8MB\n\
             jetstream {{ store_dir: \"{store}\", max_memory_store: 64GB, max_file_store: 64GB }}\n\
             cluster {{ name: trireme, listen: 127.0.0.1:{route}, routes: [{routes}] }}\n",
            port = node.port,
            store = node.folder.path().join("store").display(),
            route = self.routes[number],
            routes = routes.join(", "),
        );
        let file = node.folder.path().join("nats.conf");
        std::fs::write(&file, config).expect("the temporary folder can be written");
        let log = std::fs::File::create(node.folder.path().join("log")).expect("the temporary folder can be written");
        let started = Command::new(binary()).arg("--config").arg(file).stdout(Stdio::null()).stderr(log).spawn();
        node.process = Some(started.expect("nats-server starts; run `make setup`"));
        note(Note::Process);
    }

    /// Kills a broker as a crash would.
    fn kill(&mut self, number: usize) {
        if let Some(mut process) = self.nodes[number].process.take() {
            note(Note::Ends(process.id()));
            process.kill().expect("a child that was not waited for can be killed");
            process.wait().expect("a child can be waited for");
        }
    }

    /// Sends a signal to a broker.
    fn signal(&self, number: usize, signal: &str) {
        let process = self.nodes[number].process.as_ref().expect("it runs").id().to_string();
        let sent = Command::new("kill").args([signal, &process]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill {signal} {process}");
    }

    /// Starts a broker with the name of a killed one and an empty folder.
    fn replace(&mut self, number: usize) {
        self.kill(number);
        self.nodes[number].folder = TempDir::new().expect("a temporary folder");
        self.spawn(number);
    }

    fn urls(&self) -> String {
        self.nodes.iter().map(|node| format!("nats://127.0.0.1:{}", node.port)).collect::<Vec<_>>().join(",")
    }

    fn options(&self, deployment: Option<Deployment>) -> NatsOptions {
        NatsOptions {
            url: self.urls().as_str().into(),
            name: "test".to_owned(),
            service: "test".to_owned(),
            deployment,
            connect_timeout: Duration::from_secs(60),
            ..NatsOptions::default()
        }
    }

    async fn gateway(&self, replicas: Option<usize>) -> Arc<dyn Bus> {
        let queue = QueueOptions { ack_wait: Duration::from_secs(2), ..options() };
        self.connect(&self.options(Some(Deployment { queue, replicas, ..Deployment::default() }))).await
    }

    async fn stage(&self) -> Arc<dyn Bus> {
        self.connect(&self.options(None)).await
    }

    async fn connect(&self, options: &NatsOptions) -> Arc<dyn Bus> {
        match Nats::connect(options).await {
            Ok(bus) => Arc::new(bus),
            Err(error) => panic!("{error}; the brokers say:\n{}", self.logs()),
        }
    }

    fn logs(&self) -> String {
        let logs = self.nodes.iter().map(|node| std::fs::read_to_string(node.folder.path().join("log")));
        logs.map(Result::unwrap_or_default).collect::<Vec<_>>().join("\n---\n")
    }

    async fn raw(&self) -> jetstream::Context {
        let urls: Vec<_> = self.urls().split(',').map(str::to_owned).collect();
        jetstream::new(async_nats::connect(urls).await.expect("a broker is there"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..3).for_each(|node| self.kill(node));
    }
}

fn binary() -> PathBuf {
    let here = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.tools/nats-server/nats-server"));
    std::env::var_os("TRIREME_NATS_SERVER").map_or_else(here, PathBuf::from)
}

/// The result of a call while a broker is away. The only error it may have is a passing one, and in time.
async fn passing<T>(what: &str, call: impl Future<Output = Result<T, BusError>>) -> Option<T> {
    let called = tokio::time::timeout(ANSWERS_WITHIN, call).await;
    match called.unwrap_or_else(|_| panic!("{what} took more than {ANSWERS_WITHIN:?}")) {
        Ok(value) => Some(value),
        Err(error @ (BusError::Unreachable(_) | BusError::NoQueue { .. })) => {
            println!("{what}: {error}");
            None
        }
        Err(error) => panic!("{what}: {error:?}"),
    }
}

/// Repeats a call until it succeeds.
async fn done<T>(what: &str, call: impl AsyncFn() -> Result<T, BusError>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = passing(what, call()).await {
            return value;
        }
        assert!(started.elapsed() < WORKS_AGAIN_WITHIN + ANSWERS_WITHIN, "{what} is not done again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The streams of work queues.
async fn work_streams(cluster: &Cluster) -> Vec<String> {
    use futures_util::TryStreamExt;
    let names: Vec<_> = cluster.raw().await.stream_names().try_collect().await.expect("a list");
    names.into_iter().filter(|name: &String| name.starts_with("trireme_work_")).collect()
}

fn queue_options(replicas: usize) -> QueueOptions {
    QueueOptions { replicas, ack_wait: Duration::from_secs(2), ..options() }
}

/// A worker that answers every delivery until `stop` is set, and its gateway, which makes the queue again.
async fn work(bus: Arc<dyn Bus>, gateway: Arc<dyn Bus>, model: ModelKey, stop: Arc<AtomicBool>) {
    let options = queue_options(3);
    'declared: while !stop.load(Ordering::SeqCst) {
        // The queue may exist again before a gateway confirms it.
        let declaring = passing("declaring", gateway.declare_queue(&model, &options));
        let _ = tokio::time::timeout(Duration::from_secs(1), declaring).await;
        let Some(mut consumer) = passing("opening", bus.pull(&model)).await else { continue };
        while !stop.load(Ordering::SeqCst) {
            let Ok(pulled) = tokio::time::timeout(Duration::from_secs(1), consumer.next(4)).await else { continue };
            let Some(deliveries) = passing("pulling", async { pulled }).await else { continue 'declared };
            for delivery in deliveries {
                let reply = delivery.message.reply(Ok(Output::default()));
                if passing("replying", bus.reply(reply)).await.is_some() {
                    passing("acknowledging", delivery.acker.ack()).await;
                }
            }
        }
    }
}

/// Makes one request as a gateway does: publishes it again while it is in no queue. Returns how long the answer took.
async fn request(gateway: &dyn Bus, inbox: &Arc<trireme_bus::Inbox>, model: &ModelKey, number: usize) -> Duration {
    let started = Instant::now();
    let first = WorkMessage { gateway: inbox.gateway().into(), ..message(model, number as i64) };
    let mut waiting = inbox.expect(&first);
    for time in 0.. {
        let again = WorkMessage { request_id: first.id_when_sent_again(time), ..first.clone() };
        if passing("publishing", gateway.publish(&again)).await.is_some()
            && let Ok(reply) = tokio::time::timeout(Duration::from_secs(5), waiting.next()).await
        {
            assert!(reply.outcome.is_ok());
            break;
        }
        let elapsed = started.elapsed();
        assert!(elapsed < WORKS_AGAIN_WITHIN + ANSWERS_WITHIN, "request {number} has no answer after {elapsed:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    started.elapsed()
}

/// Waits until all streams of the deployment (five stores, claims and a queue) have this number of copies.
async fn assert_replicas(cluster: &Cluster, expected: usize) {
    use futures_util::TryStreamExt;
    let raw = cluster.raw().await;
    within("streams with as many copies as they are to have", async {
        loop {
            let streams: Vec<_> = raw.streams().try_collect().await.unwrap_or_default();
            if streams.len() >= 7 && streams.iter().all(|stream| stream.config.num_replicas == expected) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await;
}

/// Checks that everything continues while one broker after the other is killed and comes back.
async fn each_broker_may_go(replace: bool) {
    let mut cluster = Cluster::start().await;
    let (gateway, stage, worker) = (cluster.gateway(None).await, cluster.stage().await, cluster.stage().await);
    let settings = gateway.settings().await.expect("this gateway wrote them");
    assert_eq!(settings.replicas, 3);
    let model = model("cluster");
    done("declaring", async || gateway.declare_queue(&model, &queue_options(3)).await).await;
    assert_replicas(&cluster, 3).await;

    let stop = Arc::new(AtomicBool::new(false));
    let (requests, slowest) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let inbox = gateway.open_inbox("gateway").await.expect("an inbox");
    let mut watch = stage.watch(Bucket::Models).await.expect("a watch");
    let requesting = async {
        while !stop.load(Ordering::SeqCst) {
            let number = requests.fetch_add(1, Ordering::SeqCst);
            let took = request(&*gateway, &inbox, &model, number).await;
            slowest.fetch_max(took.as_millis() as usize, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let storing = async {
        let (mut number, mut last) = (0u64, 0);
        while !stop.load(Ordering::SeqCst) {
            number += 1;
            let value = Bytes::from(number.to_string());
            let revision =
                done("putting", async || stage.put(Bucket::Models, "k", value.clone(), None, None).await).await;
            assert!(revision > last, "{revision} after {last}");
            last = revision;
            done("reading", async || gateway.get(Bucket::Models, "k").await).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        last
    };
    // Each request begins when the one before is answered.
    let answered = async |count: usize| {
        let enough = requests.load(Ordering::SeqCst) + count + 1;
        within("answers", async {
            while requests.load(Ordering::SeqCst) < enough {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    };
    let breaking = async {
        for node in 0..3 {
            answered(20).await;
            println!("broker {node} is killed");
            cluster.kill(node);
            answered(100).await;
            match replace {
                true => cluster.replace(node),
                false => cluster.spawn(node),
            }
            // Wait until all copies are there again: with two brokers missing, the third has no majority.
            caught_up(&cluster).await;
        }
        stop.store(true, Ordering::SeqCst);
    };
    let working = work(worker.clone(), gateway.clone(), model.clone(), stop.clone());
    let ((), last, (), ()) = tokio::join!(requesting, storing, breaking, working);
    println!("{requests:?} requests, the slowest took {slowest:?} ms");

    // Nothing is left over, and nothing is broken.
    within("the last value at the watch", async {
        loop {
            match watch.recv().await.expect("the watch stays open") {
                Change::Put(entry) if entry.revision >= last => return,
                _ => {}
            }
        }
    })
    .await;
    within("an empty queue", async {
        // A broker that has just come back may still report that the queue does not exist.
        let options = queue_options(3);
        done("declaring", async || gateway.declare_queue(&model, &options).await).await;
        let mut consumer = done("opening", async || worker.pull(&model).await).await;
        loop {
            match passing("status", gateway.queue_status(&model, &[0])).await {
                Some(status) if status == QueueStatus::default() => return,
                Some(_) | None => {}
            }
            // Copies of requests that were published again.
            if let Ok(left) = tokio::time::timeout(Duration::from_millis(200), consumer.next(4)).await {
                for delivery in passing("pulling", async { left }).await.into_iter().flatten() {
                    passing("acknowledging", delivery.acker.ack()).await;
                }
            }
        }
    })
    .await;
    assert_replicas(&cluster, 3).await;
}

/// Longest time in which a replaced broker gets its copies.
const COPYING: Duration = Duration::from_secs(300);

/// The copy of a stream without new messages sometimes stays behind for minutes (nats-server 2.15). After this time, and again after
/// as long, the stream elects a leader, as an operator would have it do; the copies are then compared.
const ELECTING: Duration = Duration::from_secs(20);

/// Waits until every stream has a leader and all its copies are current.
async fn caught_up(cluster: &Cluster) {
    use futures_util::TryStreamExt;
    let raw = cluster.raw().await;
    let (since, mut elected) = (Instant::now(), Instant::now());
    loop {
        let seen = match raw.streams().try_collect::<Vec<_>>().await {
            Ok(streams) => {
                let is_whole = |stream: &&jetstream::stream::Info| {
                    stream.cluster.as_ref().is_some_and(|cluster| {
                        cluster.leader.is_some()
                            && cluster.replicas.len() + 1 == stream.config.num_replicas
                            && cluster.replicas.iter().all(|replica| replica.current && !replica.offline)
                    })
                };
                let (whole, partial): (Vec<_>, Vec<_>) = streams.iter().partition(is_whole);
                if whole.len() >= 7 && partial.is_empty() {
                    return;
                }
                if elected.elapsed() > ELECTING {
                    elected = Instant::now();
                    for stream in &partial {
                        let subject = format!("STREAM.LEADER.STEPDOWN.{}", stream.config.name);
                        let answer = raw.request(subject, &()).await;
                        let answer: Result<serde_json::Value, _> =
                            answer.map(|answer: jetstream::response::Response<_>| match answer {
                                jetstream::response::Response::Ok(answer) => answer,
                                jetstream::response::Response::Err { error } => error.to_string().into(),
                            });
                        println!("'{}' elects a leader: {answer:?}", stream.config.name);
                    }
                }
                let partial = partial.iter().map(|stream| (&stream.config.name, &stream.cluster));
                format!("{} streams are whole, these are not: {:?}", whole.len(), partial.collect::<Vec<_>>())
            }
            Err(error) => error.to_string(),
        };
        assert!(since.elapsed() < COPYING, "no broker with all copies after {COPYING:?}: {seen}; {}", cluster.logs());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_broker_may_be_killed_and_come_back() {
    each_broker_may_go(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_broker_may_be_replaced_by_an_empty_one() {
    each_broker_may_go(true).await;
}

#[tokio::test]
async fn one_copy_of_each_stream_is_enough_where_that_is_wanted() {
    let cluster = Cluster::start().await;
    let (gateway, stage) = (cluster.gateway(Some(1)).await, cluster.stage().await);
    assert_eq!(stage.settings().await.expect("the gateway wrote them").replicas, 1);
    let model = model("single");
    done("declaring", async || gateway.declare_queue(&model, &queue_options(1)).await).await;
    assert_replicas(&cluster, 1).await;
    // A second gateway uses the settings that the first one wrote.
    let _second = cluster.gateway(None).await;
    assert_replicas(&cluster, 1).await;
    done("publishing", async || gateway.publish(&message(&model, 1)).await).await;
    let mut consumer = stage.pull(&model).await.expect("a hold on the queue");
    take(&mut consumer, "the message").await.acker.ack().await.expect("acknowledged");

    // An operator asks for more copies.
    let settings = QueueOptions { replicas: 3, ..gateway.settings().await.expect("settings") };
    done("changing the settings", async || gateway.change_settings(&settings).await).await;
    done("declaring", async || gateway.declare_queue(&model, &queue_options(3)).await).await;
    within("three copies of each stream", async {
        use futures_util::TryStreamExt;
        let raw = cluster.raw().await;
        loop {
            let streams: Vec<_> = raw.streams().try_collect().await.unwrap_or_default();
            if !streams.is_empty() && streams.iter().all(|stream| stream.config.num_replicas == 3) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
}

/// A queue of one broker, also one in files, is out of reach with it. After 15 s it is created again on another broker: gateways
/// publish its messages again, so nothing is gained by waiting for the files. A gateway that notices one such queue counts
/// for all of them, so that a request does not wait 15 s at each of its steps.
#[tokio::test]
async fn queues_that_are_out_of_reach_are_made_anew() {
    use futures_util::TryStreamExt;
    let options = QueueOptions { file_storage: true, ..queue_options(1) };
    let mut cluster = Cluster::start().await;
    let (gateway, stage) = (cluster.gateway(Some(1)).await, cluster.stage().await);
    let raw = cluster.raw().await;
    let (mut streams, mut queues, mut node) = (HashSet::new(), Vec::new(), None);
    for number in 0.. {
        let model = model(&format!("gone{number}"));
        done("declaring", async || gateway.declare_queue(&model, &options).await).await;
        let names: Vec<_> = raw.stream_names().try_collect().await.expect("a list");
        let mut queue = names.into_iter().filter(|name| name.starts_with("trireme_work_") && !streams.contains(name));
        let name = queue.next().expect("the queue was made");
        let stream = raw.get_stream(&name).await.expect("it was made");
        streams.insert(name);
        let leader =
            stream.cached_info().cluster.as_ref().and_then(|cluster| cluster.leader.clone()).expect("a leader");
        if *node.get_or_insert(leader.clone()) == leader {
            queues.push(model);
        }
        if queues.len() == 2 {
            break;
        }
    }
    let node: usize = node.expect("a leader").trim_start_matches('n').parse().expect("its number");
    cluster.kill(node);
    let started = Instant::now();
    let mut taken = Vec::new();
    for model in &queues {
        within("a queue anew", async {
            while passing("declaring", gateway.declare_queue(model, &options)).await.is_none() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        })
        .await;
        taken.push(started.elapsed());
    }
    println!("made anew after {taken:?}");
    assert!(taken[0] > Duration::from_secs(15), "a broker may come back");
    // Each attempt may take the broker's 5 s; by itself the second queue would be out of reach for as long as the first.
    assert!(taken[1] - taken[0] < taken[0] * 4 / 5, "the second one was out of reach as long as the first");
    for model in &queues {
        done("publishing", async || gateway.publish(&message(model, 1)).await).await;
        let mut consumer = stage.pull(model).await.expect("a hold on the queue");
        take(&mut consumer, "the message").await.acker.ack().await.expect("acknowledged");
    }
}

/// A broker without an answer may be a slow one. Its queues are made anew only when the others say that nobody leads them.
#[tokio::test]
async fn queues_whose_broker_does_not_answer_are_kept() {
    let options = queue_options(1);
    let cluster = Cluster::start().await;
    let (gateway, stage) = (cluster.gateway(Some(1)).await, cluster.stage().await);
    let model = model("slow");
    done("declaring", async || gateway.declare_queue(&model, &options).await).await;
    done("publishing", async || gateway.publish(&message(&model, 7)).await).await;
    let stream = cluster.raw().await.get_stream(work_streams(&cluster).await.remove(0)).await.expect("it was made");
    let leader = stream.cached_info().cluster.as_ref().and_then(|cluster| cluster.leader.clone()).expect("a leader");
    let node: usize = leader.trim_start_matches('n').parse().expect("its number");
    cluster.signal(node, "-STOP");
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(28) {
        // Each attempt waits for an answer of the queue's broker.
        passing("declaring", gateway.declare_queue(&model, &options)).await;
    }
    assert_eq!(work_streams(&cluster).await.len(), 1, "the cluster has it");
    cluster.signal(node, "-CONT");
    done("declaring", async || gateway.declare_queue(&model, &options).await).await;
    let mut consumer = done("opening", async || stage.pull(&model).await).await;
    let delivery = take(&mut consumer, "the message from before").await;
    assert_eq!(number(&delivery), 7);
    delivery.acker.ack().await.expect("acknowledged");
}

/// Each broker reads parts of large bodies for processes, also one that has not yet got what the others have confirmed.
#[tokio::test]
async fn large_answers_arrive_though_a_broker_is_a_moment_behind() {
    const ANSWERS: i64 = 120;
    let cluster = Cluster::start().await;
    let (gateway, stage) = (cluster.gateway(None).await, cluster.stage().await);
    let model = model("large");
    // A lost answer would come again only after `ack_wait`.
    let options = QueueOptions { ack_wait: Duration::from_secs(600), ..queue_options(3) };
    done("declaring", async || gateway.declare_queue(&model, &options).await).await;
    let inbox = gateway.open_inbox("gateway").await.expect("an inbox");
    let mut consumer = stage.pull(&model).await.expect("a hold on the queue");
    let output = Output { tensors: heavy_message(&model, 9 << 20).tensors, ..Output::default() };
    for n in 0..ANSWERS {
        let request = WorkMessage { gateway: inbox.gateway().into(), ..message(&model, n) };
        let mut waiting = inbox.expect(&request);
        done("publishing", async || gateway.publish(&request).await).await;
        let delivery = take(&mut consumer, "the request").await;
        let reply = delivery.message.reply(Ok(output.clone()));
        stage.reply(reply).await.expect("sent");
        delivery.acker.ack().await.expect("sent");
        assert!(within("the answer", waiting.next()).await.outcome.is_ok());
    }
}

/// A sequence goes on at any gateway as soon as its last request is answered: a broker that has not yet got the states that the
/// others have confirmed must not answer with none, or with older ones.
#[tokio::test]
async fn a_sequence_goes_on_with_its_latest_states_at_each_gateway() {
    const REQUESTS: u64 = 1000;
    let cluster = Cluster::start().await;
    let gateways = [cluster.gateway(None).await, cluster.gateway(None).await, cluster.gateway(None).await];
    let model = model("sequence");
    let name = |n: u64| SequenceName { model: model.clone(), id: CorrelationId::Number(n / 10) };
    let states = |n: u64| SequenceStates { request: n.to_string(), ..SequenceStates::default() };
    let mut revision = 0;
    // Large values keep the brokers busy, which are then further behind each other.
    let large = Bytes::from(vec![0; 6 << 20]);
    let load = async {
        loop {
            let _ = gateways[0].put(Bucket::Objects, "large.0", large.clone(), None, None).await;
        }
    };
    let requests = async {
        for n in 0..REQUESTS {
            let [writer, reader] = [n as usize % 3, (n as usize + 1) % 3].map(|number| &gateways[number]);
            let expect = if n % 10 == 0 { 0 } else { revision };
            let kept = writer.keep_sequence(&name(n), &states(n), Some(expect), Duration::from_secs(600)).await;
            revision = kept.expect("kept");
            let found = reader.sequence(&name(n)).await.expect("read").map(|found| found.states.request);
            assert_eq!(found, Some(n.to_string()), "request {n}");
        }
    };
    tokio::select! {
        () = requests => {}
        () = load => {}
    }
}

/// Confirmed messages survive the loss of any broker, and are delivered once.
#[tokio::test]
async fn what_was_confirmed_outlives_each_broker() {
    const MESSAGES: i64 = 200;
    let mut cluster = Cluster::start().await;
    let (gateway, stage) = (cluster.gateway(None).await, cluster.stage().await);
    let model = model("confirmed");
    done("declaring", async || gateway.declare_queue(&model, &queue_options(3)).await).await;
    for n in 0..MESSAGES {
        let message = message(&model, n);
        done("publishing", async || gateway.publish(&message).await).await;
    }
    for node in 0..3 {
        cluster.kill(node);
        tokio::time::sleep(Duration::from_millis(500)).await;
        cluster.replace(node);
        caught_up(&cluster).await;
    }
    let mut consumer = stage.pull(&model).await.expect("a hold on the queue");
    let mut numbers = Vec::new();
    within("all messages", async {
        while numbers.len() < MESSAGES as usize {
            let Some(deliveries) = passing("pulling", consumer.next(16)).await else { continue };
            for delivery in deliveries {
                numbers.push(number(&delivery));
                delivery.acker.ack().await.expect("sent");
            }
        }
    })
    .await;
    assert_eq!(numbers, (0..MESSAGES).collect::<Vec<_>>());
}

/// While the brokers elect the leader of a stream of durable work, a write waits for it: it is not refused at once.
#[tokio::test]
async fn a_write_of_durable_work_waits_for_a_leader() {
    /// Less than writes wait, and more than one that does not.
    const PATIENCE: Duration = Duration::from_secs(9);
    let mut cluster = Cluster::start().await;
    let making = cluster.gateway(None).await;
    for (bucket, stream) in [(Bucket::Jobs, "trireme_jobs"), (Bucket::Objects, "trireme_objects")] {
        done("the first write", async || making.put(bucket, "first", "1".into(), None, None).await).await;
        let raw = cluster.raw().await.get_stream(stream).await.expect("the stream is there");
        let leader = raw.cached_info().cluster.as_ref().and_then(|cluster| cluster.leader.clone()).expect("a leader");
        let leader: usize = leader.trim_start_matches('n').parse().expect("brokers are numbered");
        let queue = QueueOptions { ack_wait: Duration::from_secs(2), ..options() };
        let deployment = Deployment { queue, ..Deployment::default() };
        // A connection to the leader would be lost with it.
        let other = (leader + 1) % 3;
        let url = format!("nats://127.0.0.1:{}", cluster.nodes[other].port);
        let gateway =
            cluster.connect(&NatsOptions { url: url.as_str().into(), ..cluster.options(Some(deployment)) }).await;
        cluster.kill(leader);
        let begun = Instant::now();
        let written = gateway.put(bucket, "second", "2".into(), None, None).await;
        assert!(written.is_ok() || begun.elapsed() >= PATIENCE, "{stream}, after {:?}: {written:?}", begun.elapsed());
        cluster.spawn(leader);
        caught_up(&cluster).await;
    }
}

/// Records that many write at the same time go to the brokers in batches, and every writer learns its own revision.
#[tokio::test]
async fn every_writer_of_a_group_learns_its_revision() {
    let cluster = Cluster::start().await;
    let gateway = cluster.gateway(None).await;
    for wave in 0..3 {
        let write = |number| {
            let (key, gateway) = (format!("{wave}-{number}"), &gateway);
            async move {
                let put = async || gateway.put(Bucket::Jobs, &key, key.clone().into(), Some(0), None).await;
                (done("writing", put).await, key)
            }
        };
        for (revision, key) in futures_util::future::join_all((0..100).map(write)).await {
            let entry = done("reading", async || gateway.get(Bucket::Jobs, &key).await).await.expect("it was written");
            assert_eq!((entry.revision, entry.value), (revision, Bytes::from(key)));
        }
    }
    let stream = cluster.raw().await.get_stream("trireme_jobs").await.expect("the stream is there");
    let mut in_batches = 0;
    let state = &stream.cached_info().state;
    for sequence in state.first_sequence..=state.last_sequence {
        let message = stream.get_raw_message(sequence).await;
        in_batches += usize::from(message.is_ok_and(|message| message.headers.get("Nats-Batch-Id").is_some()));
    }
    assert!(in_batches >= 50, "{in_batches} of 300 records were in batches");
}

/// Gateways that make the same queues at the same time agree on the number of the first message: where a broker's copy began with
/// another one, the queue would deliver nothing once that broker leads it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_that_several_gateways_make_at_once_begin_with_one_number() {
    use futures_util::TryStreamExt;
    let cluster = Cluster::start().await;
    let gateways = [cluster.gateway(None).await, cluster.gateway(None).await, cluster.gateway(None).await];
    let models: Vec<ModelKey> = (0..6).map(|number| model(&format!("race{number}"))).collect();
    let options = QueueOptions { file_storage: true, ..queue_options(3) };
    for model in &models {
        let declare = |gateway: &'_ Arc<dyn Bus>| {
            let (gateway, options) = (gateway.clone(), options.clone());
            async move { done("declaring", async || gateway.declare_queue(model, &options).await).await }
        };
        futures_util::future::join_all(gateways.iter().map(declare)).await;
    }
    let made: Vec<_> = cluster.raw().await.streams().try_collect().await.expect("a cluster that is whole");
    for (sent, model) in models.iter().enumerate() {
        let its = Some(format!("work for {model}"));
        let stream = made.iter().find(|stream| stream.config.description == its).expect("its stream");
        let first = stream.config.first_sequence;
        assert!(first.is_some_and(|first| first > 1), "{model} begins with {first:?}");
        assert_eq!(Some(stream.state.first_sequence), first, "{model}");
        let mut consumer = done("opening", async || gateways[0].pull(model).await).await;
        done("publishing", async || gateways[0].publish(&message(model, sent as i64)).await).await;
        let delivery = take(&mut consumer, "the message").await;
        assert_eq!(number(&delivery), sent as i64);
        delivery.acker.ack().await.expect("an acknowledgement");
    }
}

/// A gateway waits for brokers that start one after the other.
#[tokio::test]
async fn a_gateway_waits_for_a_cluster_that_is_not_whole() {
    let mut cluster = Cluster::start().await;
    cluster.kill(1);
    cluster.kill(2);
    let options = cluster.options(Some(Deployment { queue: options(), ..Deployment::default() }));
    let impatient = NatsOptions { connect_timeout: Duration::from_secs(1), ..options.clone() };
    let starting = async {
        for node in [1, 2] {
            let too_early = Nats::connect(&impatient).await.err();
            assert!(matches!(too_early, Some(BusError::Unreachable(_))), "{node} brokers run: {too_early:?}");
            cluster.spawn(node);
        }
    };
    let (gateway, ()) = within("the gateway", async { tokio::join!(Nats::connect(&options), starting) }).await;
    let gateway: Arc<dyn Bus> = Arc::new(gateway.unwrap_or_else(|error| panic!("{error}; {}", cluster.logs())));
    assert_eq!(gateway.settings().await.expect("this gateway wrote them").replicas, 3);
}
