//! Fetches images that requests name by URLs, from public addresses only. Otherwise a client could
//! read what only this machine can reach.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Error};

/// Maximum time of a fetch, and maximum bytes of an image.
const MAX_TIME: Duration = Duration::from_secs(10);
const MAX_BYTES: u64 = 32 << 20;
const REDIRECTS: u32 = 3;

/// Fetches over HTTP and HTTPS.
pub struct Fetch(Agent);

impl Fetch {
    /// No proxy is used: it would resolve the names itself.
    pub fn new() -> Fetch {
        let config = Agent::config_builder()
            .timeout_global(Some(MAX_TIME))
            .max_redirects(REDIRECTS)
            .proxy(None)
            .build();
        Fetch(Agent::with_parts(config, DefaultConnector::new(), PublicAddresses::default()))
    }

    /// The bytes at a URL.
    ///
    /// # Errors
    /// One line: the address is not public, the server does not answer, or the file is too large.
    pub fn get(&self, url: &str) -> Result<Vec<u8>, String> {
        let read = || {
            let mut answer = self.0.get(url).call()?;
            answer.body_mut().with_config().limit(MAX_BYTES).read_to_vec()
        };
        read().map_err(|error| format!("the image cannot be fetched: {error}"))
    }
}

/// Resolves names. If one address of a name is not public, the name is refused. The connection goes
/// to the addresses that were checked, and each redirect is checked as well.
#[derive(Debug, Default)]
struct PublicAddresses(DefaultResolver);

impl Resolver for PublicAddresses {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let all = self.0.resolve(uri, config, timeout)?;
        match all.iter().all(|at| is_public(at.ip())) {
            true => Ok(all),
            false => Err(Error::Io(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "its address is not public",
            ))),
        }
    }
}

fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let special = match ip.octets() {
        // This network; shared by providers; for protocols; for measurements; reserved.
        [0, ..] | [100, 64..=127, ..] | [192, 0, 0, _] | [198, 18 | 19, ..] | [240..=255, ..] => {
            true
        }
        // Relays of 6to4.
        [192, 88, 99, _] => true,
        _ => false,
    };
    !(special
        || ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_documentation())
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    // IPv6 addresses that contain an IPv4 address.
    if let Some(ip) = ip.to_ipv4_mapped() {
        return is_public_v4(ip);
    }
    match ip.segments() {
        // Teredo and other protocols; documentation; 6to4.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x2002, ..] | [0x3fff, ..] => false,
        // Only this range is given out.
        [first, ..] => (0x2000..0x4000).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use super::{Fetch, is_public};
    use std::io::Read;
    use std::net::TcpListener;

    #[test]
    fn private_addresses_are_not_public() {
        for ip in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "192.0.0.8",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "192.0.2.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001::1",
            "::127.0.0.1",
        ] {
            assert!(!is_public(ip.parse().unwrap()), "{ip}");
        }
        for ip in ["8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1", "::ffff:8.8.8.8"] {
            assert!(is_public(ip.parse().unwrap()), "{ip}");
        }
    }

    #[test]
    fn private_addresses_get_no_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1"] {
            let why = Fetch::new().get(&format!("http://{host}:{port}/a.png")).unwrap_err();
            assert!(why.starts_with("the image cannot be fetched: "), "{why}");
        }
        let none = listener.accept().map(|(mut stream, _)| stream.read(&mut [0; 9]));
        assert!(none.is_err(), "no connection was made");
    }
}
