//! Limits the number of connections. One address may have at most half of them. If all are in use,
//! the connection that has been idle longest is closed. A connection with a running request is
//! never closed.

use crate::connection_state::ConnectionState;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Interval of checks for idle connections while no connection closes.
const IDLE_POLL: Duration = Duration::from_millis(50);

/// The open connections, and their maximum number.
pub struct ConnectionLimit {
    most: usize,
    next: AtomicU64,
    taken: Mutex<HashMap<u64, (IpAddr, Arc<ConnectionState>)>>,
    left: Notify,
}

/// One connection of the limit. It becomes free when this is dropped.
pub struct ConnectionSlot {
    places: Arc<ConnectionLimit>,
    number: u64,
    /// The state of the connection.
    pub activity: Arc<ConnectionState>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.places.taken().remove(&self.number);
        self.places.left.notify_one();
    }
}

impl ConnectionLimit {
    /// A limiter for `most` connections.
    pub fn new(most: usize) -> Arc<ConnectionLimit> {
        Arc::new(ConnectionLimit {
            most,
            next: AtomicU64::new(0),
            taken: Mutex::default(),
            left: Notify::new(),
        })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<u64, (IpAddr, Arc<ConnectionState>)>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a slot for a connection from this address. If all are in use, this waits until the
    /// connection that has been idle longest has closed, or any other has ended. `None`: the
    /// address has its maximum number, and none of its connections is idle.
    pub async fn take(self: &Arc<ConnectionLimit>, from: IpAddr) -> Option<ConnectionSlot> {
        let from = holder(from);
        loop {
            {
                let mut taken = self.taken();
                // Connections that must close do not count.
                let stay = |of: &dyn Fn(IpAddr) -> bool| {
                    taken
                        .values()
                        .filter(|(other, activity)| of(*other) && !activity.goes())
                        .count()
                };
                if stay(&|other| other == from) >= self.most.div_ceil(2) {
                    idlest(&taken, |other| other == from)?.give_way();
                } else if stay(&|_| true) >= self.most {
                    idlest(&taken, |_| true).inspect(|idlest| idlest.give_way());
                }
                if taken.len() < self.most {
                    let (number, activity) =
                        (self.next.fetch_add(1, Ordering::Relaxed), ConnectionState::new());
                    taken.insert(number, (from, Arc::clone(&activity)));
                    return Some(ConnectionSlot { places: Arc::clone(self), number, activity });
                }
            }
            self.one_left().await;
        }
    }

    /// Closes the connection that has been idle longest.
    pub fn part(&self) {
        idlest(&self.taken(), |_| true).inspect(|idlest| idlest.give_way());
    }

    /// Waits until a slot is free, at most a few milliseconds.
    pub async fn one_left(&self) {
        let _ = tokio::time::timeout(IDLE_POLL, self.left.notified()).await;
    }
}

fn idlest(
    taken: &HashMap<u64, (IpAddr, Arc<ConnectionState>)>,
    of: impl Fn(IpAddr) -> bool,
) -> Option<Arc<ConnectionState>> {
    let idle = |(from, activity): &(IpAddr, Arc<ConnectionState>)| {
        Some((activity.idle_since().filter(|_| of(*from))?, Arc::clone(activity)))
    };
    taken.values().filter_map(idle).min_by_key(|(since, _)| *since).map(|(_, activity)| activity)
}

/// The unit of the limit per address. An IPv6 machine usually has a whole /64 network.
fn holder(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::{ConnectionLimit, holder};
    use std::net::IpAddr;

    #[tokio::test]
    async fn longest_idle_connection_closes_and_addresses_are_limited() {
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let places = ConnectionLimit::new(4);
        let first = places.take(a).await.unwrap();
        let second = places.take(a).await.unwrap();
        // The third connection of one address: its first connection is asked to close.
        let third = places.take(a).await.unwrap();
        first.activity.gives_way().await;
        assert!(first.activity.idle_since().is_none() && second.activity.idle_since().is_some());
        drop(first);
        let others = [places.take(b).await.unwrap(), places.take(b).await.unwrap()];
        // All slots are in use: the connection that has been idle longest closes, whatever its
        // address. The next caller waits for that.
        let (next, ()) = tokio::join!(places.take(IpAddr::from([10, 0, 0, 3])), async {
            second.activity.gives_way().await;
            drop(second);
        });
        assert!(next.is_some() && third.activity.idle_since().is_some());
        drop((third, others, next));
        assert!(places.taken().is_empty());
    }

    #[test]
    fn addresses_of_one_machine_are_grouped() {
        let of = |text: &str| holder(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
