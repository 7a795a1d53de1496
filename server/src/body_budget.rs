//! Limits request bodies: each body, and the sum of all bodies. Without the second limit hundreds
//! of accepted bodies could use up the memory.

use crate::options::Limits;
use crate::refusal::Refusal;
use axum::body::Body;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Bytes};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The first bytes of each body do not count. So an ordinary chat request is accepted even if many
/// large bodies are in memory.
const UNCOUNTED_BYTES: usize = 64 << 10;

/// Bytes of all bodies that are being read or whose request is being answered.
#[derive(Debug, Default)]
pub struct BodyBudget(Arc<AtomicUsize>);

/// A body's share of the total.
struct BodyPermit {
    bytes: Vec<u8>,
    counted: usize,
    all: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for BodyPermit {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for BodyPermit {
    fn drop(&mut self) {
        self.all.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

impl BodyPermit {
    /// Sets the share to this many bytes. Returns false if the total would exceed its limit.
    fn grows_to(&mut self, len: usize, most: usize) -> bool {
        let more = len.saturating_sub(UNCOUNTED_BYTES).saturating_sub(self.counted);
        let count = |all: usize| all.checked_add(more).filter(|all| *all <= most || more == 0);
        let fits = self.all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).is_ok();
        if fits {
            self.counted += more;
        }
        fits
    }
}

impl BodyBudget {
    /// Reads a body. It counts until the returned guard is dropped.
    ///
    /// # Errors
    /// The body is too large (refused before reading if its length is known), it does not arrive in
    /// time, or the sum of all bodies is too large.
    pub async fn read(&self, mut body: Body, limits: &Limits) -> Result<Bytes, Refusal> {
        let told = body.size_hint().lower();
        if told > limits.body as u64 {
            return Err(Refusal::too_large(limits.body));
        }
        let mut held = BodyPermit { bytes: vec![], counted: 0, all: Arc::clone(&self.0) };
        let read = async {
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| {
                    Refusal::bad(format!("the request's body cannot be read: {error}"))
                })?;
                let Ok(data) = frame.into_data() else { continue };
                let len = held.bytes.len().saturating_add(data.len());
                if len > limits.body {
                    return Err(Refusal::too_large(limits.body));
                }
                if !held.grows_to(len, limits.bodies) {
                    return Err(Refusal::unavailable(
                        2,
                        "the bodies of other requests use all memory for bodies",
                    ));
                }
                held.bytes.extend_from_slice(&data);
            }
            Ok(Bytes::from_owner(held))
        };
        tokio::time::timeout(limits.body_time, read)
            .await
            .unwrap_or_else(|_| Err(Refusal::too_slow()))
    }
}

#[cfg(test)]
mod tests {
    use super::{BodyBudget, UNCOUNTED_BYTES};
    use crate::options::Limits;
    use axum::body::Body;

    #[tokio::test]
    async fn total_body_size_is_limited_and_released() {
        let (bodies, limits) = (
            BodyBudget::default(),
            Limits { body: 3 * UNCOUNTED_BYTES, bodies: 2 * UNCOUNTED_BYTES, ..Limits::default() },
        );
        let read = |n: usize| bodies.read(Body::from(vec![0; n]), &limits);
        let one = read(2 * UNCOUNTED_BYTES).await.unwrap();
        let two = read(2 * UNCOUNTED_BYTES).await.unwrap();
        let refused = read(UNCOUNTED_BYTES + 1).await.unwrap_err();
        assert_eq!(refused.status(), 503);
        // A small body is read even if the sum is at its limit.
        assert_eq!(read(UNCOUNTED_BYTES).await.unwrap().len(), UNCOUNTED_BYTES);
        drop(one);
        assert_eq!(read(2 * UNCOUNTED_BYTES).await.unwrap().len(), 2 * UNCOUNTED_BYTES);
        drop(two);
        assert_eq!(read(3 * UNCOUNTED_BYTES).await.unwrap().len(), 3 * UNCOUNTED_BYTES);
        assert_eq!(read(3 * UNCOUNTED_BYTES + 1).await.unwrap_err().status(), 413);
    }
}
