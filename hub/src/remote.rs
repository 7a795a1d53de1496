//! Small files below an address, such as packs of kernels, each within a time limit.

use crate::error::Error;
use crate::http::agent;
use crate::registry::is_loopback;
use crate::settings::Settings;
use std::time::Duration;
use ureq::Agent;
use ureq::http::Uri;

/// The largest file: the kernels of a model have some hundred kilobytes each.
const LIMIT: u64 = 64 << 20;

/// The address of a server of files: `https://…`, or `http://…` on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address(String);

impl std::str::FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let uri: Option<Uri> = text.parse().ok();
        let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
        let plain = uri.as_ref().is_some_and(|uri| uri.query().is_none());
        match uri.as_ref().and_then(Uri::scheme_str) {
            Some("https") if plain && !host.is_empty() => {}
            Some("http") if plain && is_loopback(host) => {}
            Some("http") => {
                return Err("plain http is for servers on this machine only: give https://…".into());
            }
            _ => return Err("give an address: https://HOST/FOLDER".into()),
        }
        Ok(Address(text.trim_end_matches('/').to_owned()))
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A server of files.
pub struct RemoteFiles {
    agent: Agent,
    address: Address,
    patience: Duration,
}

impl RemoteFiles {
    /// The server at an address. A request takes at most `patience`, from the look-up of the name
    /// to the last byte.
    ///
    /// # Errors
    /// The file of certificates is unusable.
    pub fn new(
        settings: &Settings,
        address: &Address,
        patience: Duration,
    ) -> Result<RemoteFiles, Error> {
        Ok(RemoteFiles { agent: agent(settings)?, address: address.clone(), patience })
    }

    /// The content of a file. `None`: the server does not have it.
    ///
    /// # Errors
    /// No answer in time, another status, more than 64 MiB, as text.
    pub fn get(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let url = format!("{}/{name}", self.address);
        let request = self.agent.get(url).config().timeout_global(Some(self.patience)).build();
        let why = |error: ureq::Error| match error {
            ureq::Error::Timeout(_) => {
                format!("no answer within {} s", self.patience.as_secs_f64())
            }
            other => crate::error::shown(&other.to_string()),
        };
        let mut answer = request.call().map_err(why)?;
        match answer.status().as_u16() {
            200 => {
                answer.body_mut().with_config().limit(LIMIT).read_to_vec().map(Some).map_err(why)
            }
            404 | 410 => Ok(None),
            status => Err(format!("it answers with status {status}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Instant;

    #[test]
    fn addresses_are_encrypted_or_of_this_machine() {
        for (text, good) in [
            ("https://c.example/kernels/", true),
            ("http://127.0.0.1:80", true),
            ("http://[::1]/x", true),
            ("http://c.example", false),
            ("https://c.example/?x", false),
            ("file:///x", false),
            ("c.example", false),
            ("", false),
        ] {
            assert_eq!(text.parse::<Address>().is_ok(), good, "{text}");
        }
        let trimmed: Address = "https://c.example/k/".parse().unwrap();
        assert_eq!(trimmed.to_string(), "https://c.example/k");
    }

    /// Servers that send nothing, and that send a byte at a time, without end.
    #[test]
    fn a_slow_server_is_left_in_time() {
        for (head, part) in [("", ""), ("HTTP/1.1 200 x\r\ncontent-length: 99999\r\n\r\n", "x")] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = format!("http://{}", listener.local_addr().unwrap());
            std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 1000]);
                let _ = stream.write_all(head.as_bytes());
                while stream.write_all(part.as_bytes()).is_ok() {
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let settings = Settings::new("http://127.0.0.1:9", "/nowhere");
            let patience = Duration::from_millis(300);
            let files = RemoteFiles::new(&settings, &address.parse().unwrap(), patience).unwrap();
            let began = Instant::now();
            let error = files.get("a").unwrap_err();
            assert!(error.contains("no answer within 0.3 s"), "{error}");
            assert!(began.elapsed() < Duration::from_secs(5));
        }
    }
}
