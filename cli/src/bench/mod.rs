//! `trireme bench`: a closed-loop load generator for any server of the v2 protocol.
//!
//! Each of N connections sends a request, waits for the answer, and sends the next, for a fixed time. The requests are made
//! before the clock starts. The generator prints its own CPU time per request, because on a shared machine that time affects the
//! result.

mod connection;
pub mod requests;

use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::Args;
use rustix::time::{ClockId, clock_gettime};
use trireme_runtime::service;

use crate::client::ServerArgs;
use crate::output::{warn, write_out};
use connection::{Connection, Server};
use requests::{Form, Requests};

/// How long a model is under load before its rate is measured.
const WARM_UP: Duration = Duration::from_millis(500);

/// Seconds in which the rate of a model needs an answer.
const TIMEOUT_SECS: u64 = 600;

/// Flags of `trireme bench`.
#[derive(Args)]
pub struct BenchArgs {
    #[command(flatten)]
    server: ServerArgs,

    /// Model to ask
    #[arg(long, value_name = "NAME")]
    model: String,

    /// Connections that each keep one request in flight; several values are measured one after the other
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "1,16,64")]
    concurrency: Vec<usize>,

    /// Seconds to measure at each concurrency
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,

    /// Seconds of load before measuring
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    warmup_seconds: f64,

    /// File of texts for the model's BYTES input, in place of the program's own. Each line is a text, plain or as a JSON object with a
    /// `text`. For the second BYTES input of a model that takes pairs it has a `text_pair`
    #[arg(long, value_name = "FILE")]
    texts: Option<std::path::PathBuf>,

    /// Elements of each dimension that the model leaves open
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    dimension: i64,

    /// Form of requests and answers
    #[arg(long, value_enum, default_value_t = Form::Binary)]
    form: Form,

    /// Print a JSON object a line instead of a table
    #[arg(long)]
    json: bool,
}

/// The measurements at one concurrency.
struct Measured {
    /// The times of the requests that succeeded.
    latencies: Vec<Duration>,
    /// Texts of the requests that succeeded; `None` where the model takes none.
    texts: Option<u64>,
    /// Tokens of these texts; `None` where the server does not tell all.
    tokens: Option<u64>,
    /// Requests that were refused, or got no answer.
    errors: usize,
    first_error: Option<String>,
    elapsed: Duration,
    cpu: Duration,
}

/// Measures and prints.
pub fn run(args: &BenchArgs) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let measured = runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(measure_all(args)));
    match measured {
        Ok(0) => ExitCode::SUCCESS,
        Ok(errors) => service::fail(&anyhow!("{errors} requests failed")),
        Err(error) => service::fail(&error),
    }
}

/// The requests, which are sent again and again.
struct Load {
    server: Arc<Server>,
    requests: Requests,
    /// By request: its tokens, once the first answer to it has told them, or not.
    tokens: Vec<OnceLock<Option<u64>>>,
}

async fn measure_all(args: &BenchArgs) -> anyhow::Result<usize> {
    let server = Arc::new(Server::new(&args.server)?);
    let mut connection = Connection::open(&server).await?;
    let path = format!("/v2/models/{}", args.model);
    let metadata =
        connection.get(&path).await.with_context(|| format!("asking for the metadata of '{}'", args.model))?;
    let lines = requests::read_lines(args.texts.as_deref())?;
    let target = requests::Target { headers: &server.headers, model: &args.model, dimension: args.dimension };
    let requests = target.requests(args.form, &metadata, &lines)?;
    let load = Load::new(server.clone(), requests);
    let mut errors = 0;
    if !args.json {
        let text = format!(
            "{} on {}, {} different requests, {} s each\n\
             concurrency   requests/s      texts/s     tokens/s    p50 ms    p90 ms    p99 ms    max ms   errors   \
             client CPU us/request\n",
            args.model,
            args.server.url(),
            load.requests.sent.len(),
            args.seconds
        );
        write_out(text.as_bytes());
    }
    for &concurrency in &args.concurrency {
        anyhow::ensure!(concurrency > 0, "--concurrency must be at least 1");
        load.run(concurrency, Duration::from_secs_f64(args.warmup_seconds)).await?;
        let measured = load.run(concurrency, Duration::from_secs_f64(args.seconds)).await?;
        write_out(measured.line(concurrency, args.json).as_bytes());
        if let Some(error) = &measured.first_error {
            warn(&format!("first error at concurrency {concurrency}: {error}"));
        }
        errors += measured.errors;
    }
    Ok(errors)
}

/// Texts per second of a model that takes texts, one in each request, from `concurrency` connections for this long. `server` is
/// its URL. Requests that fail are an error.
pub async fn rate(
    server: &str,
    model: &str,
    texts: &[String],
    concurrency: usize,
    duration: Duration,
) -> anyhow::Result<f64> {
    let server = Arc::new(Server::new(&ServerArgs::at(server, Vec::new(), TIMEOUT_SECS))?);
    let metadata = Connection::open(&server).await?.get(&format!("/v2/models/{model}")).await?;
    let target = requests::Target { headers: &server.headers, model, dimension: 1 };
    let lines: Vec<_> = texts.iter().map(|text| requests::Line::from(text.as_str())).collect();
    let load = Load::new(server.clone(), target.requests(Form::Binary, &metadata, &lines)?);
    load.run(concurrency, WARM_UP).await?;
    let measured = load.run(concurrency, duration).await?;
    if let Some(error) = measured.first_error {
        anyhow::bail!("{} requests to '{model}' failed, the first one with: {error}", measured.errors);
    }
    Ok(measured.latencies.len() as f64 / measured.elapsed.as_secs_f64())
}

/// CPU time of this process so far.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}

// === impl Load ===

impl Load {
    fn new(server: Arc<Server>, requests: Requests) -> Arc<Load> {
        let tokens = requests.sent.iter().map(|_| OnceLock::new()).collect();
        Arc::new(Load { server, requests, tokens })
    }

    /// Sends a request and returns its tokens, or why it did not succeed. A connection that has failed is none, and the next request opens
    /// another one. The outer error is a server that takes no connection.
    async fn ask(
        &self,
        connection: &mut Option<Connection>,
        request: usize,
    ) -> anyhow::Result<Result<Option<u64>, String>> {
        let mut open = match connection.take() {
            Some(open) => open,
            None => Connection::open(&self.server).await?,
        };
        let answer = match open.exchange(&self.requests.sent[request]).await {
            Ok(answer) => answer,
            Err(error) => return Ok(Err(format!("{error:#}"))),
        };
        *connection = (!answer.closes).then_some(open);
        Ok(answer.success().map(|()| *self.tokens[request].get_or_init(|| answer.tokens())))
    }

    /// Loads the server with `concurrency` connections for a while.
    async fn run(self: &Arc<Load>, concurrency: usize, duration: Duration) -> anyhow::Result<Measured> {
        let mut connections = Vec::with_capacity(concurrency);
        for _ in 0..concurrency {
            connections.push(Connection::open(&self.server).await?);
        }
        let (started, cpu) = (Instant::now(), cpu_time());
        let until = started + duration;
        let mut clients = tokio::task::JoinSet::new();
        for (client, connection) in connections.into_iter().enumerate() {
            let load = self.clone();
            clients.spawn(async move {
                let sent = &load.requests.sent;
                let mut connection = Some(connection);
                let mut measured = Measured::none(load.requests.texts > 0);
                // Clients start at different requests, so that they do not all send the same text at once.
                let mut next = client * sent.len() / concurrency;
                while Instant::now() < until {
                    let (request, begun) = (next % sent.len(), Instant::now());
                    match load.ask(&mut connection, request).await? {
                        Ok(tokens) => measured.count(begun.elapsed(), load.requests.texts as u64, tokens),
                        Err(error) => {
                            measured.errors += 1;
                            measured.first_error.get_or_insert(error);
                        }
                    }
                    next += 1;
                }
                anyhow::Ok(measured)
            });
        }
        let mut measured = Measured::none(self.requests.texts > 0);
        while let Some(client) = clients.join_next().await {
            measured.add(client??);
        }
        measured.elapsed = started.elapsed();
        measured.cpu = cpu_time().saturating_sub(cpu);
        measured.latencies.sort_unstable();
        Ok(measured)
    }
}

// === impl Measured ===

impl Measured {
    fn none(has_texts: bool) -> Measured {
        let count = has_texts.then_some(0);
        Measured {
            latencies: Vec::new(),
            texts: count,
            tokens: count,
            errors: 0,
            first_error: None,
            elapsed: Duration::ZERO,
            cpu: Duration::ZERO,
        }
    }

    /// Counts a request that succeeded.
    fn count(&mut self, latency: Duration, texts: u64, tokens: Option<u64>) {
        self.latencies.push(latency);
        self.texts = self.texts.map(|sum| sum + texts);
        self.tokens = self.tokens.zip(tokens).map(|(sum, tokens)| sum + tokens);
    }

    /// Adds what another client has measured.
    fn add(&mut self, other: Measured) {
        self.latencies.extend(other.latencies);
        self.texts = self.texts.zip(other.texts).map(|(one, other)| one + other);
        self.tokens = self.tokens.zip(other.tokens).map(|(one, other)| one + other);
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
    }

    /// The line of a table, or a JSON object in a line.
    fn line(&self, concurrency: usize, json: bool) -> String {
        let count = self.latencies.len();
        let rate = count as f64 / self.elapsed.as_secs_f64();
        let percentile = |share: f64| {
            let index = ((count as f64 * share) as usize).min(count.saturating_sub(1));
            self.latencies.get(index).map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
        };
        let [p50, p90, p99, max] = [0.5, 0.9, 0.99, 1.0].map(percentile);
        let per_second = |count: Option<u64>| count.map(|count| count as f64 / self.elapsed.as_secs_f64());
        let [texts, tokens] = [self.texts, self.tokens].map(per_second);
        let (errors, cpu) = (self.errors, self.cpu.as_secs_f64() * 1e6 / (count + self.errors).max(1) as f64);
        if json {
            let [texts, tokens] =
                [texts, tokens].map(|rate| rate.map_or("null".to_owned(), |rate| format!("{rate:.3}")));
            format!(
                r#"{{"concurrency":{concurrency},"requests_per_second":{rate:.3},"texts_per_second":{texts},"tokens_per_second":{tokens},"p50_ms":{p50:.4},"p90_ms":{p90:.4},"p99_ms":{p99:.4},"max_ms":{max:.4},"errors":{errors},"client_cpu_us":{cpu:.1}}}"#
            ) + "\n"
        } else {
            let [texts, tokens] = [texts, tokens].map(|rate| rate.map_or("-".to_owned(), |rate| format!("{rate:.1}")));
            format!(
                "{concurrency:>11} {rate:>12.1} {texts:>12} {tokens:>12} {p50:>9.3} {p90:>9.3} {p99:>9.3} {max:>9.3} {errors:>8} {cpu:>23.1}\n"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// A server that answers each request by the next of these, by its length in milliseconds; it closes the connection at the empty one.
    async fn server(answers: Vec<(u64, &'static str)>) -> Arc<Server> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::task::spawn_local(async move {
            let mut answers = answers.into_iter().cycle();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut bytes = [0; 1024];
                while stream.read(&mut bytes).await.is_ok_and(|count| count > 0) {
                    let (millis, answer) = answers.next().unwrap();
                    tokio::time::sleep(Duration::from_millis(millis)).await;
                    if answer.is_empty() {
                        break;
                    }
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            }
        });
        Arc::new(Server::new(&ServerArgs::at(url, Vec::new(), 5)).unwrap())
    }

    #[tokio::test(flavor = "current_thread")]
    async fn requests_that_fail_are_counted_and_their_times_are_not() {
        const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        const FULL: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 7\r\n\r\nfull\x1b[m";
        const LAST: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}";
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let server = server(vec![(50, OK), (0, FULL), (50, OK), (0, ""), (50, LAST)]).await;
                let sent = vec![bytes::Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n")];
                let load = Load::new(server, Requests { sent, texts: 1 });
                let mut connection = Some(Connection::open(&load.server).await.unwrap());
                let mut found = Vec::new();
                for _ in 0..5 {
                    found.push(load.ask(&mut connection, 0).await.unwrap());
                }
                assert!(found[0].is_ok() && found[2].is_ok() && found[4].is_ok(), "{found:?}");
                assert_eq!(found[1], Err(r"status 503: full\u{1b}[m".to_owned()));
                assert!(found[3].as_ref().is_err_and(|error| error.contains("closed the connection")), "{found:?}");
                assert!(connection.is_none(), "the server said that it closes the last one");

                let measured = load.run(1, Duration::from_millis(600)).await.unwrap();
                assert!(measured.errors > 0 && measured.latencies.len() >= 2, "{}", measured.errors);
                assert!(
                    measured.latencies.iter().all(|latency| *latency >= Duration::from_millis(45)),
                    "no refusal is among them"
                );
                assert_eq!(measured.texts, Some(measured.latencies.len() as u64));
            })
            .await;
    }
}
