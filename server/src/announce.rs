//! Announcements of a fleet's worker to its hive: its state on every change and every ten seconds,
//! and its end. docs/serve.md defines them.

use crate::hive::Hive;
use crate::options::Worker;
use crate::service::Service;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// Time between two announcements without a change.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(10);
/// Time between two checks for a change.
const CHANGE_POLL: Duration = Duration::from_millis(50);
/// Time limit of an announcement.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of the last announcement.
const LAST_TIMEOUT: Duration = Duration::from_secs(2);

/// Announcements, until [`Announcements::end`].
pub struct Announcements {
    end: watch::Sender<bool>,
    made: JoinHandle<()>,
}

impl Announcements {
    /// Announces the worker repeatedly. If the hive does not answer, the worker serves requests
    /// anyway.
    pub fn begin(service: &Arc<Service>, worker: &Worker, port: u16) -> Option<Announcements> {
        let end = watch::Sender::new(false);
        let announcer = Announcer {
            hive: worker.hive.clone()?,
            service: Arc::clone(service),
            worker: worker.clone(),
            port,
            heard: true,
        };
        let made = tokio::spawn(announcer.announce(end.subscribe()));
        Some(Announcements { end, made })
    }

    /// Announces the end of the worker.
    pub async fn end(self) {
        let _ = self.end.send(true);
        let _ = timeout(LAST_TIMEOUT, self.made).await;
    }
}

struct Announcer {
    hive: Hive,
    service: Arc<Service>,
    worker: Worker,
    port: u16,
    /// Whether the hive got the last announcement.
    heard: bool,
}

impl Announcer {
    async fn announce(mut self, mut end: watch::Receiver<bool>) {
        tokio::select! {
            () = self.again_and_again() => {}
            _ = end.wait_for(|end| *end) => {}
        }
        let (mut last, id) = (self.card(false), self.worker.id.clone());
        if let Some(map) = last.as_object_mut() {
            map.insert("ready".to_owned(), false.into());
            map.insert("ended".to_owned(), true.into());
        }
        self.said(timeout(ANNOUNCE_TIMEOUT, post(&self.hive, &id, last.to_string())).await);
    }

    async fn again_and_again(&mut self) {
        loop {
            let told = self.card(false);
            // The memory is read from the driver: too slow for an async thread.
            let (of, worker, port) = (Arc::clone(&self.service), self.worker.clone(), self.port);
            let Ok(card) = self.service.work(move || card(&of, &worker, port, true)).await else {
                return;
            };
            let sent =
                timeout(ANNOUNCE_TIMEOUT, post(&self.hive, &self.worker.id, card.to_string()))
                    .await;
            self.said(sent);
            let next = Instant::now() + ANNOUNCE_INTERVAL;
            while Instant::now() < next && self.card(false) == told {
                sleep(CHANGE_POLL).await;
            }
        }
    }

    /// The announcement without the fields that need the driver.
    fn card(&self, memory: bool) -> Value {
        card(&self.service, &self.worker, self.port, memory)
    }

    /// Writes one line when the hive stops answering, and one when it answers again.
    fn said(&mut self, sent: Result<Result<(), String>, tokio::time::error::Elapsed>) {
        let problem = match sent {
            Ok(Ok(())) => None,
            Ok(Err(why)) => Some(why),
            Err(_) => Some(format!("no answer within {} s", ANNOUNCE_TIMEOUT.as_secs())),
        };
        let (hive, say) = (&self.hive, self.service.options.say);
        match (&problem, self.heard) {
            (Some(why), true) => {
                say(&format!("the announcement to the hive at {hive} failed: {why}"))
            }
            (None, false) => say(&format!("the hive at {hive} accepts announcements again")),
            _ => {}
        }
        self.heard = problem.is_none();
    }
}

/// The announcement as JSON.
fn card(service: &Service, worker: &Worker, port: u16, memory: bool) -> Value {
    let mut card = json!({
        "id": worker.id, "model_ref": worker.model_ref, "port": port, "ready": false, "running": 0, "queued": 0,
        "stopping": service.stopping()
    });
    let seen = service.meant(None).ok().map(|(_, seen)| seen);
    let (Some(seen), Some(map)) = (seen, card.as_object_mut()) else { return card };
    // An unloaded model counts as ready: the next request loads it.
    map.insert("ready".to_owned(), (seen.card.is_some() && !service.stopping()).into());
    let Some(loaded) = seen.loaded else { return card };
    let status = loaded.scheduler.status();
    if status.state == kjit_model::serve::State::Short {
        map.insert("ready".to_owned(), false.into());
    }
    let device = &loaded.device;
    map.insert("running".to_owned(), status.running.into());
    map.insert("queued".to_owned(), status.waiting.into());
    map.insert("slots".to_owned(), status.slots.into());
    map.insert(
        "device".to_owned(),
        json!({ "label": device.label, "name": device.name, "arch": device.arch }),
    );
    if let Some((used, total)) = Some(()).filter(|()| memory).and_then(|()| loaded.memory()) {
        map.insert("memory".to_owned(), json!({ "used": used, "total": total }));
    }
    card
}

async fn post(hive: &Hive, id: &str, body: String) -> Result<(), String> {
    let line = |error: &dyn fmt::Display| error.to_string();
    let stream = TcpStream::connect((hive.host.as_str(), hive.port)).await.map_err(|e| line(&e))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| line(&e))?;
    let connection = tokio::spawn(connection);
    let mut request = Request::post(format!("{}/v1/workers/{id}", hive.path))
        .header(header::HOST, &hive.authority)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONNECTION, "close");
    if let Some(authorization) = &hive.authorization {
        request = request.header(header::AUTHORIZATION, authorization);
    }
    let request = request.body(Full::new(Bytes::from(body))).map_err(|e| line(&e))?;
    let response = sender.send_request(request).await.map_err(|e| line(&e));
    connection.abort();
    let status = response?.status();
    if status.is_success() { Ok(()) } else { Err(format!("it answers {status}")) }
}

#[cfg(test)]
mod tests {
    use crate::hive::Hive;

    #[test]
    fn hive_address_is_parsed_completely_or_refused() {
        let hive: Hive = "http://me:p%40ss@hive.example:3000/fleet/".parse().unwrap();
        assert_eq!(
            (hive.host.as_str(), hive.port, hive.authority.as_str()),
            ("hive.example", 3000, "hive.example:3000")
        );
        assert_eq!(hive.authorization.as_deref(), Some("Basic bWU6cEBzcw=="));
        assert_eq!(hive.to_string(), "http://hive.example:3000/fleet", "the password is not shown");
        let hive: Hive = "http://[::1]".parse().unwrap();
        assert_eq!((hive.host.as_str(), hive.port, hive.authorization), ("::1", 80, None));
        for (url, says) in [
            ("https://hive", "plain http"),
            ("https://me:secret@hive", "plain http"),
            ("hive:3000", "http://HOST:PORT"),
            ("hive", "http://"),
            ("/hive", "http://"),
            ("ftp://hive", "http://"),
            ("http://", "http://HOST:PORT"),
            ("http://hive:port", "http://HOST:PORT"),
            ("http://hive:99999", "http://HOST:PORT"),
            ("http://hive:0", "port 0"),
            ("http://hive?x=1", "'?'"),
            ("http://hive/#x", "'#'"),
            ("http://me:secret@", "http://HOST:PORT"),
            ("http://[::1]evil", "http://HOST:PORT"),
            ("", "http://HOST:PORT"),
        ] {
            let why = url.parse::<Hive>().unwrap_err();
            assert!(why.contains(says) && !why.contains("secret"), "{url}: {why}");
        }
    }
}
