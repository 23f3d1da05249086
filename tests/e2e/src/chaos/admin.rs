//! An administrator of the brokers, with connections of its own: it stands for an operator, or for an accident.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::settings::{WORK_STREAMS, WORK_SUBJECTS};
use crate::{Wire, WireMessage};

/// How long a broker may take for one answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long brokers may give no answer at all, for example while they elect a leader.
const LIMIT: Duration = Duration::from_secs(30);

const PAUSE: Duration = Duration::from_millis(100);

/// JetStream's code for a request that cannot be served right now.
const TEMPORARY: u64 = 503;

/// Sends requests to the brokers at these URLs, to the first one that answers.
pub(super) struct Admin {
    brokers: Vec<String>,
    wire: Option<Wire>,
}

/// A stream's configuration and consumers at some time and, if they were requested, its messages.
#[derive(Debug)]
pub(super) struct Copy {
    pub stream: String,
    config: Value,
    consumers: Vec<Value>,
    messages: Vec<WireMessage>,
}

// === impl Admin ===

impl Admin {
    pub fn new(brokers: Vec<String>) -> Admin {
        Admin { brokers, wire: None }
    }

    /// The stream of work with the most messages right now; `None` if there is no such stream.
    pub fn busiest(&mut self) -> Option<String> {
        let streams = self.ask("STREAM.LIST", &json!({"subject": WORK_SUBJECTS})).ok()?;
        let messages = |stream: &&Value| stream["state"]["messages"].as_u64();
        let name = |stream: &Value| stream["config"]["name"].as_str().map(str::to_owned);
        let of_work = |stream: &&Value| name(stream).is_some_and(|name| name.starts_with(WORK_STREAMS));
        streams["streams"].as_array()?.iter().filter(of_work).max_by_key(messages).and_then(name)
    }

    /// Number of messages in a stream.
    pub fn messages(&mut self, stream: &str) -> u64 {
        let info = self.ask(&format!("STREAM.INFO.{stream}"), &json!({}));
        info.ok().and_then(|info| info["state"]["messages"].as_u64()).unwrap_or(0)
    }

    /// Where a stream is kept: `file` or `memory`; `None` if there is no such stream.
    pub fn storage(&mut self, stream: &str) -> Option<String> {
        let info = self.ask(&format!("STREAM.INFO.{stream}"), &json!({})).ok()?;
        info["config"]["storage"].as_str().map(str::to_owned)
    }

    /// Pauses all consumers of a stream until [`Admin::release`], and returns the paused consumers.
    pub fn hold(&mut self, stream: &str) -> Vec<String> {
        let names = self.ask(&format!("CONSUMER.NAMES.{stream}"), &json!({})).unwrap_or_default();
        let names = names["consumers"].as_array().cloned().unwrap_or_default();
        let names: Vec<String> = names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect();
        let until = json!({"pause_until": "2100-01-01T00:00:00Z"});
        names.iter().for_each(|name| drop(self.ask(&format!("CONSUMER.PAUSE.{stream}.{name}"), &until)));
        names
    }

    /// Ends [`Admin::hold`] for the consumers that still exist.
    pub fn release(&mut self, stream: &str, consumers: &[String]) {
        for name in consumers {
            let _ = self.ask(&format!("CONSUMER.PAUSE.{stream}.{name}"), &json!({}));
        }
    }

    /// Deletes all messages of a stream.
    pub fn purge(&mut self, stream: &str) {
        // A stream that does not exist has no messages.
        let _ = self.ask(&format!("STREAM.PURGE.{stream}"), &json!({}));
    }

    /// Deletes the `count` newest messages of a stream.
    pub fn delete_newest(&mut self, stream: &str, count: u64) {
        let last = self.ask(&format!("STREAM.INFO.{stream}"), &json!({}));
        let last = last.ok().and_then(|info| info["state"]["last_seq"].as_u64()).unwrap_or(0);
        for number in last.saturating_sub(count) + 1..=last {
            // A message that was acknowledged meanwhile is deleted already.
            let _ = self.ask(&format!("STREAM.MSG.DELETE.{stream}"), &json!({"seq": number}));
        }
    }

    /// Deletes a stream with everything in it.
    pub fn delete(&mut self, stream: &str) {
        let _ = self.ask(&format!("STREAM.DELETE.{stream}"), &json!({}));
    }

    /// A copy of a stream without its messages; `None` if there is no such stream.
    pub fn copy(&mut self, stream: &str) -> Option<Copy> {
        let config = self.ask(&format!("STREAM.INFO.{stream}"), &json!({})).ok()?["config"].clone();
        let consumers = self.ask(&format!("CONSUMER.LIST.{stream}"), &json!({})).ok()?;
        let config_of = |consumer: &Value| {
            let mut config = consumer["config"].clone();
            // The pause is not part of the configuration to restore.
            config.as_object_mut()?.remove("pause_until");
            Some(config)
        };
        let consumers = consumers["consumers"].as_array()?.iter().filter_map(config_of).collect();
        Some(Copy { stream: stream.to_owned(), config, consumers, messages: Vec::new() })
    }

    /// The same with its messages, and with the sequence number that the next one gets.
    pub fn copy_with_messages(&mut self, stream: &str) -> Option<Copy> {
        let mut copy = self.copy(stream)?;
        let state = self.ask(&format!("STREAM.INFO.{stream}"), &json!({})).ok()?["state"].clone();
        let [first, last] = [state["first_seq"].as_u64()?, state["last_seq"].as_u64()?];
        copy.messages = (first..=last).filter_map(|number| self.message(stream, number)).collect();
        copy.config["first_seq"] = json!(first.max(1));
        Some(copy)
    }

    /// Creates a stream of work in memory.
    ///
    /// # Panics
    /// When the brokers refuse it, or do not answer for long.
    #[cfg(test)]
    pub fn make(&mut self, stream: &str, subjects: &str, replicas: usize) {
        let config = json!({
            "name": stream, "subjects": [subjects], "retention": "workqueue", "storage": "memory", "num_replicas": replicas,
        });
        self.ask(&format!("STREAM.CREATE.{stream}"), &config).expect("a stream can be made");
    }

    fn message(&mut self, stream: &str, number: u64) -> Option<WireMessage> {
        let message = self.ask(&format!("STREAM.MSG.GET.{stream}"), &json!({"seq": number})).ok()?["message"].clone();
        let bytes = |field: &str| decode(message[field].as_str().unwrap_or_default());
        let headers = String::from_utf8_lossy(&bytes("hdrs")).into_owned();
        let headers = headers.lines().skip(1).filter_map(|line| line.split_once(':'));
        Some(WireMessage {
            subject: message["subject"].as_str()?.to_owned(),
            reply: None,
            headers: headers.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect(),
            body: bytes("data"),
        })
    }

    /// Restores a stream from a copy.
    ///
    /// # Panics
    /// When the brokers refuse it, or do not answer for long.
    pub fn restore(&mut self, copy: &Copy) {
        let Copy { stream, config, consumers, messages } = copy;
        self.delete(stream);
        let made = self.ask(&format!("STREAM.CREATE.{stream}"), config);
        // The stream may have been created again meanwhile, with other sequence numbers.
        if let Err(error) = made {
            assert!(error.contains("already in use"), "{stream} cannot be made: {error}");
        }
        for message in messages {
            // A message that the stream does not accept again is lost, like others.
            let _ = self.send(message.clone(), LIMIT);
        }
        for consumer in consumers {
            let name = consumer["durable_name"].as_str().or(consumer["name"].as_str()).unwrap_or_default();
            let request = json!({"stream_name": stream, "config": consumer});
            let made = self.ask(&format!("CONSUMER.DURABLE.CREATE.{stream}.{name}"), &request);
            if let Err(error) = made {
                assert!(error.contains("exist"), "the consumer {name} of {stream} cannot be made: {error}");
            }
        }
    }

    /// Sends a request of the JetStream API. Errors that a retry does not change are returned.
    fn ask(&mut self, request: &str, body: &Value) -> Result<Value, String> {
        let subject = format!("$JS.API.{request}");
        self.send(WireMessage { subject, body: body.to_string().into_bytes(), ..WireMessage::default() }, LIMIT)
    }

    fn send(&mut self, message: WireMessage, limit: Duration) -> Result<Value, String> {
        let give_up = Instant::now() + limit;
        loop {
            let answer = self.try_send(message.clone());
            let error = match answer {
                Ok(answer) if answer["error"]["code"] == TEMPORARY => answer["error"]["description"].to_string(),
                Ok(answer) if answer["error"].is_object() => return Err(answer["error"]["description"].to_string()),
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    self.wire = None;
                    self.brokers.rotate_left(1);
                    error.to_string()
                }
            };
            if Instant::now() > give_up {
                return Err(error);
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn try_send(&mut self, message: WireMessage) -> std::io::Result<Value> {
        if self.wire.is_none() {
            self.wire = Some(Wire::try_open(&self.brokers[0], PATIENCE)?);
        }
        let wire = self.wire.as_mut().expect("it is open");
        Ok(serde_json::from_slice(&wire.ask(message)?.body)?)
    }
}

/// Decodes base64; the result is empty for other text.
fn decode(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Option<Vec<u8>> = text.trim_end_matches('=').bytes().map(digit).collect();
    let whole = |group: &[u8]| {
        let bits = group.iter().fold(0_u32, |bits, digit| bits << 6 | u32::from(*digit)) << (6 * (4 - group.len()));
        bits.to_be_bytes()[1..group.len()].to_vec()
    };
    digits.unwrap_or_default().chunks(4).flat_map(whole).collect()
}

#[cfg(test)]
mod tests {
    use trireme_testkit::NatsServer;

    use super::*;

    #[test]
    fn base64_is_read() {
        for (text, bytes) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYg==", "foob")] {
            assert_eq!(decode(text), bytes.as_bytes());
        }
        assert_eq!(decode("//79AA=="), [255, 254, 253, 0]);
    }

    #[test]
    fn a_stream_is_what_it_was() {
        let broker = NatsServer::start();
        let mut admin = Admin::new(vec![broker.url()]);
        let stream = format!("{WORK_STREAMS}m_1");
        let config =
            json!({"name": stream, "subjects": ["trireme.work.m.>"], "retention": "workqueue", "storage": "memory"});
        admin.ask(&format!("STREAM.CREATE.{stream}"), &config).unwrap();
        let consumer = json!({"durable_name": "workers", "ack_policy": "explicit", "max_deliver": -1});
        let request = json!({"stream_name": stream, "config": consumer});
        admin.ask(&format!("CONSUMER.DURABLE.CREATE.{stream}.workers"), &request).unwrap();
        let publish = |admin: &mut Admin, body: &str| {
            let headers = vec![("Nats-Msg-Id".to_owned(), body.to_owned())];
            let subject = "trireme.work.m.1.0".to_owned();
            let message = WireMessage { subject, headers, body: body.as_bytes().to_vec(), reply: None };
            admin.send(message, LIMIT).unwrap()["seq"].as_u64().unwrap()
        };
        assert_eq!([publish(&mut admin, "a"), publish(&mut admin, "b")], [1, 2]);
        assert_eq!(admin.busiest().as_deref(), Some(stream.as_str()));
        let copy = admin.copy_with_messages(&stream).unwrap();
        assert_eq!(publish(&mut admin, "c"), 3);
        admin.delete_newest(&stream, 1);
        let left = |admin: &mut Admin| {
            let info = admin.ask(&format!("STREAM.INFO.{stream}"), &json!({})).unwrap();
            [&info["state"]["messages"], &info["state"]["consumer_count"]].map(|count| count.as_u64().unwrap())
        };
        assert_eq!(left(&mut admin), [2, 1]);
        let paused = |admin: &mut Admin| {
            let info = admin.ask(&format!("CONSUMER.INFO.{stream}.workers"), &json!({})).unwrap();
            info["paused"].as_bool().unwrap_or(false)
        };
        let held = admin.hold(&stream);
        assert_eq!((held.clone(), paused(&mut admin)), (vec!["workers".to_owned()], true));
        admin.release(&stream, &held);
        assert!(!paused(&mut admin));
        admin.purge(&stream);
        assert_eq!(left(&mut admin), [0, 1]);
        admin.restore(&copy);
        assert_eq!(left(&mut admin), [2, 1]);
        let message = admin.message(&stream, 2).unwrap();
        assert_eq!((message.body.as_slice(), message.header("Nats-Msg-Id")), (&b"b"[..], Some("b")));
        assert_eq!(publish(&mut admin, "d"), 3, "the number is given a second time");
        admin.delete(&stream);
        assert!(admin.copy(&stream).is_none());
        admin.restore(&copy);
        assert_eq!(left(&mut admin), [2, 1]);
    }
}
